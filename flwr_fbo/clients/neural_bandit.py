"""Flower clients of Fed-GO-UCB: an agent with an environment that it plays in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from flwr.app import ConfigRecord, Context
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from flwr_fbo._validation import require
from flwr_fbo.agents.neural_study import (
    NeuralBanditStudy,
    NeuralInstruction,
    is_neural_instruction,
)
from flwr_fbo.agents.recorded_neural import (
    FILE_NAME,
    RecordedNeuralAgent,
    neural_identity,
)
from flwr_fbo.agents.study import Phase
from flwr_fbo.clients.app import answerer
from flwr_fbo.clients.linear_bandit import MakeEnvironment, playing
from flwr_fbo.clients.session import Answer, client_folder, configured_slot
from flwr_fbo.clients.thompson import SiteClient
from flwr_fbo.journal import Journal, open_patiently
from flwr_fbo.models.network import RewardModel

_STATE = "flwr-fbo-neural"
# Seconds to wait while another process has the journal.
_PATIENCE = 30.0

MakeModel = Callable[[Context], RewardModel]


class NeuralBanditSite:
    """What a client brings to a study of `FedGOUCB`.

    Nothing that leaves it is private: gradients and sums of raw evaluations.

    Parameters
    ----------
    make_environment : callable
        Takes the client's context, returns a `BanditEnvironment`.
    make_model : callable, optional
        Takes the context, returns the reward model, where the study has no network:
        such as `TorchModel`.

    Raises
    ------
    ValueError
        If an argument is not allowed.
    """

    def __init__(
        self, make_environment: MakeEnvironment, make_model: MakeModel | None = None
    ) -> None:
        ok = callable(make_environment)
        require(ok, "make_environment", make_environment, "a function")
        ok = make_model is None or callable(make_model)
        require(ok, "make_model", make_model, "a function")
        self._make_environment = make_environment
        self._make_model = make_model

    def answer(
        self,
        context: Context,
        arrays: Sequence[NDArray[Any]],
        config: Mapping[str, Any],
    ) -> Answer:
        """Carry out one instruction.

        Parameters
        ----------
        context : flwr.app.Context
        arrays : sequence of ndarray
            w; or w0, a total, both or neither.
        config : mapping
            What `NeuralInstruction.to_config` wrote.

        Raises
        ------
        ValueError
            If the config or the arrays are not of `FedGOUCB`, or the model does not
            fit the study.
        EnvironmentFailed
            If the environment or the model raised, or gave what is not allowed.
        JournalError
            If the journal cannot be used.
        """
        instruction = NeuralInstruction.from_config(config)
        make_model = self._make_model
        model = None if make_model is None else make_model(context)
        instruction.study.model(model)  # which names what does not fit
        if instruction.phase is Phase.ENROL:
            return Answer(metrics={"agent-id": _known_slot(context, instruction.study)})
        with _held(context, instruction) as journal:
            recorded = RecordedNeuralAgent(journal, instruction.slot, model)
            with playing(self._make_environment, context) as environment:
                answer = recorded.carry_out(instruction, arrays, environment)
            metrics = _metrics_of(recorded)
        return Answer(answer, metrics)


def _metrics_of(recorded: RecordedNeuralAgent) -> dict[str, int | float]:
    agent = recorded.agent
    return {
        "wants-synchronisation": int(agent.wants_synchronisation()),
        "num-evaluations": agent.message().num_evaluations,
    }


def _known_slot(context: Context, study: NeuralBanditStudy) -> int:
    """Return the slot of the node config, else the one played in this study, or -1."""
    slot = configured_slot(context)
    if slot >= 0:
        return slot
    known = context.state.config_records.get(_STATE)
    if known is not None and known["study-id"] == study.study_id:
        return int(str(known["slot"]))
    folder = client_folder(context)
    if folder is None or not (folder / FILE_NAME).is_file():
        return -1
    with open_patiently(None, folder / FILE_NAME, _PATIENCE) as journal:
        mine = journal.identity == neural_identity(study)
        return int(journal.load_state().get("slot", -1)) if mine else -1


@contextmanager
def _held(context: Context, instruction: NeuralInstruction) -> Iterator[Journal]:
    """Hold the agent's journal: in its folder, else in ``context.state``."""
    study, records = instruction.study, context.state.config_records
    folder, known = client_folder(context), records.get(_STATE)
    mine = known is not None and known["study-id"] == study.study_id
    entries: dict[str, Any] = {"study-id": study.study_id, "slot": instruction.slot}
    if folder is not None:
        records[_STATE] = ConfigRecord(entries)
        path = folder / FILE_NAME
        with open_patiently(neural_identity(study), path, _PATIENCE) as journal:
            yield journal
        return
    content = known.get("journal") if known is not None and mine else None
    assert content is None or isinstance(content, bytes)
    with Journal(neural_identity(study), content=content) as journal:
        try:
            yield journal
        finally:
            entries["journal"] = journal.to_bytes()
            records[_STATE] = ConfigRecord(entries)


class NeuralBanditClient(SiteClient):
    """A `NumPyClient` of `FedGOUCB`, around one agent and its environment.

    Parameters
    ----------
    context : flwr.app.Context
    make_environment, make_model : callable
        See `NeuralBanditSite`.

    Examples
    --------
    >>> def client_fn(context):
    ...     return NeuralBanditClient(context, make_environment).to_client()
    >>> app = ClientApp(client_fn=client_fn)  # doctest: +SKIP
    """

    def __init__(
        self,
        context: Context,
        make_environment: MakeEnvironment,
        make_model: MakeModel | None = None,
    ) -> None:
        super().__init__(NeuralBanditSite(make_environment, make_model), context)


def neural_bandit_app(
    make_environment: MakeEnvironment, make_model: MakeModel | None = None
) -> ClientApp:
    """Return a `ClientApp` whose agents play in their environments by `FedGOUCB`.

    Parameters
    ----------
    make_environment, make_model : callable
        See `NeuralBanditSite`.

    Examples
    --------
    >>> app = neural_bandit_app(make_environment)  # doctest: +SKIP
    """
    app = ClientApp()
    site = NeuralBanditSite(make_environment, make_model)
    app.train()(answerer(site.answer, is_neural_instruction))
    return app

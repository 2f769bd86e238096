"""Flower clients of Fed-GO-UCB: an agent with an environment that it plays in."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from flwr_fbo._validation import require
from flwr_fbo.agents.durable.fed_go_ucb import (
    FILE_NAME,
    RecordedNeuralAgent,
    neural_identity,
)
from flwr_fbo.clients.app_builders import answerer
from flwr_fbo.clients.held_journal import held_journal
from flwr_fbo.clients.limits import Limits
from flwr_fbo.clients.linear_bandit_client import MakeEnvironment, playing
from flwr_fbo.clients.session import Answer, client_folder, configured_slot
from flwr_fbo.clients.tuning_client import SiteClient
from flwr_fbo.models.network import RewardModel
from flwr_fbo.protocol.codec import Phase
from flwr_fbo.protocol.neural_bandit_study import (
    NeuralBanditInstruction,
    NeuralBanditStudy,
)

MakeModel = Callable[[Context], RewardModel]


class NeuralBanditSite:
    """What a client brings to a study of `FedGOUCB`, and its limits.

    Without ``settings.privacy`` nothing that leaves it is private: gradients and sums
    of raw evaluations.

    Parameters
    ----------
    make_environment : callable
        Takes the client's context, returns a `BanditEnvironment`. Without a folder the
        journal is in ``context.state``, which lives as long as the run; there a server
        that lies can have trials played, and released, again in another study.
    make_model : callable, optional
        Takes the context, returns the reward model, where the study has no network:
        such as `TorchModel`.
    max_epsilon, max_delta : float, optional
        What a study may spend at most at this site; see `Limits`. Without them it takes
        part in any study, private or not.

    Raises
    ------
    ValueError
        If an argument is not allowed.
    """

    def __init__(
        self,
        make_environment: MakeEnvironment,
        make_model: MakeModel | None = None,
        max_epsilon: float | None = None,
        max_delta: float | None = None,
    ) -> None:
        ok = callable(make_environment)
        require(ok, "make_environment", make_environment, "a function")
        ok = make_model is None or callable(make_model)
        require(ok, "make_model", make_model, "a function")
        self._make_environment = make_environment
        self._make_model = make_model
        self._limits = Limits.of(max_epsilon, max_delta, experimental=True)

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
            What `NeuralBanditInstruction.to_config` wrote.

        Raises
        ------
        ValueError
            If the config or the arrays are not of `FedGOUCB`, or the model does not
            fit the study.
        ImportError
            If real noise is wanted and OpenDP is missing; the message names the extra.
        StudyRefusedError
            If the study promises less than this site wants.
        EnvironmentFailedError
            If the environment or the model raised, or gave what is not allowed.
        JournalError
            If the journal cannot be used, or is not the one with this agent's releases.
        """
        instruction = NeuralBanditInstruction.from_config(config)
        study = instruction.study
        self._check(study)
        model = self._model(context)
        study.model(model)  # which names what does not fit
        new = instruction.phase is Phase.ENROL
        with held_journal(
            context,
            neural_identity(study),
            _path(context),
            may_begin=new or study.settings.privacy is None,
        ) as journal:
            recorded = RecordedNeuralAgent(journal, model)
            if new:
                return Answer(metrics=_claim(context, recorded))
            recorded.join(instruction.slot, instruction.journal)
            with playing(self._make_environment, context) as environment:
                answer = recorded.carry_out(instruction, arrays, environment)
            return Answer(answer, _metrics_of(recorded))

    def _model(self, context: Context) -> RewardModel | None:
        if self._make_model is None:
            return None
        with playing(self._make_model, context) as model:
            return model

    def _check(self, study: NeuralBanditStudy) -> None:
        """Raise unless the study promises what this site wants."""
        privacy = study.settings.privacy
        epsilon, delta = math.inf, 1.0
        if privacy is not None:
            epsilon, delta = privacy.epsilon, privacy.delta
        self._limits.check(study.private, epsilon, delta)


def _path(context: Context) -> Path | None:
    folder = client_folder(context)
    return None if folder is None else folder / FILE_NAME


def _claim(context: Context, recorded: RecordedNeuralAgent) -> dict[str, int | float]:
    """Return the slot of the node config, else the one played in this study, or -1.

    And the journal, where releases are in it that must not be lost.
    """
    slot = configured_slot(context)
    claim: dict[str, int | float] = {"agent-id": recorded.slot if slot < 0 else slot}
    if recorded.study.settings.privacy is None:
        return claim
    recorded.require_entropy()
    return {**claim, "journal": recorded.number}


def _metrics_of(recorded: RecordedNeuralAgent) -> dict[str, int | float]:
    agent = recorded.agent
    return {
        "wants-synchronisation": int(agent.wants_synchronisation()),
        "num-evaluations": agent.num_in_sums,
    }


class NeuralBanditClient(SiteClient):
    """A `NumPyClient` of `FedGOUCB`, around one agent and its environment.

    Parameters
    ----------
    context : flwr.app.Context
    make_environment, make_model, max_epsilon, max_delta
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
        max_epsilon: float | None = None,
        max_delta: float | None = None,
    ) -> None:
        site = NeuralBanditSite(make_environment, make_model, max_epsilon, max_delta)
        super().__init__(site, context)


def neural_bandit_app(
    make_environment: MakeEnvironment,
    make_model: MakeModel | None = None,
    max_epsilon: float | None = None,
    max_delta: float | None = None,
) -> ClientApp:
    """Return a `ClientApp` whose agents play in their environments by `FedGOUCB`.

    Parameters
    ----------
    make_environment, make_model, max_epsilon, max_delta
        See `NeuralBanditSite`.

    Examples
    --------
    >>> app = neural_bandit_app(make_environment)  # doctest: +SKIP
    """
    app = ClientApp()
    site = NeuralBanditSite(make_environment, make_model, max_epsilon, max_delta)
    app.train()(answerer(site.answer, NeuralBanditInstruction.is_in))
    return app

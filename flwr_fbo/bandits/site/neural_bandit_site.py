"""A site of Fed-GO-UCB: an agent with an environment that it plays in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import Context
from flwr.clientapp import ClientApp

from flwr_fbo._common.conversion import take_plain
from flwr_fbo._common.validation import require_function
from flwr_fbo.bandits.fed_go_ucb.study import (
    FedGOUCBInstruction,
    FedGOUCBStudy,
)
from flwr_fbo.bandits.site.bandit_site import (
    BanditSite,
    MakeEnvironment,
    playing,
)
from flwr_fbo.bandits.site.environment import environment_in_time
from flwr_fbo.journal.journal import Journal
from flwr_fbo.models.network import RewardModel
from flwr_fbo.site.gate import Gate
from flwr_fbo.site.limits import Limits
from flwr_fbo.site.site import Answer, Arrays, Metrics, site_app
from flwr_fbo.site.time_limit import CheckTime

if TYPE_CHECKING:
    from flwr_fbo.bandits.site.recorded_neural_agent import RecordedNeuralAgent

MakeModel = Callable[[Context], RewardModel]


@dataclass(frozen=True)
class NeuralBanditSite(BanditSite[FedGOUCBInstruction, "RecordedNeuralAgent"]):
    """What a client brings to a study of `FedGOUCB`; see `neural_bandit_app`.

    Without ``settings.privacy`` nothing that leaves it is private: gradients and sums
    of raw evaluations.

    Raises
    ------
    ValueError
        If an argument is not allowed.
    """

    make_environment: MakeEnvironment | None = None
    make_model: MakeModel | None = None
    limits: Limits | None = None
    folder: str | Path | None = None

    instruction_type = FedGOUCBInstruction

    def __post_init__(self) -> None:
        take_plain(self)
        require_function("make_model", self.make_model, optional=True)
        self.check_fields()

    @property
    def recorded(self) -> type[RecordedNeuralAgent]:
        """The type of the agent that it keeps; loaded when it is asked for."""
        from flwr_fbo.bandits.site.recorded_neural_agent import RecordedNeuralAgent

        return RecordedNeuralAgent

    def check(self, context: Context, study: FedGOUCBStudy, gate: Gate) -> None:
        """Raise unless the site has a place for its policy, and sums are not wanted.

        Raises
        ------
        RefusedError
            If it wants secure sums.
        NodeConfigError
            If there is neither folder nor environment.
        """
        super().check(context, study, gate)
        self.check_place(context, "neural_bandit_app")

    def agent_in(
        self, journal: Journal, study: FedGOUCBStudy, context: Context
    ) -> RecordedNeuralAgent:
        """Return the agent of a journal, with the client's own reward model."""
        if self.make_model is None:
            return self.recorded(journal, None)
        with playing(self.make_model, context) as model:
            made = model
        return self.recorded(journal, made)

    def num_trials(
        self, agent: RecordedNeuralAgent, instruction: FedGOUCBInstruction
    ) -> int:
        """Return how many evaluations are missing; none where the site decides."""
        if self.make_environment is None:
            return 0
        return instruction.num_evaluations - agent.num_trials

    def play(
        self,
        context: Context,
        agent: RecordedNeuralAgent,
        instruction: FedGOUCBInstruction,
        arrays: Arrays,
        check_time: CheckTime,
    ) -> None:
        """Take what came along, and play in the environment.

        Raises
        ------
        AppFailedError
            If the environment or the model raised, or gave what is not allowed.
        """
        if self.make_environment is None:
            agent.receive(instruction, arrays)
            return
        with playing(self.make_environment, context) as environment:
            agent.receive(instruction, arrays)
            limited = environment_in_time(environment, check_time)
            agent.play(limited, instruction.num_evaluations)

    def reply(
        self,
        agent: RecordedNeuralAgent,
        instruction: FedGOUCBInstruction,
        arrays: Arrays,
    ) -> Answer:
        """Return the arrays that are wanted, and how many evaluations are in them."""
        if instruction.release_charged is None:
            return Answer()
        answer = agent.message(instruction, arrays)
        if instruction.study.settings.privacy is not None:
            # What the server has asked for: how many rewards came is not for it.
            return Answer(answer, {"num-evaluations": instruction.num_evaluations})
        wants = agent.belief.agent.wants_synchronisation()
        metrics: Metrics = {
            "num-evaluations": agent.belief.num_in_sums,
            "wants-synchronisation": int(wants),
        }
        return Answer(answer, metrics)


def neural_bandit_app(
    make_environment: MakeEnvironment | None = None,
    make_model: MakeModel | None = None,
    limits: Limits | None = None,
    *,
    folder: str | Path | None = None,
) -> ClientApp:
    """Return a `ClientApp` whose agents play in their environments by `FedGOUCB`.

    Or that synchronises the bandit of each site, which opens `NeuralBanditPolicy`.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fbo import FedGOUCB, InProcessGrid
    >>> from flwr_fbo.bandits import FedGOUCBSettings, Network, neural_bandit_app
    >>> class Kitchen:
    ...     def contexts(self, t):
    ...         return np.linspace(0, 1, 20)[:, None]  # the actions of trial t
    ...     def reward(self, x):
    ...         return float(np.sin(5 * x[0]))
    >>> app = neural_bandit_app(lambda context: Kitchen())
    >>> settings = FedGOUCBSettings(num_exploration=0)  # phase II only
    >>> model = Network(1, width=4)
    >>> strategy = FedGOUCB(settings, model, num_agents=2, num_evaluations=4)
    >>> result = strategy.start(InProcessGrid(app, num_nodes=2))
    >>> len(result.estimate)
    13

    Parameters
    ----------
    make_environment : callable, optional
        Function from the client's context to a `BanditEnvironment`, which the client
        plays as often as the server says. Without a folder the journal is in
        ``context.state``, which lasts as long as the run. Without an environment the
        site decides by itself, at its own pace.
    make_model : callable, optional
        Function from the context to the reward model, such as a `TorchModel`, if the
        study has no network.
    limits : Limits, optional
        Limits on the spending of all studies at a site, and on the cost of a message.
        The node config may set more, such as ``fbo-max-epsilon-per-example``. Without
        limits a site takes part in any study, private or not, whose messages cost no
        more than the defaults of `Limits`; a site without an environment, and without a
        limit on epsilon, in private ones only.
    folder : str or Path, optional
        Absolute path of the folder with the site's journal, for
        `NeuralBanditPolicy.open`. The default is ``fbo-folder`` of the node config,
        else of the run config.

    Raises
    ------
    ValueError
        If an argument is not allowed.
    """
    return site_app(NeuralBanditSite(make_environment, make_model, limits, folder))

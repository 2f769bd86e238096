"""Fed-GO-UCB (ICLR 2024) as a Flower strategy."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import compress
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message

from flwr_fbo._common.conversion import takes_plain
from flwr_fbo._common.validation import (
    require,
    require_instance,
    require_int,
    require_seed,
)
from flwr_fbo._compat import reply_metrics, to_array_record
from flwr_fbo.bandits.fed_go_ucb.server import (
    FedGOUCBServer,
    spent_by_neural_agent,
)
from flwr_fbo.bandits.fed_go_ucb.settings import AgentReply, FedGOUCBSettings
from flwr_fbo.bandits.fed_go_ucb.study import (
    FedGOUCBInstruction,
    FedGOUCBStudy,
)
from flwr_fbo.bandits.kind import NEURAL_SERVER
from flwr_fbo.models.network import Network, RewardModel
from flwr_fbo.privacy.accounting import PrivacySpent
from flwr_fbo.strategies.bandit_result import BanditResult
from flwr_fbo.strategies.base import StudyStrategy, arrays_record, num_asked_for
from flwr_fbo.strategies.intervals import check_interval, wait_until_due
from flwr_fbo.strategies.linear_bandit_strategy import check_delta_of
from flwr_fbo.study.codec import fresh_seed
from flwr_fbo.study.server import Step


class FedGOUCB(StudyStrategy[BanditResult]):
    """Federated bandits with a neural network as reward model.

    Phase I: every agent explores, in the first round; then there is one round for each
    step of the regression. Phase II: one evaluation an agent a round; sums are shared
    when an agent has learned enough by itself, and are believed two rounds later.

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
    settings : FedGOUCBSettings
        Settings of all agents.
    model : RewardModel
        f(x; w). A `Network` is sent to the clients; any other one, such as a
        `TorchModel`, they bring themselves.
    num_agents : int
        Number N >= 2 of agents, the slots of the study.
    num_evaluations : int
        Number T of evaluations of each agent, including phase I; more than phase I has.
    interval : float, optional
        Seconds before each round of phase II, from 0 to ten years, where real sites
        decide at their own pace through `NeuralBanditPolicy`. The first round only
        enrols them; phase I begins an interval later, with the sites that have a reward
        then, and waits as long again while none has. ``num_evaluations`` says how many
        rounds there are, and not how often a site decides. Without an interval agents
        play in an environment, one evaluation a round.
    seed : int, optional
        Seed, >= 0, of exploration, initial parameters and the regression's noise; the
        agents are told it. By default the operating system draws it.
    noise_seed : int, optional
        Seed, >= 0, of the agents' noise, *for experiments only*: the study is then not
        private. By default the operating system draws the noise.
    allow_large_delta : bool
        Whether delta may be 0.01 and more where the noise is real: for experiments.

    Raises
    ------
    ValueError
        If an argument is not allowed; the message names it.

    Notes
    -----
    *Formal guarantees*: with ``settings.privacy`` those of `NeuralPrivacy`, at each
    agent: (epsilon, delta)-DP for one trial replaced by another, against all that ever
    leaves the site, the server and the other sites included. An agent whose journal is
    lost is refused: it could draw its noise again. Never go on with an older copy of
    the journal from a backup, a snapshot or a cloned machine. Without ``privacy`` there
    are none: what agents send are gradients and sums of their raw evaluations, and the
    noise of Langevin dynamics is far too small to hide any.

    An agent that is away has no part in a step of phase I; in phase II it is in the
    total with what it sent last. If no gradient is finite in a step, the run ends with
    an error, and with a ``folder`` a new one goes on at this step.
    """

    server: FedGOUCBServer
    study: FedGOUCBStudy
    result_type = BanditResult
    record_kind = NEURAL_SERVER

    @takes_plain
    def __init__(
        self,
        settings: FedGOUCBSettings,
        model: RewardModel,
        num_agents: int,
        *,
        num_evaluations: int = 100,
        interval: float | None = None,
        seed: int | None = None,
        noise_seed: int | None = None,
        allow_large_delta: bool = False,
    ) -> None:
        require_instance("settings", settings, FedGOUCBSettings)
        is_model = hasattr(model, "values_and_gradients")
        require(is_model, "model", model, "a reward model, such as Network(6)")
        explored = settings.num_random_actions
        require_int("num_evaluations", num_evaluations, explored + 1)
        require_int("num_agents", num_agents, 2)
        check_interval(interval)
        require_seed("seed", seed)
        require_seed("noise_seed", noise_seed)
        study = FedGOUCBStudy(
            settings.for_study(num_agents, num_evaluations),
            num_agents,
            model.num_parameters,
            model if isinstance(model, Network) else None,
            fresh_seed() if seed is None else seed,
            noise_seed,
        )
        check_delta_of(study.promise, allow_large_delta=allow_large_delta)
        at_own_pace = interval is not None
        server = FedGOUCBServer(study, model, num_evaluations, at_own_pace=at_own_pace)
        super().__init__(server, study)
        self._interval = interval
        self._last_round = 0.0  # Unix time
        self._given_seed = seed
        self._num_evaluations = num_evaluations
        self._informed: set[int] = set()  # nodes that have w0

    def default_rounds(self) -> int:
        """Return the steps of phase I, and the evaluations of phase II.

        And with an interval, the round that enrols the sites.
        """
        settings = self.study.settings
        explored = settings.num_random_actions
        steps = settings.regression.num_iterations if explored else 0
        enrolling = 0 if self._interval is None else 1
        return enrolling + steps + self._num_evaluations - explored

    def plan(self, horizon: int) -> None:
        """Refuse any number of rounds but `default_rounds`.

        Parameters
        ----------
        horizon : int
            T >= 1, the last iteration.
        """
        rounds = self.default_rounds()
        require(horizon + 1 == rounds, "num_rounds", horizon + 1, f"{rounds}")

    def instruction(self, node: int, slot: int, step: Step) -> FedGOUCBInstruction:
        """Return what the agent of ``slot`` is asked."""
        server = self.server
        starts, totals = self._along(node)
        heard = server.heard[slot]
        return FedGOUCBInstruction(
            phase="round",
            study=self.study,
            slot=slot,
            journal=self._enrolment.journals.get(slot, 0),
            num_evaluations=server.evaluations_after(step.iteration),
            regresses=server.regresses,
            starts=starts,
            totals=totals,
            included=server.num_included(slot),
            send_sums=step.release > 0 and not server.regresses,
            release=heard + 1,
            heard=heard,
        )

    def _resumed(self) -> None:
        if self._rounds:
            self._last_round = time.time()

    def _before_round(self, step: Step) -> None:
        """Wait until it is time, where sites decide at their own pace."""
        server = self.server
        in_regression = server.regresses and server.regression.num_steps > 0
        if self._interval is not None and step.iteration > 0 and not in_regression:
            wait_until_due(self._last_round, self._interval)

    def _after_round(self, step: Step, answers: Mapping[int, Message]) -> None:
        self._last_round = time.time()
        spent = self.privacy_spent
        if spent is not None and spent.num_releases and math.isfinite(spent.epsilon):
            self._rounds[-1] = replace(self._rounds[-1], epsilon=spent.epsilon)

    def _along(self, node: int) -> tuple[bool, bool]:
        """Return whether w0, and a total, go along to a node."""
        if self.server.regresses:
            return False, False
        totals = self.server.vectors is not None and node not in self._up_to_date
        return node not in self._informed, totals

    def _outgoing(self, slots: Mapping[int, int], step: Step) -> dict[int, ArrayRecord]:
        """Return the arrays for each node: w; else w0, a total, both or neither."""
        if self.server.regresses:
            w = arrays_record(self.server)
            assert w is not None
            return dict.fromkeys(slots, w)
        both = self.server.w0, self.server.vectors
        kinds = {node: self._along(node) for node in slots}
        records = {
            along: to_array_record([a for a in compress(both, along) if a is not None])
            for along in set(kinds.values())
        }
        return {node: records[along] for node, along in kinds.items()}

    def _read(self, slot: int, reply: Message, step: Step) -> AgentReply:
        """Return what the server half takes of a reply."""
        metrics = reply_metrics(reply.content)
        count: Any = metrics.get("num-evaluations")
        is_count = type(count) is int and 0 <= count <= self._num_evaluations
        wants = metrics.get("wants-synchronisation") == 1
        array = super()._read(slot, reply, step)
        return AgentReply(count if is_count else 0, array if is_count else None, wants)

    def _take(self, step: Step, answers: Mapping[int, Message]) -> None:
        """Hand the answers to the server half, and note who has w0 now."""
        if not self.server.regresses:  # the server half goes on as it takes them
            slots = self._enrolment.slots.items()
            self._informed |= {node for node, slot in slots if slot in answers}
        super()._take(step, answers)

    def _spent(self) -> PrivacySpent | None:
        return self.privacy_spent

    def _identity(self, num_rounds: int) -> dict[str, Any]:
        return {
            **super()._identity(num_rounds),
            "num_evaluations": self._num_evaluations,
            "interval": self._interval,
            "seed": self._given_seed,  # that of the study that goes on counts
        }

    def _end(self, result: BanditResult) -> None:
        result.estimate = np.array(self.server.w0)
        result.num_synchronisations = self.server.num_synchronisations
        result.privacy_spent = self.privacy_spent

    @property
    def privacy_spent(self) -> PrivacySpent | None:
        """Epsilon at delta of all that an agent sends, in Flower's type.

        It is spent once the first release has been asked for: one that did not arrive
        in time has left its agent. The relation is that of `NeuralPrivacy`: one trial
        replaced by another. Infinite without noise; None where there is to be no
        privacy. With a ``noise_seed`` it is what real noise would have spent.
        """
        privacy = self.study.settings.privacy
        if privacy is None:
            return None
        arrived = len(self.server.ledger)
        return spent_by_neural_agent(privacy, arrived or num_asked_for(self._rounds))

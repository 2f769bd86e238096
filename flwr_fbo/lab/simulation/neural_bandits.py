"""Fed-GO-UCB and what it is compared with, without Flower, every scalar counted.

*Communication-Efficient Federated Non-linear Bandit Optimization* (ICLR 2024), section
6. One pair of agent and server makes all methods: One-GO-UCB synchronises after every
evaluation, N-GO-UCB never, and DisLinUCB (Wang, Hu, Chen & Wang, ICLR 2020) has a
linear model, with a constant, and so no phase I.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from flwr_fbo._common.validation import require, require_int
from flwr_fbo.algorithms.fed_go_ucb.agent import FedGOUCBAgent
from flwr_fbo.algorithms.fed_go_ucb.server import FedGOUCBServer
from flwr_fbo.algorithms.fed_go_ucb.settings import FedGOUCBSettings
from flwr_fbo.algorithms.fed_go_ucb.study import FedGOUCBStudy
from flwr_fbo.lab.simulation.turns import Channel, Federation, TurnSimulation
from flwr_fbo.models.network import LinearModel, RewardModel
from flwr_fbo.privacy.noise import SeededEntropy

Baseline = Literal["one-go-ucb", "n-go-ucb", "dislinucb"]


@dataclass(frozen=True)
class NeuralBanditSimulation(TurnSimulation[FedGOUCBSettings]):
    """Agents with a network in one bandit: see `TurnSimulation`.

    There are at least as many rounds as those of exploration. With privacy, agents
    synchronise by the schedule. ``"always"`` is after every evaluation of phase II.
    With ``"never"`` every agent fits its own w0, too. Their losses count by their
    evaluations, as in eq. 2. `run` raises NoGradientsError or
    FloatingPointError if phase I has no finite gradients, or diverges.

    Attributes
    ----------
    model : RewardModel
        Of the task's dimension.
    total_exploration : int, optional
        Number T0 >= N of random actions of all agents together, in turn and before the
        first round, as in algorithm 1; theorem 5 has T0 = sqrt(N T). With None each
        agent's first ``settings.num_exploration`` rounds are phase I.

    Notes
    -----
    ``"always"`` sends sums, as all methods here do, so that they differ in when they
    send only. It could send x and y instead: d + 1 scalars to each of N agents, in all
    N^2 T (d + 1). That is less than *one* synchronisation of sums, 2 N (d_w^2 + d_w),
    while N T (d + 1) < 2 (d_w^2 + d_w). But points and rewards are raw data.
    """

    model: RewardModel = field(kw_only=True)
    total_exploration: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        explored, rounds = self.settings.num_random_actions, self.num_rounds
        if self.total_exploration is not None:
            require_int("total_exploration", self.total_exploration, self.num_agents)
            allowed = "at least 1, with total_exploration"
            require(explored > 0, "num_exploration", explored, allowed)
        allowed = f"at least num_exploration, {explored}"
        require(rounds >= explored, "num_rounds", rounds, allowed)
        own, d = self.model.dimension, self.task.dimension
        require(own == d, "model.dimension", own, f"{d}, as in the task")
        if self.settings.privacy is not None:
            ok = self.sharing == "triggered"
            require(ok, "sharing", self.sharing, "'triggered', with privacy")
            self.settings.privacy.schedule(rounds)

    def baseline(self, name: Baseline) -> NeuralBanditSimulation:
        """Return one of the baselines, on the same task.

        ``"one-go-ucb"`` and ``"n-go-ucb"``: every evaluation is shared, or none.
        ``"dislinucb"``: a linear model, no phase I, and the threshold T log(N T) /
        (d N) of its analysis. Its ridge and beta stay as they are here: a comparison
        should give it the ones that suit it.
        """
        allowed = f"one of {get_args(Baseline)}"
        require(name in get_args(Baseline), "name", name, allowed)
        if name == "one-go-ucb":
            return replace(self, sharing="always")
        if name == "n-go-ucb":
            return replace(self, sharing="never")
        model = LinearModel(self.task.dimension)
        agents, rounds = self.num_agents, self.num_rounds
        threshold = rounds * math.log(agents * rounds)
        threshold /= model.num_parameters * agents
        settings = replace(self.settings, num_exploration=0, threshold=threshold)
        return replace(
            self,
            settings=settings,
            model=model,
            sharing="triggered",
            total_exploration=None,
        )

    def federation(self, seed: int) -> _NeuralFederation:
        """Return the agents and their server, before the first round."""
        settings = self.settings.for_study(self.num_agents, self.num_rounds)
        agents = [_agent(self, settings, seed, i) for i in range(self.num_agents)]
        server = _server(self, settings, seed)
        return _NeuralFederation(self, agents, server, seed)


class _NeuralFederation(Federation[FedGOUCBAgent, FedGOUCBServer]):
    simulation: NeuralBanditSimulation

    def can_synchronise(self, agent: FedGOUCBAgent) -> bool:
        return agent.w0 is not None

    def before_rounds(self) -> float:
        total, num_agents = self.simulation.total_exploration, len(self.agents)
        if total is None:
            return 0.0
        regret, later = 0.0, self.simulation.num_rounds
        for i in range(total):
            # Trials of other noise than those of the rounds.
            chosen = self.play(i % num_agents, later + i // num_agents)
            regret += self.bandit.regret(chosen)
        self._regress()
        return regret

    def end_round(self, t: int) -> None:
        if self.simulation.total_exploration is not None:
            return
        settings, rounds = self.simulation.settings, self.simulation.num_rounds
        if t + 1 == settings.num_random_actions:
            self._regress()
        privacy = settings.privacy
        if privacy is not None and t + 1 in privacy.schedule(rounds):
            self.share()

    def _regress(self) -> None:
        """Fit w0: together, or each agent its own, where nothing is sent."""
        if self.simulation.sharing != "never":
            _fit(dict(enumerate(self.agents)), self.server, self.channel)
            return
        for slot, agent in enumerate(self.agents):
            own = _server(self.simulation, self.simulation.settings, self.seed)
            _fit({slot: agent}, own, Channel())

    def synchronise(self) -> None:
        if self.simulation.sharing == "always":
            # All agents know the same after each evaluation, so that one stands for
            # all: the first agent, which is the first to play in phase II.
            self.agents = [self.agents[0]] * len(self.agents)
            size = self.agents[0].message().values.size
            self.channel.num_scalars += 2 * len(self.agents) * size
            return
        send, server = self.channel.send, self.server
        messages = ((slot, agent.message()) for slot, agent in enumerate(self.agents))
        server.receive_sums(
            {slot: replace(m, values=send(m.values)) for slot, m in messages}
        )
        total = server.total
        for slot, agent in enumerate(self.agents):
            agent.receive(send(total), server.num_included(slot))


def _server(
    simulation: NeuralBanditSimulation, settings: FedGOUCBSettings, seed: int
) -> FedGOUCBServer:
    model, num_agents = simulation.model, simulation.num_agents
    study = FedGOUCBStudy(settings, num_agents, model.num_parameters, None, seed)
    return FedGOUCBServer(study, model, simulation.num_rounds)


def _agent(
    simulation: NeuralBanditSimulation,
    settings: FedGOUCBSettings,
    seed: int,
    slot: int,
) -> FedGOUCBAgent:
    """Return an agent; the noise of a private one repeats, for experiments."""
    model, num_agents = simulation.model, simulation.num_agents
    entropy = SeededEntropy(seed, slot)
    return FedGOUCBAgent(settings, model, seed, slot, num_agents, entropy)


def _fit(
    agents: Mapping[int, FedGOUCBAgent], server: FedGOUCBServer, channel: Channel
) -> None:
    """Run the regression of phase I, and tell the agents what came out."""
    counts = {slot: agent.num_evaluations for slot, agent in agents.items()}
    usual = sum(counts.values()) / len(counts)
    while not server.regression.is_done:
        server.receive_gradients(
            {
                slot: channel.send(
                    counts[slot]
                    / usual
                    * agent.regression_message(channel.send(server.regression.w))
                )
                for slot, agent in agents.items()
            }
        )
    for agent in agents.values():
        agent.start(channel.send(server.w0))

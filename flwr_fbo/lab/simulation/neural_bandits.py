"""Agents that take turns in one non-linear bandit, every scalar they send counted.

Fed-GO-UCB and what it is compared with, without Flower: *Communication-Efficient
Federated Non-linear Bandit Optimization* (ICLR 2024), section 6. One pair of agent and
server makes all methods: One-GO-UCB synchronises after every evaluation, N-GO-UCB
never, and DisLinUCB (Wang, Hu, Chen & Wang, ICLR 2020) has a linear model, with a
constant, and so no phase I.

Fed-GLB-UCB (Li & Wang, NeurIPS 2022) and ApproxDisKernelUCB (Li, Wang, Wang & Wang,
NeurIPS 2022) have agents of their own. A control for bandits with few
actions tries each once, together, and then plays the best: it has no model, and a
method with a model is of use where it needs fewer trials than that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray, one_blas_thread
from flwr_fbo._common.fields import check_fields, choice, flag, integer
from flwr_fbo._common.validation import require, require_int
from flwr_fbo.bandits.fed_go_ucb.agent import FedGOUCBAgent
from flwr_fbo.bandits.fed_go_ucb.server import FedGOUCBServer
from flwr_fbo.bandits.fed_go_ucb.settings import FedGOUCBSettings
from flwr_fbo.bandits.fed_go_ucb.study import FedGOUCBStudy
from flwr_fbo.lab.tasks.nonlinear_bandit import NonlinearBandit, NonlinearBanditTask
from flwr_fbo.models.network import RewardModel
from flwr_fbo.privacy.noise import SeededEntropy

Sharing = Literal["triggered", "always", "never"]


class Channel:
    """Channel between agents and server, which counts what passes.

    Attributes
    ----------
    num_scalars : int
        So far, of both directions.
    """

    def __init__(self) -> None:
        self.num_scalars = 0

    def send(self, array: FloatArray) -> FloatArray:
        """Return the array, once its numbers are counted."""
        self.num_scalars += array.size
        return array


@dataclass(frozen=True)
class FederationRun:
    """Record of one run.

    Attributes
    ----------
    actions : ndarray of int, shape (T, N)
        The index of the action that each agent played in each round.
    regret : ndarray of shape (T,)
        Regret of each round, added over the agents.
    num_scalars : ndarray of int, shape (T,)
        Sent by the end of each round, from the run's beginning on.
    num_synchronisations : int
        Number of synchronisations of the run.
    regret_before : float
        Regret of the evaluations before the first round, added over the agents.
    """

    actions: NDArray[Any]
    regret: FloatArray
    num_scalars: NDArray[np.int64]
    num_synchronisations: int
    regret_before: float = 0.0


class Federation:
    """Agents in one run, each with one evaluation a round; a method says what is sent.

    Parameters
    ----------
    simulation : TurnSimulation
        Settings of the simulation.
    seed : int
        Seed of the run.

    Attributes
    ----------
    simulation, seed
        As given.
    agents : list
        Those of the simulation.
    channel : Channel
        Channel that all arrays pass.
    bandit : NonlinearBandit
        Bandit that all agents play.
    num_synchronisations : int
        So far.
    """

    def __init__(self, simulation: TurnSimulation, seed: int) -> None:
        self.simulation, self.seed = simulation, seed
        self.agents = simulation.agents(seed)
        self.channel = Channel()
        self.bandit = NonlinearBandit(simulation.task, seed)
        self.num_synchronisations = 0

    def run(self) -> FederationRun:
        """Play all rounds."""
        rounds, bandit = self.simulation.num_rounds, self.bandit
        actions = np.empty((rounds, len(self.agents)), dtype=np.int64)
        regret, sent = np.zeros(rounds), np.zeros(rounds, dtype=np.int64)
        regret_before = self.before_rounds()
        for t in range(rounds):
            if self.simulation.at_once:
                actions[t] = self.play_at_once(t)
            else:
                actions[t] = [self.play(slot, t) for slot in range(len(self.agents))]
            regret[t] = sum(bandit.regret(chosen) for chosen in actions[t])
            self.end_round(t)
            sent[t] = self.channel.num_scalars
        syncs = self.num_synchronisations
        return FederationRun(actions, regret, sent, syncs, regret_before)

    def play_at_once(self, t: int) -> list[int]:
        """Let all agents choose, then evaluate, and all synchronise if it is time."""
        chosen = [agent.choose(self.bandit.actions) for agent in self.agents]
        for slot, index in enumerate(chosen):
            self.tell(slot, t, index)
        triggered = self.simulation.sharing == "triggered"
        if triggered and any(agent.wants_synchronisation() for agent in self.agents):
            self.share()
        return chosen

    def tell(self, slot: int, t: int, chosen: int) -> None:
        """Tell an agent what its action is rewarded with."""
        reward = self.bandit.reward(slot, t, chosen)
        self.agents[slot].tell(self.bandit.actions[chosen], reward)

    def play(self, slot: int, t: int) -> int:
        """Let one agent evaluate, and all synchronise if it is time."""
        agent = self.agents[slot]
        chosen: int = agent.choose(self.bandit.actions)
        self.tell(slot, t, chosen)
        sharing = self.simulation.sharing
        due = sharing == "always" and self.can_synchronise(agent)
        if due or (sharing == "triggered" and agent.wants_synchronisation()):
            self.share()
        return chosen

    def share(self) -> None:
        """Synchronise, and count it."""
        self.synchronise()
        self.num_synchronisations += 1

    def can_synchronise(self, agent: Any) -> bool:
        """Return whether there is something to share."""
        return True

    def before_rounds(self) -> float:
        """Do what precedes the first round, and return its regret."""
        return 0.0

    def end_round(self, t: int) -> None:
        """Do what is due after round t >= 0."""

    def synchronise(self) -> None:
        """Let all agents and their server share what they know."""
        self.simulation.settings.synchronise(self.agents, self.channel.send)


@dataclass(frozen=True)
class TurnSimulation:
    """Agents in one bandit, in rounds of one evaluation each.

    Attributes
    ----------
    settings : GLMUCBSettings or KernelUCBSettings
        Settings of the agents, by their algorithm: it makes them, and has them
        synchronise.
    task : NonlinearBanditTask
        Bandits, one per seed.
    num_agents : int
        N >= 2.
    num_rounds : int
        T >= 1.
    sharing : {"triggered", "always", "never"}
        Times of synchronisations: as an agent's trigger says; after every evaluation;
        never.
    at_once : bool
        Whether all agents choose before the first of them is rewarded, as in Flower,
        and synchronise between rounds; not with ``"always"``. Else they take turns.
    """

    settings: Any
    task: NonlinearBanditTask
    num_agents: int = field(metadata=integer(2))
    num_rounds: int = field(metadata=integer(1))
    sharing: Sharing = field(default="triggered", metadata=choice(Sharing))
    at_once: bool = field(default=False, metadata=flag())

    def __post_init__(self) -> None:
        check_fields(self)
        is_valid = not (self.at_once and self.sharing == "always")
        require(
            is_valid, "sharing", self.sharing, "another one, where agents play at once"
        )

    def agents(self, seed: int) -> list[Any]:
        """Return the agents, before the first round.

        They have methods ``choose``, ``tell`` and ``wants_synchronisation``.
        """
        return list(self.settings.agents(self.num_agents, self.task.dimension, seed))

    def federation(self, seed: int) -> Federation:
        """Return the agents and what they send each other, before the first round."""
        return Federation(self, seed)

    @one_blas_thread
    def run(self, seed: int) -> FederationRun:
        """Play all rounds."""
        return self.federation(seed).run()


@dataclass(frozen=True)
class EachOnce:
    """Agents that share what each action was rewarded with, until all are known.

    Attributes
    ----------
    task : NonlinearBanditTask
        Bandits, one per seed.
    num_agents, num_rounds : int
        Number N of agents, and number T of rounds, both >= 1.
    """

    task: NonlinearBanditTask
    num_agents: int
    num_rounds: int

    def run(self, seed: int) -> FederationRun:
        """Play all rounds.

        An action and its reward go to the server, and from there to all others: 2 N
        scalars, and one synchronisation.
        """
        bandit, agents = NonlinearBandit(self.task, seed), self.num_agents
        turns = np.arange(self.num_rounds * agents).reshape(-1, agents)
        num_tried = min(len(bandit.actions), turns.size)
        rewards = [bandit.reward(i % agents, i // agents, i) for i in range(num_tried)]
        actions = np.where(turns < num_tried, turns, np.argmax(rewards))
        regret = (bandit.means.max() - bandit.means)[actions].sum(axis=1)
        shared = np.minimum(turns[:, -1] + 1, num_tried)
        return FederationRun(actions, regret, 2 * agents * shared, num_tried)


@dataclass(frozen=True)
class LinearModel:
    """f(x; w) = w'[x; 1]: with it Fed-GO-UCB without phase I is DisLinUCB.

    Attributes
    ----------
    dimension : int
        D >= 1.
    """

    dimension: int

    @property
    def num_parameters(self) -> int:
        """D, and one for the constant."""
        return self.dimension + 1

    def initial(self, rng: np.random.Generator) -> FloatArray:
        """Return zero: so statistics at w0 are those of ridge regression."""
        return np.zeros(self.num_parameters)

    def values(self, w: FloatArray, x: FloatArray) -> FloatArray:
        """Return f(x; w), shape (n,); see `RewardModel`."""
        return self.values_and_gradients(w, x)[0]

    def values_and_gradients(
        self, w: FloatArray, x: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return f(x; w) and its gradients by w; see `RewardModel`."""
        gradients = np.column_stack([x, np.ones(len(x))])
        return (gradients * w).sum(axis=-1), gradients


class _NeuralFederation(Federation):
    simulation: NeuralBanditSimulation
    agents: list[FedGOUCBAgent]

    def __init__(self, simulation: NeuralBanditSimulation, seed: int) -> None:
        super().__init__(simulation, seed)
        self.server = simulation.server(self.agents[0].settings, seed)

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
            server = self.simulation.server(self.simulation.settings, self.seed)
            _fit({slot: agent}, server, Channel())

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


@dataclass(frozen=True)
class NeuralBanditSimulation(TurnSimulation):
    """Agents with a network in one bandit: see `TurnSimulation`.

    There are at least as many rounds as those of exploration. With privacy, agents
    synchronise by the schedule. ``"always"`` is after every evaluation of phase II.
    With ``"never"`` every agent fits its own w0, too. Their losses count by their
    evaluations, as in eq. 2. `run` raises FloatingPointError if
    phase I has no finite gradients, or diverges.

    Attributes
    ----------
    model : RewardModel
        Reward model of the task's dimension.
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

    settings: FedGOUCBSettings
    model: RewardModel = field(kw_only=True)
    total_exploration: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        explored, rounds = self.settings.num_random_actions, self.num_rounds
        if self.total_exploration is not None:
            require_int("total_exploration", self.total_exploration, self.num_agents)
            expected = "at least 1, with total_exploration"
            require(explored > 0, "num_exploration", explored, expected)
        expected = f"at least num_exploration, {explored}"
        require(rounds >= explored, "num_rounds", rounds, expected)
        of_model, d = self.model.dimension, self.task.dimension
        require(of_model == d, "model.dimension", of_model, f"{d}, as in the task")
        exploration = self.settings.exploration
        is_valid = self.sharing != "always" or exploration == "optimism"
        expected = "'optimism', with sharing='always', where one agent stands for all"
        require(is_valid, "exploration", exploration, expected)
        if self.settings.privacy is not None:
            is_valid = self.sharing == "triggered"
            require(is_valid, "sharing", self.sharing, "'triggered', with privacy")
            self.settings.privacy.schedule(rounds)

    def with_linear_model(self) -> NeuralBanditSimulation:
        """Return DisLinUCB on the same task.

        It has a linear model, no phase I, and the threshold T log(N T) / (d N) of its
        analysis. Ridge and beta stay as they are here: a comparison should give it the
        ones that suit it.
        """
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

    def agents(self, seed: int) -> list[FedGOUCBAgent]:
        """Return the agents; the noise of private ones repeats, for experiments."""
        settings = self.settings.for_study(self.num_agents, self.num_rounds)
        return [
            FedGOUCBAgent(
                settings,
                self.model,
                seed,
                slot,
                num_agents=self.num_agents,
                entropy=SeededEntropy(seed, slot),
            )
            for slot in range(self.num_agents)
        ]

    def federation(self, seed: int) -> Federation:
        """Return the agents and what they send each other, before the first round."""
        return _NeuralFederation(self, seed)

    def server(self, settings: FedGOUCBSettings, seed: int) -> FedGOUCBServer:
        """Return a server half."""
        size = self.model.num_parameters
        study = FedGOUCBStudy(settings, self.num_agents, size, None, seed)
        return FedGOUCBServer(study, self.model, self.num_rounds)

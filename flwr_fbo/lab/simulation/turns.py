"""Agents that take turns in one non-linear bandit, every scalar they send counted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray, one_blas_thread
from flwr_fbo._common.validation import require, require_int
from flwr_fbo.lab.simulation.progress import telling
from flwr_fbo.lab.tasks.nonlinear_bandit import NonlinearBandit, NonlinearBanditTask

Sharing = Literal["triggered", "always", "never"]


class Agent(Protocol):
    """One that plays, and says when it has learned enough by itself."""

    def choose(self, actions: FloatArray) -> int:
        """Return the index of an action of shape (K, D)."""

    def tell(self, action: FloatArray, reward: float) -> None:
        """Record what an action was rewarded with."""

    def wants_synchronisation(self) -> bool:
        """Return whether it is time to share."""


A = TypeVar("A", bound=Agent)
Server = TypeVar("Server")
Settings = TypeVar("Settings")


class Channel:
    """What agents and server send each other passes here, and is counted.

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
    """What happened in one run.

    Attributes
    ----------
    actions : ndarray of int, shape (T, N)
        The index of the action that each agent played in each round.
    regret : ndarray of shape (T,)
        Of each round, added over the agents.
    num_scalars : ndarray of int, shape (T,)
        Sent by the end of each round, from the run's beginning on.
    num_synchronisations : int
    regret_before : float
        Of what was evaluated before the first round, added over the agents.
    """

    actions: NDArray[Any]
    regret: FloatArray
    num_scalars: NDArray[np.int64]
    num_synchronisations: int
    regret_before: float = 0.0


@dataclass(frozen=True)
class TurnSimulation(ABC, Generic[Settings]):
    """Agents in one bandit, in rounds of one evaluation each.

    Attributes
    ----------
    settings : object
        Of the agents, by their algorithm.
    task : NonlinearBanditTask
    num_agents : int
        N >= 2.
    num_rounds : int
        T >= 1.
    sharing : {"triggered", "always", "never"}
        When to synchronise: as an agent's trigger says; after every evaluation; never.
    """

    settings: Settings
    task: NonlinearBanditTask
    num_agents: int
    num_rounds: int
    sharing: Sharing = "triggered"

    def __post_init__(self) -> None:
        require_int("num_agents", self.num_agents, 2)
        require_int("num_rounds", self.num_rounds, 1)
        ok = self.sharing in get_args(Sharing)
        require(ok, "sharing", self.sharing, f"one of {get_args(Sharing)}")

    @abstractmethod
    def federation(self, seed: int) -> Federation[Any, Any]:
        """Return the agents and their server, before the first round."""

    @one_blas_thread
    def run(self, seed: int) -> FederationRun:
        """Play all rounds."""
        return self.federation(seed).run()


class Federation(ABC, Generic[A, Server]):
    """Agents in one run, each with one evaluation a round; a method says what is sent.

    Parameters
    ----------
    simulation : TurnSimulation
    agents : sequence of Agent
    server : object
        The agents' server half.
    seed : int
        Of the run.

    Attributes
    ----------
    simulation, agents, server, seed
        As given.
    channel : Channel
        What is sent has to pass it.
    bandit : NonlinearBandit
    """

    def __init__(
        self,
        simulation: TurnSimulation[Any],
        agents: Sequence[A],
        server: Server,
        seed: int,
    ) -> None:
        self.simulation, self.agents, self.server = simulation, agents, server
        self.seed = seed
        self.channel = Channel()
        self.bandit = NonlinearBandit(simulation.task, seed)
        self._num_synchronisations = 0

    def run(self) -> FederationRun:
        """Play all rounds."""
        rounds, bandit = self.simulation.num_rounds, self.bandit
        actions = np.empty((rounds, len(self.agents)), dtype=np.int64)
        regret, sent = np.zeros(rounds), np.zeros(rounds, dtype=np.int64)
        regret_before = self.before_rounds()
        for t in telling(range(rounds)):
            for slot in range(len(self.agents)):
                actions[t, slot] = chosen = self.play(slot, t)
                regret[t] += bandit.regret(chosen)
            self.end_round(t)
            sent[t] = self.channel.num_scalars
        syncs = self._num_synchronisations
        return FederationRun(actions, regret, sent, syncs, regret_before)

    def play(self, slot: int, t: int) -> int:
        """Let one agent evaluate, and all synchronise if it is time."""
        agent, bandit = self.agents[slot], self.bandit
        chosen = agent.choose(bandit.actions)
        agent.tell(bandit.actions[chosen], bandit.reward(slot, t, chosen))
        sharing = self.simulation.sharing
        due = sharing == "always" and self.can_synchronise(agent)
        if due or (sharing == "triggered" and agent.wants_synchronisation()):
            self.share()
        return chosen

    def share(self) -> None:
        """Synchronise, and count it."""
        self.synchronise()
        self._num_synchronisations += 1

    def can_synchronise(self, agent: A) -> bool:
        """Return whether there is something to share."""
        return True

    def before_rounds(self) -> float:
        """Do what precedes the first round, and return its regret."""
        return 0.0

    def end_round(self, t: int) -> None:
        """Do what is due after round t >= 0."""

    @abstractmethod
    def synchronise(self) -> None:
        """Let all agents and their server share what they know."""

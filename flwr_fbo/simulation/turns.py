"""Agents that take turns in one non-linear bandit, every scalar they send counted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._validation import require, require_int
from flwr_fbo.tasks.nonlinear_bandit import NonlinearBandit, NonlinearBanditTask

FloatArray = NDArray[np.float64]
Sharing = Literal["triggered", "always", "never"]


def check_turns(num_rounds: int, sharing: Sharing) -> None:
    """Raise ValueError unless a simulation can have these."""
    require_int("num_rounds", num_rounds, 1)
    ok = sharing in get_args(Sharing)
    require(ok, "sharing", sharing, f"one of {get_args(Sharing)}")


class Agent(Protocol):
    """One that plays, and says when it has learned enough by itself."""

    def choose(self, actions: FloatArray) -> int:
        """Return the index of an action of shape (K, D)."""

    def tell(self, action: FloatArray, reward: float) -> None:
        """Record what an action was rewarded with."""

    def wants_synchronisation(self) -> bool:
        """Return whether it is time to share."""


A = TypeVar("A", bound=Agent)


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
    """

    actions: NDArray[Any]
    regret: FloatArray
    num_scalars: NDArray[np.int64]
    num_synchronisations: int


class Federation(ABC, Generic[A]):
    """Agents in one run, each with one evaluation a round; a method says what is sent.

    Parameters
    ----------
    agents : sequence of Agent
    task : NonlinearBanditTask
    num_rounds : int
        T.
    sharing : {"triggered", "always", "never"}
        When to synchronise: as an agent's trigger says; after every evaluation; never.
    seed : int
        Of the run.

    Attributes
    ----------
    agents : sequence of Agent
    channel : Channel
        What is sent has to pass it.
    """

    def __init__(
        self,
        agents: Sequence[A],
        task: NonlinearBanditTask,
        num_rounds: int,
        sharing: Sharing,
        seed: int,
    ) -> None:
        self.agents = agents
        self.channel = Channel()
        self._bandit = NonlinearBandit(task, seed)
        self._num_rounds, self._sharing = num_rounds, sharing
        self._num_synchronisations = 0

    def run(self) -> FederationRun:
        """Play all rounds."""
        rounds, bandit = self._num_rounds, self._bandit
        actions = np.empty((rounds, len(self.agents)), dtype=np.int64)
        regret, sent = np.zeros(rounds), np.zeros(rounds, dtype=np.int64)
        for t in range(rounds):
            for slot in range(len(self.agents)):
                actions[t, slot] = chosen = self._play(slot, t)
                regret[t] += bandit.regret(chosen)
            self.end_round(t)
            sent[t] = self.channel.num_scalars
        return FederationRun(actions, regret, sent, self._num_synchronisations)

    def _play(self, slot: int, t: int) -> int:
        """Let one agent evaluate, and all synchronise if it is time."""
        agent, bandit = self.agents[slot], self._bandit
        chosen = agent.choose(bandit.actions)
        agent.tell(bandit.actions[chosen], bandit.reward(slot, t, chosen))
        due = self._sharing == "always" and self.can_synchronise(agent)
        if due or (self._sharing == "triggered" and agent.wants_synchronisation()):
            self.share()
        return chosen

    def share(self) -> None:
        """Synchronise, and count it."""
        self.synchronise()
        self._num_synchronisations += 1

    def can_synchronise(self, agent: A) -> bool:
        """Return whether there is something to share."""
        return True

    def end_round(self, t: int) -> None:
        """Do what is due after round t >= 0."""

    @abstractmethod
    def synchronise(self) -> None:
        """Let all agents and their server share what they know."""

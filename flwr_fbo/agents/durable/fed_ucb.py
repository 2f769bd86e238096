"""A FedUCB agent with its journal, and the policy by which a site plays it.

All of it is in one journal, so that rewards may arrive hours after their actions, at
another process than the one that chose, and Flower's client, a fresh process for every
message, only synchronises:

    trial       one row an action; its number is the ticket
    window-j    what trials rewarded between releases j and j + 1 add to the running sum
    ledger      this agent's releases, and their draws (`ContinualRelease`)
    total       what the server gave back last, and how many of our releases are in it
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flwr_fbo._validation import is_number, require, require_index
from flwr_fbo.agents.bandits.fed_ucb import LinearUCBAgent
from flwr_fbo.agents.durable.recorded_agent import (
    NO_SLOT,
    RecordedBanditAgent,
    say_left_aside,
)
from flwr_fbo.journal.journal import Journal, open_patiently, patiently
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.privacy.continual import ContinualRelease
from flwr_fbo.privacy.noise import Entropy, OsEntropy, SeededEntropy
from flwr_fbo.protocol.linear_bandit_study import LinearBanditStudy
from flwr_fbo.protocol.linear_ucb_settings import Confidence, DeterminantTrigger

FloatArray = NDArray[np.float64]

FILE_NAME, KIND = "linear-bandit.sqlite", "linear-bandit"
_PAUSE = 0.1


class BanditEnvironment(Protocol):
    """A bandit that is played without waiting, for experiments.

    What it gives in trial t may depend on nothing but t: a trial that was cut off is
    played again.
    """

    def contexts(self, t: int) -> FloatArray:
        """Return the actions of trial t >= 0, shape (K, d)."""

    def reward(self, x: FloatArray) -> float:
        """Return what action ``x`` gives in the trial whose contexts were last."""


class RecordedBandit(RecordedBanditAgent):
    """One agent and its journal, while this process holds that.

    Parameters
    ----------
    journal : Journal
        With `identity_of` a study.
    study : LinearBanditStudy, optional
        That one, where it is known.
    """

    kind: ClassVar[str] = KIND
    file_name: ClassVar[str] = FILE_NAME
    study: LinearBanditStudy

    def __init__(
        self, journal: Journal, study: LinearBanditStudy | None = None
    ) -> None:
        super().__init__(journal)
        self.study = study or LinearBanditStudy.from_dict(journal.identity)

    @property
    def num_releases(self) -> int:
        """Releases made so far."""
        return self._journal.num_releases

    @property
    def num_trials(self) -> int:
        """Actions chosen so far."""
        return self._journal.num_trials

    @property
    def awaited(self) -> dict[int, FloatArray]:
        """The actions whose rewards have not come, by ticket."""
        return self._journal.awaited()

    def choose(self, actions: ArrayLike) -> tuple[int, int]:
        """Choose one of the actions; return its index and a ticket for its reward."""
        index = self._agent_of(self.num_trials).choose(actions)
        action = np.asarray(actions, dtype=float)[index]
        return index, self._journal.add_trial(self.num_releases, action)

    def reward(self, ticket: int, value: float) -> None:
        """Record what the action of a ticket was rewarded with."""
        ok = isinstance(value, Real) and not isinstance(value, bool)
        require(ok, "value", value, "a number")
        value = float(value)
        ok = type(ticket) is int and 0 <= ticket < 2**63
        require(ok, "ticket", ticket, "an int, as `choose` gave it")
        action, release = self._journal.awaited_point(ticket), self.num_releases
        allowed = "a ticket of `choose` whose reward has not come yet"
        require(action is not None, "ticket", ticket, allowed)
        assert action is not None
        releases = self.study.settings.releases
        [product] = releases.outer_products([action], [value])
        added = self._window(release).copy()
        streams = added.reshape(releases.num_streams, *product.shape)
        streams[ticket % releases.num_streams] += product
        window = {f"window-{release}": added}
        self._journal.complete_trial(ticket, release, value, window)
        self._state |= window
        # Agents that are made later find the trial in the journal.
        if self.study.settings.local_data == "raw" and "agents" in vars(self):
            self._agent_of(ticket).tell(action, value)

    def _window(self, release: int) -> FloatArray:
        """Return what trials rewarded after a release, and before the next, add."""
        name = f"window-{release}"
        if name not in self._state:
            added = self._journal.load_array(name)
            shape = self.study.settings.releases.sum_shape
            self._state[name] = np.zeros(shape) if added is None else added
        return self._state[name]

    def _agent_of(self, ticket: int) -> LinearUCBAgent:
        """Return whose turn a trial is: estimators are played in turn."""
        return self.agents[ticket % len(self.agents)]

    def join(self, slot: int, number: int) -> None:
        """Take the slot that the server names; see `RecordedBanditAgent.join`."""
        require_index("slot", slot, self.study.num_agents)
        super().join(slot, number)
        vars(self).pop("agents", None)  # of no slot

    def receive(self, total: FloatArray, included: int) -> None:
        """Take the sum of all agents' releases, ``included`` of our own among them.

        One that nothing can be learned from, as an agent that lies may make it, is left
        aside, and what was received before stays.
        """
        try:
            agents = self._agents(total)
        except np.linalg.LinAlgError:
            say_left_aside()
            return
        self._put({"total": np.asarray(total), "included": np.array(included)})
        self.agents = agents
        self._tell_own()

    @cached_property
    def agents(self) -> list[LinearUCBAgent]:
        """The agent, or the several in turn, with what it has learned so far."""
        self.agents = self._agents(self._state.get("total"))
        self._tell_own()
        return self.agents

    def _confidence(self) -> Confidence:
        return self.study.settings.confidence(self.study.num_agents)

    def _agents(self, total: FloatArray | None) -> list[LinearUCBAgent]:
        confidence, shape = self._confidence(), self.study.settings.releases.sum_shape
        total = np.zeros(shape) if total is None else total
        require(np.shape(total) == shape, "total", np.shape(total), f"shape {shape}")
        return [LinearUCBAgent(confidence, t) for t in total.reshape(-1, *shape[-2:])]

    def _tell_own(self) -> None:
        """Tell the agent its own trials that are not in the total, if it uses them."""
        if self.study.settings.local_data != "raw":
            return
        included = int(self._state.get("included", 0))
        for trial in self._journal.trials(since=included):
            if trial.state == "complete":
                self._agent_of(trial.number).tell(trial.point, trial.value)

    def release(self, k: int) -> FloatArray:
        """Return this agent's release k: drawn and recorded, or the recorded one."""
        # Of later releases there is nothing here, whatever the server asks for.
        names = [f"window-{j}" for j in range(min(k, self.num_releases + 1))]
        zero = np.zeros(self.study.settings.releases.sum_shape)
        state = self._journal.load_state()
        running_sum = np.sum([state.get(name, zero) for name in names], axis=0)
        return self._mechanism.release(k, running_sum)

    @cached_property
    def _mechanism(self) -> ContinualRelease:
        releases = self.study.settings.releases
        return ContinualRelease(releases, self._entropy(), self._journal)

    def require_entropy(self) -> None:
        """Raise ImportError unless there is what the noise is made with."""
        self._entropy()

    def _entropy(self) -> Entropy | None:
        if self.study.settings.releases.noise_std == 0:
            return None
        seed = self.study.noise_seed
        return OsEntropy() if seed is None else SeededEntropy(seed, self.slot)

    def wants_synchronisation(self, trigger: DeterminantTrigger) -> bool:
        """Return whether an estimator has seen enough since the last one."""
        return any(agent.wants_synchronisation(trigger) for agent in self.agents)

    def play(self, environment: BanditEnvironment, num_trials: int) -> None:
        """Play in an environment until there are so many trials."""
        for ticket, action in self.awaited.items():  # of a process that was ended
            environment.contexts(ticket)
            self.reward(ticket, environment.reward(action))
        for t in range(self.num_trials, num_trials):
            actions = environment.contexts(t)
            index, ticket = self.choose(actions)
            self.reward(ticket, environment.reward(actions[index]))


class NotEnrolledError(JournalError):
    """A site has no place in a study."""


class LinearBanditPolicy:
    """Chooses actions at one site, and learns from their rewards.

    Whatever Flower does, the site goes on: it opens the policy, chooses, and gives each
    reward back when it is known. Every call is on disk when it returns. Any number of
    processes may have the policy open: each holds the journal for the time of a call,
    and reads it anew in the first call after another process has changed it.

    Parameters
    ----------
    path : Path
        The journal; see `open`.
    patience : float
        Seconds, >= 0, to wait while another process has the journal.

    Examples
    --------
    >>> policy = LinearBanditPolicy.open("/var/lib/fbo")  # doctest: +SKIP
    >>> index, ticket = policy.choose(actions)  # doctest: +SKIP
    >>> policy.reward(ticket, 0.7)  # doctest: +SKIP
    """

    def __init__(self, path: Path, patience: float) -> None:
        self._path = path
        self._patience = patience
        # What the last call ended with; none during a call, as threads may call too.
        self._kept: list[RecordedBandit] = []

    @classmethod
    def open(cls, folder: str | Path, patience: float = 30.0) -> LinearBanditPolicy:
        """Open the policy of the study that this site is enrolled in.

        Parameters
        ----------
        folder : str or Path
            That of the site's ``linear_bandit_app``.
        patience : float
            Seconds, >= 0, to wait for the journal: until the site has enrolled, and
            later in each call, while another process has it.

        Raises
        ------
        ValueError
            If an argument is not allowed.
        JournalError
            If there is none, or the server did not take the site: it decides what all
            agents have in common, and tells it in the first round of `FedUCB`.
        """
        ok = is_number(patience) and patience >= 0
        require(ok, "patience", patience, "a number of seconds >= 0")
        deadline = time.monotonic() + patience
        policy = cls(Path(folder) / FILE_NAME, patience)
        while True:
            try:
                with policy._held():
                    return policy
            except NotEnrolledError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_PAUSE)

    def choose(self, actions: ArrayLike) -> tuple[int, int]:
        """Choose the action with the largest upper confidence bound.

        Parameters
        ----------
        actions : array of shape (K, d)
            K >= 1 actions, each of norm at most L.

        Returns
        -------
        index : int
            The action, from 0 to K - 1.
        ticket : int
            For its reward.

        Raises
        ------
        ValueError
            If there are no actions, or one is longer.
        JournalError
            If the choice could not be recorded.
        """
        with self._held() as bandit:
            return bandit.choose(actions)

    def reward(self, ticket: int, value: float) -> None:
        """Record what an action was rewarded with, however late.

        It is in the releases from the next one on. An action whose reward never comes
        is in none.

        Parameters
        ----------
        ticket : int
            Of `choose`.
        value : float
            In [-B, B].

        Raises
        ------
        ValueError
            If the ticket is unknown or was used, or the value is not within the bounds,
            which the guarantee rests on; nothing is recorded then. Whoever would rather
            clip does so before.
        JournalError
            If the reward could not be recorded.
        """
        with self._held() as bandit:
            bandit.reward(ticket, value)

    @property
    def awaited(self) -> dict[int, FloatArray]:
        """The actions whose rewards have not come, each of shape (d,), by ticket."""
        with self._held() as bandit:
            return bandit.awaited

    @property
    def num_trials(self) -> int:
        """Actions chosen so far."""
        with self._held() as bandit:
            return bandit.num_trials

    @contextmanager
    def _held(self) -> Iterator[RecordedBandit]:
        reason = (
            f"{self._path}: this site has no place in a study of FedUCB. It enrols in "
            "the first round; a journal that was lost must be given back."
        )
        # An empty one is being written by the client.
        if not self._path.is_file() or self._path.stat().st_size == 0:
            raise NotEnrolledError(reason)
        kept = self._taken()
        if kept is None:
            journal = open_patiently(None, self._path, self._patience)
        else:
            journal = kept.journal
            if patiently(journal.reopen, self._patience):
                kept = None  # another process has changed it
        with journal:
            bandit = kept or RecordedBandit(journal)
            if bandit.slot == NO_SLOT:
                raise NotEnrolledError(reason)
            yield bandit
        # Not after an exception: then the next call reads what is on disk.
        self._kept = [bandit]

    def _taken(self) -> RecordedBandit | None:
        """Take what the last call ended with, so that nobody else does."""
        try:
            return self._kept.pop()
        except IndexError:
            return None

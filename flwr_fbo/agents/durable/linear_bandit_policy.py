"""The policy by which a site plays its linear bandit."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from numpy.typing import ArrayLike

from flwr_fbo._validation import is_number, require
from flwr_fbo.agents.durable.decentralized_fed_ucb import recorded_bandit
from flwr_fbo.agents.durable.fed_ucb import FILE_NAME, FloatArray, RecordedBandit
from flwr_fbo.agents.durable.policy_summary import PolicySummary
from flwr_fbo.agents.durable.recorded_agent import NO_SLOT
from flwr_fbo.journal.journal import open_patiently, patiently
from flwr_fbo.journal.journal_file import JournalError

_PAUSE = 0.1


class NotEnrolledError(JournalError):
    """A site has no place in a study."""


class LinearBanditPolicy:
    """Chooses actions at one site, and learns from their rewards.

    A site opens the policy, chooses, and returns each reward when it is known,
    independently of Flower. Every call is on disk when it returns. Several processes
    may open the policy. Each holds the journal during a call, and reads it again after
    another process has changed it.

    Examples
    --------
    >>> import tempfile
    >>> from flwr_fbo import (
    ...     ContinualSettings, FedUCB, InProcessGrid, LinearBanditPolicy,
    ...     LinearUCBSettings, linear_bandit_app,
    ... )
    >>> folder = tempfile.mkdtemp()  # the site's own folder
    >>> grid = InProcessGrid(linear_bandit_app(folder=folder), num_nodes=1)
    >>> releases = ContinualSettings(
    ...     num_releases=2, dimension=2, epsilon=4.0, delta=1e-5
    ... )
    >>> strategy = FedUCB(LinearUCBSettings(releases), num_agents=1, interval=0)
    >>> result = strategy.start(grid, num_rounds=3)
    >>> policy = LinearBanditPolicy.open(folder)
    >>> index, ticket = policy.choose([[1.0, 0.0], [0.0, 1.0]])
    >>> policy.reward(ticket, 0.7)  # when it is known, also from another process
    >>> policy.num_trials
    1
    >>> policy.summary().estimate.shape
    (2,)

    Parameters
    ----------
    path : Path
        Path of the journal; see `open`.
    patience : float
        Seconds, >= 0, to wait while another process has the journal.
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
            The folder of the site's ``linear_bandit_app``.
        patience : float
            Seconds, >= 0, to wait for the journal: until the site has enrolled, and
            later in each call, while another process has it.

        Raises
        ------
        ValueError
            If an argument is not allowed.
        JournalError
            If there is no journal, or the server did not enrol the site. The server
            sends the study's settings in the first round of `FedUCB`.
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
            Index of the action, from 0 to K - 1.
        ticket : int
            Ticket for the action's reward.

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

        The next release includes it. An action without a reward is in no release.

        Parameters
        ----------
        ticket : int
            Ticket that `choose` returned.
        value : float
            The reward, in [-B, B].

        Raises
        ------
        ValueError
            If the ticket is unknown or already used, or the value is outside the bounds
            that the guarantee needs. Then nothing is recorded. Clip the value before,
            if you want to.
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

    def summary(self) -> PolicySummary:
        """Return what the site has learned, and what it has spent; see `PolicySummary`.

        ``print(policy.summary())`` shows it as a text.
        """
        with self._held() as bandit:
            return bandit.summary()

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
            bandit = kept or recorded_bandit(journal)
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

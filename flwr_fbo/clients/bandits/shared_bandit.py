"""A site's bandit, whose journal several processes hold in turn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flwr_fbo.clients.bandits.recorded_bandit import RecordedBandit
from flwr_fbo.clients.bandits.recorded_peer import recorded_bandit
from flwr_fbo.clients.recorded_agent import NO_SLOT
from flwr_fbo.journal.journal import open_patiently, patiently
from flwr_fbo.journal.journal_file import JournalError


class NotEnrolledError(JournalError):
    """A site has no place in a study."""


class SharedBandit:
    """The bandit of one journal, held for one call, and kept in memory for the next.

    Parameters
    ----------
    path : Path
        Path of the journal.
    patience : float
        Seconds, >= 0, to wait while another process has the journal.
    """

    def __init__(self, path: Path, patience: float) -> None:
        self._path = path
        self._patience = patience
        # What the last call ended with; none during a call, as threads may call too.
        self._kept: list[RecordedBandit] = []

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

"""The journal of an agent or a server: trials, ledger and state in one durable file.

Every change is one transaction, on disk (``synchronous=FULL``) before the call returns.
One process at a time holds a journal; the file is readable by its owner only. Without a
file the same journal lives in memory and can be carried as bytes. Each row has a digest
that is checked before the row is used: `flwr_fbo.journal.checksums` says what it finds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from numpy.typing import NDArray

from flwr_fbo.journal.journal_file import JournalHeldError
from flwr_fbo.journal.ledger_table import LedgerRow, LedgerTable
from flwr_fbo.journal.state_table import state_rows
from flwr_fbo.journal.trial_table import TrialTable

_log = logging.getLogger("flwr.fbo")
T = TypeVar("T")

# Seconds between two attempts to open what another process holds.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 1.0


class Journal(TrialTable, LedgerTable):
    """Trials, releases and named arrays of one owner.

    Parameters
    ----------
    identity : mapping of str to JSON value, or None
        What the journal belongs to: stored in a new one, compared with an old one.
        None takes an old one as it is.
    path : Path, optional
        The file; in memory without one.
    content : bytes, optional
        What `to_bytes` returned, for a journal in memory.

    Attributes
    ----------
    identity : dict of str to JSON value

    Raises
    ------
    JournalError
        If the file cannot be opened or written, is damaged, is held by another
        process (`JournalHeldError`), has another schema version or belongs to something
        else.
    """

    def complete_trials(
        self,
        iteration: int,
        values: Sequence[tuple[int, float]],
        arrays: Mapping[str, NDArray[Any]],
    ) -> None:
        """Record what trials gave, by number, in an iteration, and arrays: at once."""
        rows = state_rows(arrays)
        with self._transaction():
            for number, value in values:
                self._end(number, iteration, "complete", float(value))
            self._put(rows)

    def change_state(
        self,
        arrays: Mapping[str, NDArray[Any]],
        gone: Iterable[str],
        releases: Sequence[LedgerRow],
    ) -> None:
        """Store named arrays, remove others, and add releases: one transaction."""
        rows = state_rows(arrays)
        with self._transaction():
            self._put(rows, gone)
            for row in releases:
                self._add_release(row)

    def add_release(self, row: LedgerRow, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Add one release, and arrays beside those there are: one transaction."""
        rows = state_rows(arrays)
        with self._transaction():
            self._put(rows, replace=False)
            self._add_release(row)


def open_patiently(
    identity: Mapping[str, Any] | None, path: Path, patience: float
) -> Journal:
    """Open a journal, waiting up to ``patience`` seconds while another holds it.

    Raises
    ------
    JournalError
        See `Journal`; `JournalHeldError` if it is still held then.
    """
    return patiently(lambda: Journal(identity, path), patience)


def patiently(attempt: Callable[[], T], patience: float) -> T:
    """Return what ``attempt`` gives, once no other process holds the journal.

    Raises
    ------
    JournalError
        What ``attempt`` raises; `JournalHeldError` only after ``patience`` seconds.
    """
    deadline, pause = time.monotonic() + patience, _FIRST_PAUSE
    while True:
        try:
            return attempt()
        except JournalHeldError as error:
            if time.monotonic() >= deadline:
                raise
            if pause < _LONGEST_PAUSE <= 2 * pause:  # once, and not of a short wait
                _log.warning("%s Waiting for it, %g s at most.", error, patience)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

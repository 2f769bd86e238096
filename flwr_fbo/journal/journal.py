"""The journal of an agent or a server: trials, releases and named arrays.

In a file every change is one transaction, on disk (``synchronous=FULL``) before the
call returns; one process at a time holds it, and it is readable by its owner only. Each
row has a digest that is checked before the row is used: `flwr_fbo.journal.checksums`
says what it finds. Without a file the same journal is in memory, and can be carried as
bytes.

trial     evaluations, and actions whose rewards are awaited
ledger    all releases
state     named arrays: what the owner needs to go on
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import time
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from flwr_fbo.journal.checksums import TRIALS_IN_PART, DamageError, Part
from flwr_fbo.journal.journal_file import (
    JournalError,
    JournalFile,
    JournalHeldError,
)
from flwr_fbo.journal.journal_memory import JournalMemory
from flwr_fbo.journal.npy import to_npy
from flwr_fbo.journal.same_study import check_same_study
from flwr_fbo.journal.tables import (
    LedgerRow,
    Trial,
    TrialSource,
    arrays_of,
    ended,
    release_row,
    releases_of,
    state_rows,
    trials_of,
)

_log = logging.getLogger("flwr.fbo")
T = TypeVar("T")

# Seconds between two attempts to hold what another process holds, and after how many a
# wait is worth a warning.
_PAUSE, _LONG_WAIT = 0.002, 1.0
# How often a file is read that is being written to, and the seconds in between.
_ATTEMPTS, _PAUSE_OF_READERS = 10, 0.1


class Journal(AbstractContextManager["Journal"]):
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
    path : Path or None
        The file, if there is one.
    identity : dict of str to JSON value
        What the journal belongs to.

    Raises
    ------
    JournalError
        If the file cannot be opened or written, is damaged, is held by another
        process (`JournalHeldError`), has another schema version or belongs to something
        else.
    """

    def __init__(
        self,
        identity: Mapping[str, Any] | None,
        path: Path | None = None,
        content: bytes | None = None,
    ) -> None:
        self._store: JournalFile | JournalMemory
        if path is None:
            self._store = JournalMemory(identity, content)
        else:
            self._store = JournalFile(identity, path)
        self.path, self.identity = path, self._store.identity
        if identity is not None:
            try:
                check_same_study(path, self.identity, identity, self._store.made_by)
            except JournalError:
                self._store.close()
                raise

    @classmethod
    def snapshot(cls, path: Path) -> Self:
        """Return what a file has now, for reading only: also while a process holds it.

        Raises
        ------
        JournalError
            If it cannot be read, or is damaged; `JournalHeldError` if a process writes
            to it without end.
        """
        for _attempt in range(_ATTEMPTS):
            with suppress(JournalError):
                store = JournalFile(None, path, is_snapshot=True)
                break
            time.sleep(_PAUSE_OF_READERS)
        else:
            # A process that was killed may have left half a transaction: SQLite undoes
            # it.
            store = JournalFile(None, path, must_be_own=False)
        journal = cls.__new__(cls)
        journal._store, journal.path, journal.identity = store, path, store.identity
        return journal

    def require_kind(self, kind: str) -> None:
        """Raise JournalError unless the journal belongs to a ``kind``."""
        found = self.identity.get("kind")
        if found != kind:
            raise JournalError(
                f"The journal {self.path} is of kind {found!r}, not {kind!r}."
            )

    def reopen(self) -> bool:
        """Hold the file again, after `close`; return whether it has changed since.

        Raises
        ------
        JournalError
            As a new `Journal` of an old file does.
        """
        assert isinstance(self._store, JournalFile)
        has_changed = self._store.reopen()
        self.identity = self._store.identity
        return has_changed

    def to_bytes(self) -> bytes:
        """Return the whole journal, for a later ``content``; of one in memory."""
        assert isinstance(self._store, JournalMemory)
        return self._store.to_bytes()

    def close(self) -> None:
        """Let the file go; nothing is lost without it."""
        self._store.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    # Trials

    def begin_trial(
        self,
        iteration: int,
        params: Mapping[str, Any],
        point: NDArray[np.float64],
        source: TrialSource,
        arrays: Mapping[str, NDArray[Any]] | None = None,
    ) -> int:
        """Record that an evaluation starts, and arrays: at once; return its number.

        If the last recorded evaluation was cut off, this is it, run again.
        """
        text, [content] = json.dumps(dict(params)), to_npy([point])
        states = state_rows(arrays or {})
        with self._store.transaction():
            self._store.put("state", *states)
            rows = self._store.rows("trial", lambda _, part: part.running > 0)
            cut_off = next((row for row in rows if row[4] == "running"), None)
            number = self.num_trials if cut_off is None else cut_off[0]
            cuts = 0 if cut_off is None else cut_off[6] + 1
            about = number, iteration, text, content
            row = (*about, "running", None, cuts, time.time(), None, source)
            write = self._store.insert if cut_off is None else self._store.put
            write("trial", row)
            return int(number)

    def end_trial(self, number: int, value: float) -> None:
        """Record what an evaluation gave; NaN is a failed one."""
        with self._store.transaction():
            old = self._store.row("trial", number)
            if old is not None:
                self._store.put("trial", ended(old, value))

    def complete_trials(
        self,
        iteration: int,
        values: Sequence[tuple[int, float]],
        arrays: Mapping[str, NDArray[Any]],
    ) -> None:
        """Record what trials gave, by number, in an iteration, and arrays: at once."""
        rows = state_rows(arrays)
        with self._store.transaction():
            for number, value in values:
                old = self._store.row("trial", number)
                if old is not None:
                    self._store.put("trial", ended(old, value, iteration))
            self._store.put("state", *rows)

    def begin_again(self, numbers: Iterable[int]) -> None:
        """Give trials, which must be there, the time of now as that of their start."""
        with self._store.transaction():
            for number in numbers:
                row = self._store.row("trial", number)
                assert row is not None
                *before, _, finished, source = row
                self._store.put("trial", (*before, time.time(), finished, source))

    def add_trials(
        self,
        iteration: int,
        decisions: Sequence[tuple[Mapping[str, Any], NDArray[np.float64]]],
        arrays: Mapping[str, NDArray[Any]],
        requests: Mapping[str, int] | None = None,
    ) -> list[int]:
        """Record decisions whose rewards are awaited, and arrays: at once.

        Parameters
        ----------
        iteration : int
            Iteration of the trials.
        decisions : sequence of (mapping, ndarray)
            What `Trial.params` and `Trial.point` are to be.
        arrays : mapping of str to ndarray
            Arrays that change with them.
        requests : mapping of str to int, optional
            For `trial_of_request`: the place of each key's first decision in
            ``decisions``, whose params have it as ``"key"``. Only in a file.

        Returns
        -------
        list of int
            The numbers of the trials.
        """
        texts = [json.dumps(dict(params)) for params, _ in decisions]
        contents, states = to_npy(p for _, p in decisions), state_rows(arrays)
        with self._store.transaction():
            self._store.put("state", *states)
            first, now = self.num_trials, time.time()
            rows = enumerate(zip(texts, contents, strict=True), first)
            for number, about in rows:
                row = number, iteration, *about
                self._store.insert("trial", (*row, "running", None, 0, now, None, None))
            for key, place in (requests or {}).items():
                assert isinstance(self._store, JournalFile)
                self._store.add_request(key, first + place)
        return list(range(first, first + len(texts)))

    def drop_trial(self, number: int) -> None:
        """Forget an evaluation that has started, and was none."""
        with self._store.transaction():
            row = self._store.row("trial", number)
            if row is not None and row[4] == "running":
                self._store.remove("trial", number)

    @property
    def num_trials(self) -> int:
        """How many trials there are, with and without a value."""
        return self._store.count("trial")

    def trial(self, number: int) -> Trial | None:
        """Return a trial, or None if there is none of that number."""
        with self._store.explained():
            row = self._store.row("trial", number)
            return None if row is None else trials_of([row])[0]

    def trial_of_request(self, key: str) -> Trial | None:
        """Return the first trial of the request with a key, or None; of a file."""
        assert isinstance(self._store, JournalFile)
        with self._store.explained():
            number = self._store.number_of(key)
            row = None if number is None else self._store.row("trial", number)
            trial = None if row is None else trials_of([row])[0]
            if number is not None and (trial is None or trial.params.get("key") != key):
                raise DamageError(f"trial {number} is not of the request {key!r}")
            return trial

    def trials(
        self, first: int = 0, running: bool = False, last: int | None = None
    ) -> list[Trial]:
        """Return trials in order of evaluation.

        Parameters
        ----------
        first : int
            Those of numbers from ``first`` on.
        running : bool
            Only those without a value.
        last : int, optional
            Those of numbers up to ``last``.
        """
        end = 2**63 if last is None else last

        def wanted(number: int, part: Part) -> bool:
            start = number * TRIALS_IN_PART
            is_between = start <= end and start + TRIALS_IN_PART > first
            return is_between and (part.running if running else part.num_rows) > 0

        with self._store.explained():
            rows = [
                row
                for row in self._store.rows("trial", wanted)
                if first <= row[0] <= end
                if row[4] == "running" or not running
            ]
            return trials_of(rows)

    # Named arrays

    def put(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Store the named arrays; others stay as they are."""
        rows = state_rows(arrays)
        with self._store.transaction():
            self._store.put("state", *rows)

    def load_state(self) -> dict[str, NDArray[Any]]:
        """Return all named arrays."""
        with self._store.explained():
            return arrays_of(self._store.rows("state"))

    def load_unnumbered(self) -> dict[str, NDArray[Any]]:
        """Return the arrays whose names end in no number."""
        with self._store.explained():
            rows = self._store.rows("state", lambda number, _: number == 0)
            return arrays_of([row for row in rows if row[1] == 0])

    def load_array(self, name: str) -> NDArray[Any] | None:
        """Return one array, or None if there is none, in a time that is bounded."""
        return self.load_arrays([name]).get(name)

    def load_arrays(self, names: Collection[str]) -> dict[str, NDArray[Any]]:
        """Return those of these arrays that there are; only their parts are read."""
        with self._store.explained():
            return arrays_of(self._store.rows_of("state", names))

    def change_state(
        self,
        arrays: Mapping[str, NDArray[Any]],
        gone: Iterable[str],
        releases: Sequence[LedgerRow],
    ) -> None:
        """Store named arrays, remove others, and add releases: one transaction."""
        rows = state_rows(arrays)
        with self._store.transaction():
            for name in gone:
                self._store.remove("state", name)
            self._store.put("state", *rows)
            for release in releases:
                _add_release(self._store, release)

    # Releases

    @property
    def num_releases(self) -> int:
        """How many releases there are."""
        return self._store.count("ledger")

    def ledger(self, iteration: int | None = None) -> list[LedgerRow]:
        """Return all releases, in order, or that of one iteration.

        Raises
        ------
        JournalError
            If they are not as they were written.
        """
        with self._store.explained():
            if iteration is not None:
                return releases_of(self._store.rows_of("ledger", [iteration]))
            return releases_of(self._store.rows("ledger"))

    def add_release(self, row: LedgerRow, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Add one release, and arrays beside those there are: one transaction."""
        rows = state_rows(arrays)
        with self._store.transaction():
            for state in rows:
                self._store.insert("state", state)
            _add_release(self._store, row)


def _add_release(store: JournalFile | JournalMemory, row: LedgerRow) -> None:
    last = store.last_release
    if row.iteration < last:
        raise JournalError(
            f"A release with iteration={row.iteration} comes too late: "
            f"iteration={last} is on record."
        )
    store.insert("ledger", release_row(row))


def open_patiently(
    identity: Mapping[str, Any] | None, path: Path, patience: float
) -> Journal:
    """Open a journal, waiting up to ``patience`` seconds while another holds it.

    Raises
    ------
    JournalError
        See `Journal`; `JournalHeldError` if it is still held then.
    """
    return patiently(lambda: Journal(identity, path), path, patience)


def patiently(attempt: Callable[[], T], path: Path, patience: float) -> T:
    """Return what ``attempt`` gives, once no other process holds the journal.

    Whoever waits stands in line: a process that has let the journal go, and wants it
    again at once, comes after those that waited. The line is a lock on a file beside
    the journal, made when somebody first has to wait; only its first one tries.

    Raises
    ------
    JournalError
        What ``attempt`` raises; `JournalHeldError` only after ``patience`` seconds.
    """
    deadline = time.monotonic() + patience
    line = path.with_name(f"{path.name}.line")
    if not line.exists():
        with suppress(JournalHeldError):
            return attempt()
    with _first_in(line, deadline):
        has_warned = False
        while True:
            try:
                return attempt()
            except JournalHeldError as error:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise
                if patience - left > _LONG_WAIT and not has_warned:
                    text = "%s Waiting for it, %g s at most."
                    _log.warning(text, error, patience)
                    has_warned = True
                time.sleep(min(_PAUSE, left))


@contextmanager
def _first_in(line: Path, deadline: float) -> Iterator[None]:
    """Be the first in line, but from ``deadline`` on in any case.

    A process that ends leaves the line, however it ends. Where a file cannot be locked,
    all try at once.
    """
    try:
        file = os.open(line, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError:
        yield
        return
    try:
        while time.monotonic() < deadline:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(_PAUSE)
            except OSError:
                break
        yield
    finally:
        os.close(file)

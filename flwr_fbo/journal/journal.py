"""The one durable record: a SQLite file that survives whatever ends its process.

Every change is one transaction, on disk (``synchronous=FULL``) before the call returns.
One process at a time holds a journal; the file is readable by its owner only. Without a
file the same journal lives in memory and can be carried as bytes.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

_log = logging.getLogger("flwr.fbo")

SCHEMA_VERSION = 2

# Seconds between two attempts to open what another process holds.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 1.0

TrialState = Literal["running", "complete", "failed"]

_SCHEMA = """
CREATE TABLE identity (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE trial (
    number INTEGER PRIMARY KEY,
    iteration INTEGER NOT NULL,
    params TEXT NOT NULL,
    point BLOB NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('running', 'complete', 'failed')),
    value REAL,
    interruptions INTEGER NOT NULL DEFAULT 0,
    started REAL NOT NULL,
    finished REAL
);
CREATE TABLE state (name TEXT PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE ledger (
    iteration INTEGER PRIMARY KEY,
    facts TEXT NOT NULL,
    vectors BLOB NOT NULL,
    committed REAL NOT NULL,
    digest TEXT NOT NULL
);
"""


class JournalError(RuntimeError):
    """A journal cannot be used; the message says why and what to do."""


class JournalHeld(JournalError):  # noqa: N818  (named for what is wrong)
    """Another process holds the journal."""


@dataclass(frozen=True, eq=False)
class Trial:
    """One evaluation.

    Attributes
    ----------
    number : int
        From 0, in the order of evaluation.
    iteration : int
        In which it was chosen; evaluated again after a cut, it may end in a later one.
    params : dict
    point : ndarray of shape (D,)
        Where ``params`` lies on the unit cube.
    state : {"running", "complete", "failed"}
    value : float
        NaN unless complete.
    interruptions : int
        How often the evaluation was cut off and run again.
    started, finished : float
        Unix times; ``finished`` is NaN while running.
    """

    number: int
    iteration: int
    params: dict[str, Any]
    point: NDArray[np.float64]
    state: TrialState
    value: float
    interruptions: int
    started: float
    finished: float


@dataclass(frozen=True, eq=False)
class LedgerRow:
    """One release.

    Attributes
    ----------
    iteration : int
    facts : dict
        JSON values that describe it.
    vectors : ndarray
        What left, or was about to; of a server that tunes, of shape (P, M).
    committed : float
        Unix time; NaN before it is in a journal.
    """

    iteration: int
    facts: dict[str, Any]
    vectors: NDArray[Any]
    committed: float = math.nan


class Journal:
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
        process (`JournalHeld`), has another schema version or belongs to something
        else.
    """

    def __init__(
        self,
        identity: Mapping[str, Any] | None,
        path: Path | None = None,
        content: bytes | None = None,
    ) -> None:
        self.path = path
        if identity is None and path is not None and not path.is_file():
            raise JournalError(f"There is no journal {path}.")
        self._connection = self._open(content)
        try:
            self.identity = self._prepare(identity)
        except BaseException:
            self._connection.close()
            raise

    def _open(self, content: bytes | None) -> sqlite3.Connection:
        if self.path is None:
            connection = sqlite3.connect(":memory:", isolation_level=None)
            # A quarter of the usual: most pages of a small journal are empty.
            connection.execute("PRAGMA page_size = 1024")
            if content is not None:
                connection.deserialize(content)
            return connection
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # Only a new file: closing an old one would drop this process's lock on it.
            if not self.path.exists():
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
                os.close(os.open(self.path, flags, 0o600))
        except OSError as error:
            raise JournalError(
                f"The journal {self.path} cannot be written: {error.strerror}."
            ) from error
        with self._explained():
            return sqlite3.connect(self.path, isolation_level=None, timeout=0.0)

    def _prepare(self, identity: Mapping[str, Any] | None) -> dict[str, Any]:
        """Create or check the content; return whom it belongs to."""
        with self._explained():
            # The lock is kept until the connection, or its process, ends.
            self._connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._connection.execute("PRAGMA synchronous = FULL")
            with self._transaction():
                version = self._connection.execute("PRAGMA user_version").fetchone()[0]
                if version == 0 and identity is not None and self._is_empty():
                    self._create(identity)
                    version = SCHEMA_VERSION
            if version == 0:
                raise JournalError(f"{self.path} is no journal of flwr_fbo.")
            if version != SCHEMA_VERSION:
                raise JournalError(
                    f"The journal {self.path} has schema version {version}, this is "
                    f"version {SCHEMA_VERSION}: use the flwr_fbo that wrote it."
                )
            rows = self._connection.execute("SELECT name, value FROM identity")
            stored = {name: json.loads(value) for name, value in rows}
        if identity is None:
            return stored
        now = json.loads(json.dumps(dict(identity)))
        different = {
            name: (stored.get(name), now.get(name))
            for name in sorted(stored.keys() | now.keys())
            if stored.get(name) != now.get(name)
        }
        if different:
            raise JournalError(
                f"The journal {self.path} belongs to another study: give this one a "
                f"folder of its own. What differs (stored, now): {different}."
            )
        return stored

    def _is_empty(self) -> bool:
        """Return whether there is nothing in the file, of anybody's."""
        rows = self._connection.execute("SELECT count(*) FROM sqlite_master")
        return bool(rows.fetchone()[0] == 0)

    def _create(self, identity: Mapping[str, Any]) -> None:
        for statement in _SCHEMA.split(";"):
            self._connection.execute(statement)
        rows = [(name, json.dumps(value)) for name, value in identity.items()]
        self._connection.executemany("INSERT INTO identity VALUES (?, ?)", rows)
        self._connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Commit all of a block, or nothing of it."""
        self._connection.execute("BEGIN EXCLUSIVE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:  # SQLite ends it where a disk is full
                self._connection.execute("ROLLBACK")
            raise

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn SQLite's errors into ones that say what to do."""
        try:
            yield
        except (ValueError, StructError) as error:  # JSON, or an array
            raise JournalError(f"The journal {self.path} is damaged.") from error
        except sqlite3.Error as error:
            text = f"The journal {self.path} cannot be used"
            if "locked" in str(error):
                raise JournalHeld(
                    f"{text}: another process holds it; only one may use a journal."
                ) from error
            raise JournalError(f"{text}: {error}.") from error

    def require_kind(self, kind: str) -> None:
        """Raise JournalError unless the journal belongs to a ``kind``."""
        found = self.identity.get("kind")
        if found != kind:
            raise JournalError(
                f"The journal {self.path} is of kind {found!r}, not {kind!r}."
            )

    def begin_trial(
        self, iteration: int, params: Mapping[str, Any], point: NDArray[np.float64]
    ) -> int:
        """Record that an evaluation starts; return its number.

        If the last recorded evaluation was cut off, this is it, run again.
        """
        entries = (iteration, json.dumps(dict(params)), _to_npy(point), time.time())
        with self._explained(), self._transaction():
            row = self._connection.execute(
                "SELECT number FROM trial WHERE state = 'running'"
            ).fetchone()
            if row is not None:
                self._connection.execute(
                    "UPDATE trial SET interruptions = interruptions + 1, iteration = ?,"
                    " params = ?, point = ?, started = ? WHERE number = ?",
                    (*entries, row[0]),
                )
                return int(row[0])
            count = self._connection.execute("SELECT count(*) FROM trial").fetchone()
            self._connection.execute(
                "INSERT INTO trial (iteration, params, point, started, number, state)"
                " VALUES (?, ?, ?, ?, ?, 'running')",
                (*entries, count[0]),
            )
            return int(count[0])

    def end_trial(self, number: int, value: float) -> None:
        """Record what an evaluation gave; NaN is a failed one."""
        failed = math.isnan(value)
        with self._explained(), self._transaction():
            self._connection.execute(
                "UPDATE trial SET state = ?, value = ?, finished = ? WHERE number = ?",
                (
                    "failed" if failed else "complete",
                    None if failed else value,
                    time.time(),
                    number,
                ),
            )

    def add_trial(self, iteration: int, point: NDArray[np.float64]) -> int:
        """Record an action whose reward is awaited, one of many; return its number."""
        with self._explained(), self._transaction():
            number = self._connection.execute("SELECT count(*) FROM trial").fetchone()
            self._connection.execute(
                "INSERT INTO trial (number, iteration, params, point, state, started)"
                " VALUES (?, ?, '{}', ?, 'running', ?)",
                (number[0], iteration, _to_npy(point), time.time()),
            )
        return int(number[0])

    def awaited(self) -> dict[int, NDArray[np.float64]]:
        """Return the points of the trials without a value, by number."""
        with self._explained():
            rows = self._connection.execute(
                "SELECT number, point FROM trial WHERE state = 'running'"
                " ORDER BY number"
            ).fetchall()
            return {int(number): _from_npy(point) for number, point in rows}

    def awaited_point(self, number: int) -> NDArray[np.float64] | None:
        """Return the point of a trial, or None unless its value is awaited."""
        with self._explained():
            row = self._connection.execute(
                "SELECT point FROM trial WHERE state = 'running' AND number = ?",
                (number,),
            ).fetchone()
            return None if row is None else _from_npy(row[0])

    @property
    def num_trials(self) -> int:
        """How many trials there are, with and without a value."""
        with self._explained():
            row = self._connection.execute("SELECT count(*) FROM trial").fetchone()
        return int(row[0])

    def complete_trial(
        self,
        number: int,
        iteration: int,
        value: float,
        arrays: Mapping[str, NDArray[Any]],
    ) -> None:
        """Record what a trial gave, and in which iteration, and arrays: at once."""
        rows = _state_rows(arrays)
        with self._explained(), self._transaction():
            self._connection.execute(
                "UPDATE trial SET state = 'complete', value = ?, iteration = ?,"
                " finished = ? WHERE number = ?",
                (value, iteration, time.time(), number),
            )
            self._put(rows)

    def drop_trial(self, number: int) -> None:
        """Forget an evaluation that has started, and was none."""
        with self._explained(), self._transaction():
            self._connection.execute(
                "DELETE FROM trial WHERE number = ? AND state = 'running'", (number,)
            )

    def trials(self, since: int = 0, first: int = 0) -> list[Trial]:
        """Return trials in order of evaluation.

        Parameters
        ----------
        since : int
            Those of iterations from ``since`` on.
        first : int
            Those of numbers from ``first`` on.
        """
        with self._explained():
            rows = self._connection.execute(
                "SELECT number, iteration, params, point, state, value, interruptions,"
                " started, finished FROM trial WHERE iteration >= ? AND number >= ?"
                " ORDER BY number",
                (since, first),
            ).fetchall()
            return [
                Trial(
                    number=row[0],
                    iteration=row[1],
                    params=json.loads(row[2]),
                    point=_from_npy(row[3]),
                    state=row[4],
                    value=math.nan if row[5] is None else row[5],
                    interruptions=row[6],
                    started=row[7],
                    finished=math.nan if row[8] is None else row[8],
                )
                for row in rows
            ]

    def save_state(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Replace the named arrays, all of them: one transaction."""
        rows = _state_rows(arrays)
        with self._explained(), self._transaction():
            self._connection.execute("DELETE FROM state")
            self._connection.executemany("INSERT INTO state VALUES (?, ?)", rows)

    def change_state(
        self,
        arrays: Mapping[str, NDArray[Any]],
        gone: Iterable[str],
        releases: Sequence[LedgerRow],
    ) -> None:
        """Store named arrays, remove others, and add releases: one transaction."""
        rows = _state_rows(arrays)
        with self._explained(), self._transaction():
            self._connection.executemany(
                "DELETE FROM state WHERE name = ?", [(name,) for name in gone]
            )
            self._put(rows)
            for row in releases:
                self._add_release(row)

    def put(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Store the named arrays; others stay as they are."""
        rows = _state_rows(arrays)
        with self._explained(), self._transaction():
            self._put(rows)

    def _put(self, rows: Sequence[tuple[str, bytes]]) -> None:
        self._connection.executemany("INSERT OR REPLACE INTO state VALUES (?, ?)", rows)

    def add_release(self, row: LedgerRow, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Add one release, and arrays beside those there are: one transaction."""
        rows = _state_rows(arrays)
        with self._explained(), self._transaction():
            self._connection.executemany("INSERT INTO state VALUES (?, ?)", rows)
            self._add_release(row)

    def _add_release(self, row: LedgerRow) -> None:
        entries = (row.iteration, json.dumps(row.facts), _to_npy(row.vectors))
        committed = time.time()
        last = self._connection.execute(
            "SELECT iteration, digest FROM ledger ORDER BY iteration DESC LIMIT 1"
        ).fetchone()
        if last is not None and row.iteration < last[0]:  # digests are in order
            raise JournalError(
                f"Release {row.iteration} comes too late: {last[0]} is on record."
            )
        digest = _digest("" if last is None else last[1], *entries, committed)
        self._connection.execute(
            "INSERT INTO ledger VALUES (?, ?, ?, ?, ?)", (*entries, committed, digest)
        )

    def ledger(self) -> list[LedgerRow]:
        """Return all releases, in order.

        Raises
        ------
        JournalError
            If a row is not as it was written: each carries a digest of itself and of
            the row before it.
        """
        with self._explained():
            rows = self._connection.execute(
                "SELECT iteration, facts, vectors, committed, digest FROM ledger"
                " ORDER BY iteration"
            ).fetchall()
        digest = ""
        for *entries, stored in rows:
            digest = _digest(digest, *entries)
            if digest != stored:
                raise JournalError(
                    f"The ledger in {self.path} is damaged: the release of iteration "
                    f"{entries[0]}, or one before it, is not as it was written."
                )
        return [
            LedgerRow(row[0], json.loads(row[1]), _from_npy(row[2]), row[3])
            for row in rows
        ]

    @property
    def num_releases(self) -> int:
        """How many releases there are."""
        with self._explained():
            row = self._connection.execute("SELECT count(*) FROM ledger").fetchone()
        return int(row[0])

    def load_state(self) -> dict[str, NDArray[Any]]:
        """Return what `save_state` stored last; empty before that."""
        with self._explained():
            rows = self._connection.execute("SELECT name, value FROM state").fetchall()
            return {name: _from_npy(value) for name, value in rows}

    def to_bytes(self) -> bytes:
        """Return the whole journal, for a later ``content``."""
        return self._connection.serialize()

    def close(self) -> None:
        """Let the file go; nothing is lost without it."""
        self._connection.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _digest(
    before: str, iteration: int, facts: str, vectors: bytes, committed: float
) -> str:
    """Return the digest of a row of the ledger and of all rows before it."""
    head = json.dumps([before, iteration, facts, committed]).encode()
    return hashlib.sha256(head + b"\n" + vectors).hexdigest()


def _state_rows(arrays: Mapping[str, NDArray[Any]]) -> list[tuple[str, bytes]]:
    """Return rows of `state`; ValueError, before any is written, if one cannot be."""
    return [(name, _to_npy(array)) for name, array in arrays.items()]


def _to_npy(array: NDArray[Any]) -> bytes:
    buffer = BytesIO()
    np.save(buffer, np.asarray(array), allow_pickle=False)
    return buffer.getvalue()


def _from_npy(content: bytes) -> NDArray[Any]:
    # As `np.load` does, but that most headers have been read before.
    start = _HEAD.size + _HEAD.unpack_from(content)[-1]
    shape, fortran_order, dtype = _read_header(content[:start])
    array = np.frombuffer(content, dtype, offset=start).copy()
    return array.reshape(shape, order="F" if fortran_order else "C")


# Of format 1.0, which `np.save` chooses: magic, version, length of what follows.
_HEAD = Struct("<6s2sH")


@lru_cache(maxsize=128)
def _read_header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    stream = BytesIO(header)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError("an array of another format")
    return np.lib.format.read_array_header_1_0(stream)


def open_patiently(
    identity: Mapping[str, Any] | None, path: Path, patience: float
) -> Journal:
    """Open a journal, waiting up to ``patience`` seconds while another holds it.

    Raises
    ------
    JournalError
        See `Journal`; `JournalHeld` if it is still held then.
    """
    deadline, pause = time.monotonic() + patience, _FIRST_PAUSE
    while True:
        try:
            return Journal(identity, path)
        except JournalHeld as error:
            if time.monotonic() >= deadline:
                raise
            if pause < _LONGEST_PAUSE <= 2 * pause:  # once, and not of a short wait
                _log.warning("%s Waiting for it, %g s at most.", error, patience)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

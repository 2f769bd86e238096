"""The rows of a journal in one SQLite file: its lock, checksums and transactions."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from flwr_fbo._common.errors import PublicError
from flwr_fbo._common.files import OPEN_TO_OTHERS, make_folder, why_untrusted
from flwr_fbo._common.version import __version__
from flwr_fbo.journal.checksums import DamageError, Part, Row, digests_of, part_of
from flwr_fbo.journal.file_formats import (
    JOURNAL,
    LEDGER,
    LEDGER_KIND,
    FileFormat,
    found_format,
)
from flwr_fbo.journal.parts import Parts
from flwr_fbo.journal.sql import CHECKED_TABLES, rows_in_part, write_row

# The row of the identity that names the version of the package which made the file, or
# upgraded it last.
_MADE_BY = "flwr_fbo"

# What reading a damaged journal raises: of JSON, an array, or SQLite's own content.
_DAMAGES = (ValueError, OverflowError, MemoryError, RecursionError)
_ERRORS = (*_DAMAGES, sqlite3.Error)


class JournalError(PublicError, RuntimeError):
    """A journal cannot be used; the message says why and what to do."""


class JournalHeldError(JournalError):
    """Another process holds the journal."""


class NoJournalError(JournalError):
    """There is no journal in the file yet, or there is no file."""


def _all(number: int, part: Part) -> bool:
    return True


def _kept(table: str, row: Row) -> Row:
    """Return what is kept of a row that was read: of large ones only the digest."""
    return row if table == "trial" else row[-1:]


class JournalFile:
    """Where a `Journal` on disk has its rows.

    Parameters
    ----------
    identity : mapping of str to JSON value, or None
        What a new file belongs to; None takes no new one.
    path : Path
        Path of the file; None for a journal in memory.
    is_snapshot : bool
        Take what the file has at this moment, whoever holds it, for reading only: it is
        copied into memory, where an older ledger is upgraded too. All checksums are
        checked: they tell whether it was written to meanwhile.
    must_be_own : bool
        Refuse what other users can change, or read: whoever only shows what is in a
        file promises nothing.

    Attributes
    ----------
    identity : dict of str to JSON value
        What the file belongs to.
    made_by : str
        Version of the package that made the file, or upgraded it last; empty if the
        file does not say.
    """

    def __init__(
        self,
        identity: Mapping[str, Any] | None,
        path: Path,
        is_snapshot: bool = False,
        must_be_own: bool = True,
    ) -> None:
        self.path = path
        self._is_snapshot = is_snapshot
        self._must_be_own = must_be_own
        # A ledger has charges, and no data: a group may read it.
        self._is_secret = identity is None or identity.get("kind") != LEDGER_KIND
        self.made_by = ""
        self._parts = Parts()
        # The rows of each table and part that have been read, by the first column.
        self._read: dict[tuple[str, int], dict[Any, Row]] = {}
        self.identity = self._hold(identity)
        if is_snapshot:
            with self.explained():
                for table in CHECKED_TABLES:
                    self.rows(table)
                self._connection.execute("PRAGMA query_only = ON")

    def reopen(self) -> bool:
        """Hold the file again, after `close`; return whether it has changed since.

        If not, what has been read need not be read again: the head stands for all rows.
        If it has, everything is read anew.

        Raises
        ------
        JournalError
            As a new `Journal` of an old file does.
        """
        known = self._parts.head
        self.identity = self._hold(None)
        return self._parts.head != known

    def _hold(self, identity: Mapping[str, Any] | None) -> dict[str, Any]:
        """Open the file; return whom it belongs to."""
        if identity is None and not has_journal(self.path):
            raise NoJournalError(f"There is no journal {self.path}.")
        if self._is_snapshot:
            self._connection = _copied(self.path)
        else:
            must_be_own, is_secret = self._must_be_own, self._is_secret
            self._connection = _opened(self.path, must_be_own, is_secret)
        ask = self._connection.execute
        try:
            with self.transaction():
                if ask("SELECT 1 FROM sqlite_master").fetchone():
                    self._take(*found_format(self._connection))
                elif identity is None or ask("PRAGMA user_version").fetchone()[0]:
                    raise JournalError(f"{self.path} is no journal of flwr_fbo.")
                else:
                    is_ledger = identity.get("kind") == LEDGER_KIND
                    made = LEDGER if is_ledger else JOURNAL
                    for statement in made.tables.split(";"):
                        ask(statement)
                    for name, value in {**identity, _MADE_BY: __version__}.items():
                        self.insert("identity", (name, json.dumps(value)))
                    self._number_as(made)
                rows = self._rows("identity", 0).values()
                stored = {name: json.loads(value) for name, value, _ in rows}
                self.made_by = str(stored.pop(_MADE_BY, ""))
                return stored
        except BaseException:
            self._connection.close()
            raise

    def _take(self, found: FileFormat, schema: int) -> None:
        """Read the checksums of a file that is there; upgrade an older one."""
        if schema == 0 and schema not in found.upgrades:
            raise JournalError(f"{self.path} is no journal of flwr_fbo.")
        if schema != found.schema and schema not in found.upgrades:
            raise self._of_another_version(found, schema)
        for step in range(schema, found.schema):
            found.upgrades[step](self._connection)
        if not self._parts.read(self._connection):
            self._read.clear()
        if schema != found.schema:
            self.put("identity", (_MADE_BY, json.dumps(__version__)))
            self._number_as(found)

    def _number_as(self, made: FileFormat) -> None:
        self._connection.execute(f"PRAGMA application_id = {made.application_id}")
        self._connection.execute(f"PRAGMA user_version = {made.schema}")

    def _of_another_version(self, found: FileFormat, schema: int) -> JournalError:
        """Return the error for a file whose schema this version cannot read."""
        try:
            query = "SELECT value FROM identity WHERE name = ?"
            row = self._connection.execute(query, (_MADE_BY,)).fetchone()
            version = str(json.loads(row[0]))
        except (*_ERRORS, TypeError):  # the tables of that schema are others
            version = ""
        made_by = f"flwr_fbo {version}" if version else "another flwr_fbo"
        then = f"has schema {schema} and was made by {made_by}"
        now = f"This is flwr_fbo {__version__}, with schema {found.schema}"
        if found.upgrades:
            advice = (
                f"Use {made_by} at this site, or a newer one: a ledger cannot go back "
                "to an older schema"
            )
        else:
            advice = f"Finish its study with {made_by}, or begin another study"
        return JournalError(
            f"The {found.name} {self.path} {then}. {now}. {advice}.",
            public=f"This site's {found.name} was made by {made_by}, and this is "
            f"flwr_fbo {__version__}.",
        )

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit all of a block, or nothing of it; explain errors as `explained`."""
        try:
            self._connection.execute("BEGIN EXCLUSIVE")
            self._parts.begin()
            try:
                yield
                self._parts.write(self._connection)
                self._connection.execute("COMMIT")
            except BaseException:
                # The checksums go back first: they must say what is on disk.
                self._parts.undo()
                self._read.clear()
                if self._connection.in_transaction:  # ended by SQLite on a full disk
                    self._connection.execute("ROLLBACK")
                raise
        except _ERRORS as error:
            raise _explanation(self.path, error) from error

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn SQLite's errors, and those of damage, into ones that say what to do."""
        try:
            yield
        except _ERRORS as error:
            raise _explanation(self.path, error) from error

    def count(self, table: str) -> int:
        """Return how many rows a table has."""
        return self._parts.count(table)

    @property
    def last_release(self) -> int:
        """The iteration of the last release, or -1."""
        return self._parts.last_release

    def rows(self, table: str, wanted: Callable[[int, Part], bool] = _all) -> list[Row]:
        """Return the rows of the parts that are wanted, all of them checked."""
        numbers = self._parts.numbers(table, wanted)
        return [row[:-1] for i in numbers for row in self._rows(table, i).values()]

    def rows_of(self, table: str, keys: Iterable[Any]) -> list[Row]:
        """Return the rows of these keys that there are; only their parts are read."""
        found: dict[int, dict[Any, Row]] = {}
        rows = []
        for key in keys:
            number = part_of(table, key)
            if number not in found:
                found[number] = self._rows(table, number)
            if key in found[number]:
                rows.append(found[number][key][:-1])
        return rows

    def row(self, table: str, key: Any) -> Row | None:
        """Return one row, or None, in a time that is bounded."""
        row = self._rows(table, part_of(table, key)).get(key)
        return None if row is None else row[:-1]

    def _rows(self, table: str, number: int) -> dict[Any, Row]:
        """Return the rows of a part, all of them checked, in order and by key."""
        known = self._read.get((table, number))
        if known is not None and table == "trial":
            return known
        rows = rows_in_part(self._connection, table, number)
        # All rows of a part: one alone could be an older version of itself.
        self._parts.check(table, number, rows)
        found: dict[Any, Row] = {row[0]: row for row in rows}
        self._read[table, number] = {key: _kept(table, found[key]) for key in found}
        return found

    def number_of(self, key: str) -> int | None:
        """Return the number of the first trial of a request, or None."""
        query = "SELECT number FROM request WHERE key = ?"
        found = self._connection.execute(query, (key,)).fetchone()
        return None if found is None else int(found[0])

    def add_request(self, key: str, number: int) -> None:
        """Note the first trial of a request; an error if the key is there."""
        values = key, number
        self._connection.execute("INSERT INTO request VALUES (?, ?)", values)

    def insert(self, table: str, row: Row) -> None:
        """Add a row; in a transaction, as all changes.

        Raises
        ------
        JournalError
            If one of the same key is there.
        """
        if table == "state":  # one that was lost is noticed before it is written anew
            self._known(table, part_of(table, row[0]))
        self._write(table, row[0], None, row)

    def put(self, table: str, *rows: Row) -> None:
        """Add rows, each in place of the one of the same key."""
        for row in rows:
            old = self._known(table, part_of(table, row[0])).get(row[0])
            self._write(table, row[0], old, row)

    def remove(self, table: str, key: Any) -> None:
        """Remove a row, if it is there."""
        old = self._known(table, part_of(table, key)).get(key)
        if old is not None:
            self._write(table, key, old, None)

    def _known(self, table: str, number: int) -> dict[Any, Row]:
        """Return the rows of a part as `_rows` keeps them: their digests are last."""
        if (table, number) not in self._read:
            self._rows(table, number)
        return self._read[table, number]

    def _write(self, table: str, key: Any, old: Row | None, new: Row | None) -> None:
        """Write ``new`` in place of ``old``, and count it in its part.

        None is there where there is not a row.
        """
        number = part_of(table, key)
        if new is not None:
            new = (*new, *digests_of(table, [new]))
        if old is not None and new is not None and old[-1] == new[-1]:
            return  # nothing has changed
        keys = (key, number) if table == "state" else (key,)
        values = None if new is None else new[len(keys) :]
        write_row(self._connection, table, keys, values, is_old=old is not None)
        self._parts.follow(table, key, old, new)
        read = self._read.get((table, number))
        if read is not None and new is None:
            del read[key]
        elif read is not None and new is not None:
            read[key] = _kept(table, new)

    def close(self) -> None:
        """Let the file go, and the memory of most rows; nothing is lost without it."""
        self._connection.close()
        self._read = {at: rows for at, rows in self._read.items() if at[0] != "trial"}


def has_journal(path: Path) -> bool:
    """Return whether a journal was begun in a file.

    A file without tables is a journal that never began: a process was killed between
    the file's creation and its content. Nothing was promised of it yet.
    """
    if not path.is_file() or not path.stat().st_size:
        return False
    try:
        with closing(sqlite3.connect(path, timeout=0.0)) as connection:
            found = connection.execute("SELECT 1 FROM sqlite_master").fetchone()
        return found is not None
    except sqlite3.Error:  # held, or damaged: whoever opens it says so
        return True


def _explanation(path: Path, error: Exception) -> JournalError:
    """Return what an error of SQLite or of damage means, and what to do."""
    if isinstance(error, _DAMAGES):
        what = str(error) if isinstance(error, DamageError) else repr(error)
        return JournalError(f"The journal {path} is damaged: {what}.")
    text = f"The journal {path} cannot be used"
    if "locked" in str(error):
        return JournalHeldError(
            f"{text}: another process holds it; only one may use a journal."
        )
    if "disk is full" in str(error):
        return JournalError(
            f"{text}: its disk is full. Make space: what it holds is whole, and "
            "the study goes on with it.",
            public="This site's disk is full.",
        )
    return JournalError(f"{text}: {error}.")


def _opened(path: Path, must_be_own: bool, is_secret: bool) -> sqlite3.Connection:
    """Open a file, and make it if it is not there."""
    try:
        # Only a new file: closing an old one would drop this process's lock on it.
        is_new = not path.exists()
        if is_new:
            make_folder(path.parent)
        if must_be_own:
            fault = why_untrusted(path, is_secret=is_secret, in_own_folder=True)
            if fault:
                raise JournalError(fault, public=OPEN_TO_OTHERS)
        if is_new:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
            with suppress(FileExistsError):  # another process was faster
                os.close(os.open(path, flags, 0o600))
    except OSError as error:
        raise JournalError(
            f"The journal {path} cannot be written: {error.strerror}."
        ) from error
    try:
        connection = sqlite3.connect(path, isolation_level=None, timeout=0.0)
        # The lock is kept until the connection, or its process, ends.
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA synchronous = FULL")
        # Keys and noise that are done with are overwritten, not only unlinked.
        connection.execute("PRAGMA secure_delete = ON")
        return connection
    except _ERRORS as error:
        raise _explanation(path, error) from error


def _copied(path: Path) -> sqlite3.Connection:
    """Return a copy of a file in memory."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise JournalError(
            f"The journal {path} cannot be read: {error.strerror}."
        ) from error
    try:
        connection = sqlite3.connect(":memory:", isolation_level=None)
        connection.deserialize(content)
        return connection
    except _ERRORS as error:
        raise _explanation(path, error) from error

"""One SQLite file: opening and locking it, whose it is, transactions and errors."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from flwr_fbo._errors import PublicError
from flwr_fbo.journal.checksums import (
    LABELS,
    SCHEMA,
    SCHEMA_VERSION,
    TRIALS_IN_PART,
    DamageError,
    Part,
    misplaced,
)

_MODULUS = 2**256
# The order of the parameters is the same.
_INSERT = (
    "INSERT INTO part (count, total, last, running, digest, name, number)"
    " VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_UPDATE = (
    "UPDATE part SET count = ?, total = ?, last = ?, running = ?, digest = ?"
    " WHERE name = ? AND number = ?"
)

# What reading a damaged journal raises: of JSON, an array, or SQLite's own content.
_DAMAGES = (ValueError, OverflowError, MemoryError, RecursionError)
_ERRORS = (*_DAMAGES, sqlite3.Error)


class JournalError(PublicError, RuntimeError):
    """A journal cannot be used; the message says why and what to do."""


class JournalHeldError(JournalError):
    """Another process holds the journal."""


def _no_parts() -> dict[str, defaultdict[int, Part]]:
    return {table: defaultdict[int, Part](Part) for table in LABELS}


def digests_of(table: str, rows: Iterable[Sequence[Any]]) -> list[bytes]:
    """Return the digest of each row: of its table and of all columns but the digest."""
    digests = []
    for row in rows:
        values: list[Any] = [table]
        blobs = []
        for value in row:  # each the same before and after SQLite
            if isinstance(value, bytes):
                values.append((len(value),))
                blobs.append(value)
            elif isinstance(value, float):
                values.append(float(value) + 0.0)  # SQLite has no -0.0
            else:
                values.append(str(value) if isinstance(value, str) else value)
        content = b"".join((repr(values).encode(), *blobs))
        digests.append(hashlib.sha256(content).digest())
    return digests


class JournalFile:
    """Base of `Journal`: the file, its lock and its identity."""

    def __init__(
        self,
        identity: Mapping[str, Any] | None,
        path: Path | None = None,
        content: bytes | None = None,
    ) -> None:
        self.path = path
        # By table and number, one without rows where there is none; "part" is the head.
        self._parts = _no_parts()
        # What a transaction has changed, as it was when that began.
        self._before: dict[tuple[str, int], Part] = {}
        # The rows of parts, as they were read last.
        self._checked: frozenset[Any] = frozenset()
        self._forget()
        self.identity = self._hold(identity, content)

    def reopen(self) -> bool:
        """Hold the file again, after `close`; return whether it has changed since.

        If not, what has been read need not be read again: the head stands for all rows.
        If it has, everything is read anew.

        Raises
        ------
        JournalError
            As a new `Journal` of an old file does.
        """
        known = self._parts["part"][0]
        self.identity = self._hold(None, None)
        return self._parts["part"][0] != known

    def _hold(
        self, identity: Mapping[str, Any] | None, content: bytes | None
    ) -> dict[str, Any]:
        """Open the file, or the content; return whom it belongs to."""
        if identity is None and self.path is not None and not self.path.is_file():
            raise JournalError(f"There is no journal {self.path}.")
        self._connection = self._open(content)
        try:
            return self._prepare(identity, may_begin=content is None)
        except BaseException:
            self._connection.close()
            raise

    def _open(self, content: bytes | None) -> sqlite3.Connection:
        try:
            if self.path is not None:
                self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # Only a new file: closing an old one would drop this process's lock on it.
            if self.path is not None and not self.path.exists():
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
                os.close(os.open(self.path, flags, 0o600))
        except OSError as error:
            raise JournalError(
                f"The journal {self.path} cannot be written: {error.strerror}."
            ) from error
        with self._explained():
            where = self.path or ":memory:"
            connection = sqlite3.connect(where, isolation_level=None, timeout=0.0)
            if self.path is None:
                # A quarter of the usual: most pages of a small journal are empty.
                connection.execute("PRAGMA page_size = 1024")
            if content is not None:
                connection.deserialize(content)
            # The lock is kept until the connection, or its process, ends.
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            connection.execute("PRAGMA synchronous = FULL")
            # Keys and noise that are done with are overwritten, not only unlinked.
            connection.execute("PRAGMA secure_delete = ON")
            return connection

    def _prepare(
        self, identity: Mapping[str, Any] | None, may_begin: bool
    ) -> dict[str, Any]:
        """Create or check the content; return whom it belongs to."""
        with self._transaction():
            version = self._connection.execute("PRAGMA user_version").fetchone()[0]
            if version == SCHEMA_VERSION:
                self._read_parts()
            elif version != 0:
                raise JournalError(
                    f"The journal {self.path} has schema version {version}, this is "
                    f"version {SCHEMA_VERSION}: use the flwr_fbo that wrote it."
                )
            elif may_begin and identity is not None and self._is_empty():
                self._create(identity)
            else:
                raise JournalError(f"{self.path} is no journal of flwr_fbo.")
            rows = self._connection.execute(
                "SELECT name, value, digest FROM identity"
            ).fetchall()
            self._check("identity", 0, rows)
            stored = {name: json.loads(value) for name, value, _ in rows}
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
        for statement in SCHEMA.split(";"):
            self._connection.execute(statement)
        rows = [(name, json.dumps(value)) for name, value in identity.items()]
        digests = digests_of("identity", rows)
        self._connection.executemany(
            "INSERT INTO identity VALUES (?, ?, ?)",
            [(*row, digest) for row, digest in zip(rows, digests, strict=True)],
        )
        self._change("identity", new=digests)
        self._connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Commit all of a block, or nothing of it; explain errors as `_explained`."""
        try:
            self._connection.execute("BEGIN EXCLUSIVE")
            self._before.clear()
            try:
                yield
                if self._before:
                    self._write_parts()
                self._connection.execute("COMMIT")
            except BaseException:
                self._undone()
                if self._connection.in_transaction:  # ended by SQLite on a full disk
                    self._connection.execute("ROLLBACK")
                raise
        except _ERRORS as error:
            raise self._explanation(error) from error

    def _undone(self) -> None:
        """Take back what a transaction has changed: it was undone."""
        for (table, number), part in self._before.items():
            self._parts[table][number] = part
        self._forget()

    def _forget(self) -> None:
        """Forget the rows that have been read: others may be there."""

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn SQLite's errors, and those of damage, into ones that say what to do."""
        try:
            yield
        except _ERRORS as error:
            raise self._explanation(error) from error

    def _explanation(self, error: Exception) -> JournalError:
        if isinstance(error, DamageError):
            return JournalError(f"The journal {self.path} is damaged: {error}.")
        if isinstance(error, _DAMAGES):
            return JournalError(f"The journal {self.path} is damaged: {error!r}.")
        text = f"The journal {self.path} cannot be used"
        if "locked" in str(error):
            return JournalHeldError(
                f"{text}: another process holds it; only one may use a journal."
            )
        return JournalError(f"{text}: {error}.")

    def _read_parts(self) -> None:
        """Read the checksums of all parts, unless the head is the one that is known."""
        known = self._parts["part"][0]
        heads = self._connection.execute(
            "SELECT count, total FROM part WHERE name = 'head' AND number = 0"
        ).fetchall()
        if heads == [(known.num_rows, known.total.to_bytes(32, "big"))] and known.total:
            return
        self._parts = _no_parts()
        self._forget()
        rows = self._connection.execute(
            "SELECT name, number, count, total, last, running, digest FROM part"
        ).fetchall()
        for name, number, count, total, *_ in rows:
            if name == "head" and isinstance(total, bytes):  # not checked, but compared
                self._parts["part"][number] = Part(count, int.from_bytes(total, "big"))
        rows = [row for row in rows if row[0] != "head"]
        self._check("part", 0, rows, self._checked)
        self._checked = frozenset(rows)
        for name, number, count, total, *rest in rows:
            self._parts[name][number] = Part(count, int.from_bytes(total, "big"), *rest)

    def _check(
        self,
        table: str,
        number: int,
        rows: Sequence[Any],
        checked: Collection[Any] = (),
    ) -> None:
        """Raise DamageError unless these are the rows of a part, all and no others.

        The first column of a row is its key, the last its digest. Rows that are among
        those ``checked`` before, to the last bit, have it.
        """
        new = [row for row in rows if row not in checked]
        digests = digests_of(table, [row[:-1] for row in new])
        for row, digest in zip(new, digests, strict=True):
            if row[-1] != digest:
                label = LABELS[table].format(row[0])
                raise DamageError(
                    f"{label} in the table {table} is not as it was written"
                )
        total = sum(int.from_bytes(row[-1], "big") for row in rows) % _MODULUS
        part = self._parts[table][number]
        if (len(rows), total) != (part.num_rows, part.total):
            which = f"the table {table}"
            if table == "trial":
                first = number * TRIALS_IN_PART
                which += f", trials {first} to {first + TRIALS_IN_PART - 1}"
            raise DamageError(
                f"{which}: rows are missing, are not of this journal or are older "
                f"versions ({len(rows)} rows are there, {part.num_rows} were written)"
            )

    def _change(
        self,
        table: str,
        number: int = 0,
        *,
        old: Sequence[bytes] = (),
        new: Sequence[bytes] = (),
        last: int = -1,
        running: int = 0,
    ) -> None:
        """Replace digests of rows in a part.

        ``last`` is the latest iteration of new rows, ``running`` is added to the count.
        """
        part = self._parts[table][number]
        self._before.setdefault((table, number), part)
        total = part.total + sum(int.from_bytes(digest, "big") for digest in new)
        total -= sum(int.from_bytes(digest, "big") for digest in old)
        self._parts[table][number] = Part(
            part.num_rows + len(new) - len(old),
            total % _MODULUS,
            max(part.last, last),
            part.running + running,
            part.digest,
        )

    def _write_parts(self) -> None:
        """Write the parts that have changed, and the head."""
        before = self._before["part", 0] = self._parts["part"][0]
        count, total = before.num_rows, before.total
        for table, number in [key for key in self._before if key[0] != "part"]:
            part = self._parts[table][number]
            columns = (part.num_rows, part.total.to_bytes(32, "big"), *part[2:4])
            [digest] = digests_of("part", [(table, number, *columns)])
            cursor = self._connection.execute(
                _INSERT if part.digest is None else _UPDATE,
                (*columns, digest, table, number),
            )
            if cursor.rowcount != 1:
                raise misplaced("part", table)
            count += part.digest is None
            total += int.from_bytes(digest, "big")
            total -= int.from_bytes(part.digest or b"", "big")
            self._parts[table][number] = part._replace(digest=digest)
        head = self._parts["part"][0] = Part(count, total % _MODULUS)
        row = (count, head.total.to_bytes(32, "big"), -1, 0, b"", "head", 0)
        if self._connection.execute(_UPDATE, row).rowcount != 1:
            raise misplaced("part", "head")

    def require_kind(self, kind: str) -> None:
        """Raise JournalError unless the journal belongs to a ``kind``."""
        found = self.identity.get("kind")
        if found != kind:
            raise JournalError(
                f"The journal {self.path} is of kind {found!r}, not {kind!r}."
            )

    def to_bytes(self) -> bytes:
        """Return the whole journal, for a later ``content``."""
        return self._connection.serialize()

    def close(self) -> None:
        """Let the file go; nothing is lost without it."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

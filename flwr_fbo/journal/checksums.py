"""Digests of all rows of a journal: what is read is what was written, or an error.

Each row of each table has a SHA-256 digest of its table's name and all its columns. A
table is in parts: `state`, `ledger` and `identity` have one each, `trial` has one for
every 64 numbers. For each part the table ``part`` has the number of its rows, the sum
of their digests modulo 2**256, the latest iteration in it and how many trials in it
still run; a digest covers these four too. The row ``head`` of ``part`` has the number
of all parts and the sum of their digests: it needs no digest of its own.

A journal reads ``part`` when it is opened, and then only whole parts: every row must
have its digest, and all rows together must have the count and the sum of their part. No
row is chosen by a column that has not been checked. A change costs one row of ``part``
and the head, however long the journal is.

Detected, before anything is computed from it, is every change of a row that is read: a
changed bit, a row that is missing, that was put in, that was exchanged with another or
that is an older version of itself. Trials of a part that is not read are not checked,
and nothing is computed from them.

Not detected is a file that is as a whole an older copy of itself; where a peer knows
how many releases there were, it refuses it. An empty file is a new journal. Nor is
anybody detected who can write the file and computes the digests again: this is about
damage, not about forgery.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

TRIALS_IN_PART = 64
_MODULUS = 2**256
LABELS = {
    "trial": "trial {}",
    "state": "array {!r}",
    "ledger": "the release of iteration {}",
    "identity": "{!r} of the identity",
    "part": "the checksum of {!r}",
}
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


class JournalError(RuntimeError):
    """A journal cannot be used; the message says why and what to do."""


class JournalHeldError(JournalError):
    """Another process holds the journal."""


class DamageError(ValueError):
    """What is read is not what was written; the text names the table and the row."""


class Part(NamedTuple):
    """What the rows of a part of a table have in common.

    Attributes
    ----------
    num_rows : int
        The number of rows.
    total : int
        The sum of their digests, modulo 2**256.
    last : int
        No row is of a later iteration; -1 without rows.
    running : int
        The number of trials in it without a value.
    digest : bytes or None
        Of its row in the table ``part``; None if there is none yet.
    """

    num_rows: int = 0
    total: int = 0
    last: int = -1
    running: int = 0
    digest: bytes | None = None


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


class CheckedTables:
    """Base of `JournalFile`: its transactions, and the table ``part``.

    Attributes
    ----------
    path : Path or None
        The file.
    """

    path: Path | None
    _connection: sqlite3.Connection
    # By table and number, one without rows where there is none; "part" has the head.
    _parts: dict[str, defaultdict[int, Part]]
    # What a transaction has changed, as it was when that began.
    _before: dict[tuple[str, int], Part]

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
        """Forget what a transaction has changed: it was undone."""
        for (table, number), part in self._before.items():
            self._parts[table][number] = part

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
        rows = self._connection.execute(
            "SELECT name, number, count, total, last, running, digest FROM part"
        ).fetchall()
        heads = [row for row in rows if row[0] == "head"]
        for _, number, count, total, *_ in heads:
            self._parts["part"][number] = Part(count, int.from_bytes(total, "big"))
        rows = [row for row in rows if row[0] != "head"]
        self._check("part", 0, rows)
        for name, number, count, total, *rest in rows:
            self._parts[name][number] = Part(count, int.from_bytes(total, "big"), *rest)

    def _check(self, table: str, number: int, rows: Sequence[Any]) -> None:
        """Raise DamageError unless these are the rows of a part, all and no others.

        The first column of a row is its key, the last its digest.
        """
        digests = digests_of(table, [row[:-1] for row in rows])
        for row, digest in zip(rows, digests, strict=True):
            if row[-1] != digest:
                label = LABELS[table].format(row[0])
                raise DamageError(
                    f"{label} in the table {table} is not as it was written"
                )
        total = sum(int.from_bytes(digest, "big") for digest in digests) % _MODULUS
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


def misplaced(table: str, key: Any) -> DamageError:
    """Return the error of a change that has not found its row."""
    label = LABELS[table].format(key)
    return DamageError(f"{label} in the table {table} is not where it should be")

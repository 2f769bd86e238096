"""Digests of all rows of a journal: what is read is what was written, or an error.

Each row of each table has a SHA-256 digest of its table's name and all its columns. A
table is in parts: `state`, `ledger` and `identity` have one each, `trial` has one for
every 64 numbers. For each part the table ``part`` has the number of its rows, the sum
of their digests modulo 2**256, the latest iteration in it and how many trials in it
still run; a digest covers these four too. The row ``head`` of ``part`` has the number
of all parts and the sum of their digests.

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
from collections.abc import Sequence
from dataclasses import dataclass, replace
from sqlite3 import Connection
from typing import Any

TRIALS_IN_PART = 64
_MODULUS = 2**256
_HEAD = ("head", 0)
_LABELS = {
    "trial": "trial {}",
    "state": "array {!r}",
    "ledger": "the release of iteration {}",
    "identity": "{!r} of the identity",
    "part": "the checksum of {!r}",
}

PartKey = tuple[str, int]


class DamageError(ValueError):
    """What is read is not what was written; the text names the table and the row."""


@dataclass(frozen=True)
class Part:
    """What the rows of a part of a table have in common.

    Attributes
    ----------
    count : int
        The number of rows.
    total : int
        The sum of their digests, modulo 2**256.
    last : int
        No row is of a later iteration; -1 without rows.
    running : int
        The number of trials in it without a value.
    """

    count: int = 0
    total: int = 0
    last: int = -1
    running: int = 0

    def columns(self, key: PartKey) -> tuple[Any, ...]:
        """Return the row of the table ``part``, without its digest."""
        total = self.total.to_bytes(32, "big")
        return (*key, self.count, total, self.last, self.running)


def digest_of(table: str, columns: Sequence[Any]) -> bytes:
    """Return the digest of a row: of its table and of all columns but the digest."""
    values: list[Any] = [table]
    blobs = []
    for value in columns:  # each the same before and after SQLite
        if isinstance(value, bytes):
            values.append((len(value),))
            blobs.append(value)
        elif isinstance(value, float):
            values.append(float(value) + 0.0)  # SQLite has no -0.0
        else:
            values.append(str(value) if isinstance(value, str) else value)
    return hashlib.sha256(b"".join((repr(values).encode(), *blobs))).digest()


def check_rows(table: str, rows: Sequence[Sequence[Any]]) -> None:
    """Raise DamageError unless each row, its key first, ends with its digest."""
    for *columns, digest in rows:
        if digest != digest_of(table, columns):
            label = _LABELS[table].format(columns[0])
            raise DamageError(f"{label} in the table {table} is not as it was written")


class Checksums:
    """The table ``part`` of one journal, which one process holds.

    Parameters
    ----------
    connection : sqlite3.Connection
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._parts: dict[PartKey, Part] | None = None
        self._head = Part()
        self._before: dict[PartKey, Part | None] = {}  # the parts that have changed

    def begin(self) -> None:
        """Start with a journal that is being created."""
        self._parts = {}
        columns = _HEAD + self._head.columns(_HEAD)[2:]
        digest = digest_of("part", columns)
        self._connection.execute(
            "INSERT INTO part VALUES (?, ?, ?, ?, ?, ?, ?)", (*columns, digest)
        )

    def parts(self, table: str) -> dict[int, Part]:
        """Return the parts of a table, by number."""
        return {i: part for (name, i), part in self._known().items() if name == table}

    def part(self, table: str, number: int = 0) -> Part:
        """Return a part; one without rows if there is none."""
        return self._known().get((table, number), Part())

    def check_part(self, table: str, number: int, rows: Sequence[Any]) -> None:
        """Raise DamageError unless these are the rows of a part, all and no others."""
        check_rows(table, rows)
        part = self.part(table, number)
        total = sum(int.from_bytes(row[-1], "big") for row in rows) % _MODULUS
        if (len(rows), total) != (part.count, part.total):
            which = f"the table {table}"
            if table == "trial":
                first = number * TRIALS_IN_PART
                which += f", trials {first} to {first + TRIALS_IN_PART - 1}"
            raise DamageError(
                f"{which}: rows are missing, are not of this journal or are older "
                f"versions ({len(rows)} rows are there, {part.count} were written)"
            )

    def change(
        self,
        table: str,
        number: int = 0,
        *,
        old: bytes | None = None,
        new: bytes | None = None,
        last: int = -1,
        running: int = 0,
    ) -> None:
        """Replace a row's digest in a part: None is no row.

        ``last`` is the iteration of the new row, ``running`` is added to the count.
        """
        part = self.part(table, number)
        total = part.total + _number(new) - _number(old)
        self._set(
            (table, number),
            Part(
                part.count + (new is not None) - (old is not None),
                total % _MODULUS,
                max(part.last, last),
                part.running + running,
            ),
        )

    def clear(self, table: str) -> None:
        """Forget all rows of a table of one part."""
        self._set((table, 0), Part())

    def _set(self, key: PartKey, part: Part) -> None:
        parts = self._known()
        self._before.setdefault(key, parts.get(key))
        parts[key] = part

    def write(self) -> None:
        """Write what has changed, within the transaction that changed it."""
        if not self._before:
            return
        parts, head = self._known(), self._head
        for key, before in self._before.items():
            old = None if before is None else digest_of("part", before.columns(key))
            new = self._write(key, parts[key], is_new=before is None)
            total = (head.total + _number(new) - _number(old)) % _MODULUS
            head = replace(head, count=head.count + (before is None), total=total)
        self._write(_HEAD, head, is_new=False)
        self._head = head
        self._before = {}

    def _write(self, key: PartKey, part: Part, is_new: bool) -> bytes:
        columns = part.columns(key)
        digest = digest_of("part", columns)
        if is_new:
            self._connection.execute(
                "INSERT INTO part VALUES (?, ?, ?, ?, ?, ?, ?)", (*columns, digest)
            )
            return digest
        written = self._connection.execute(
            "UPDATE part SET count = ?, total = ?, last = ?, running = ?, digest = ?"
            " WHERE name = ? AND number = ?",
            (*columns[2:], digest, *key),
        )
        require_one(written.rowcount, "part", key[0])
        return digest

    def forget(self) -> None:
        """Read the table again when it is needed: a transaction was undone."""
        self._parts = None
        self._before = {}

    def _known(self) -> dict[PartKey, Part]:
        if self._parts is None:
            self._parts = self._read()
        return self._parts

    def _read(self) -> dict[PartKey, Part]:
        rows = self._connection.execute(
            "SELECT name, number, count, total, last, running, digest FROM part"
        ).fetchall()
        check_rows("part", rows)
        parts = {
            (name, number): Part(count, int.from_bytes(total, "big"), last, running)
            for name, number, count, total, last, running, _ in rows
        }
        head = parts.pop(_HEAD, None)
        total = sum(
            int.from_bytes(row[-1], "big") for row in rows if tuple(row[:2]) != _HEAD
        )
        counted = Part(len(parts), total % _MODULUS)
        if head != counted or len(rows) != len(parts) + 1:
            raise DamageError(
                "the table part: rows are missing, are not of this journal or are "
                "older versions"
            )
        self._head = counted
        return parts


def require_one(changed: int, table: str, key: Any) -> None:
    """Raise DamageError unless a change of one row has found it."""
    if changed != 1:
        label = _LABELS[table].format(key)
        raise DamageError(f"{label} in the table {table} is not where it should be")


def _number(digest: bytes | None) -> int:
    return 0 if digest is None else int.from_bytes(digest, "big")

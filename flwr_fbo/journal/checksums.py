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
from collections import defaultdict
from collections.abc import Iterable, Sequence
from sqlite3 import Connection
from typing import Any, NamedTuple

TRIALS_IN_PART = 64
_MODULUS = 2**256
_LABELS = {
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


def _check_rows(table: str, rows: Sequence[Sequence[Any]]) -> int:
    """Return the sum of the rows' digests; raise DamageError unless each ends with it.

    A row's key is first.
    """
    total = 0
    for row, digest in zip(
        rows, digests_of(table, [r[:-1] for r in rows]), strict=True
    ):
        if row[-1] != digest:
            label = _LABELS[table].format(row[0])
            raise DamageError(f"{label} in the table {table} is not as it was written")
        total += int.from_bytes(digest, "big")
    return total % _MODULUS


class Checksums:
    """The table ``part`` of one journal, which one process holds.

    Parameters
    ----------
    connection : sqlite3.Connection

    Attributes
    ----------
    parts : dict
        The parts by table and number; one without rows where there is none.
    before : dict
        What a transaction has changed, as it was before: it is emptied when one begins.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        tables = ("head", *_LABELS)
        self.parts = {table: defaultdict[int, Part](Part) for table in tables}
        self.before: dict[tuple[str, int], Part] = {}

    def read(self) -> None:
        """Read the table."""
        rows = self._connection.execute(
            "SELECT name, number, count, total, last, running, digest FROM part"
        ).fetchall()
        total = _check_rows("part", rows)
        for name, number, count, part_total, last, running, digest in rows:
            part = Part(count, int.from_bytes(part_total, "big"), last, running, digest)
            self.parts[name][number] = part
        head = self.parts["head"][0]
        total -= int.from_bytes(head.digest or b"", "big")
        if (head.num_rows + 1, head.total) != (len(rows), total % _MODULUS):
            raise DamageError(
                "the table part: rows are missing, are not of this journal or are "
                "older versions"
            )

    def check_part(self, table: str, number: int, rows: Sequence[Any]) -> None:
        """Raise DamageError unless these are the rows of a part, all and no others."""
        part = self.parts[table][number]
        if (len(rows), _check_rows(table, rows)) != (part.num_rows, part.total):
            which = f"the table {table}"
            if table == "trial":
                first = number * TRIALS_IN_PART
                which += f", trials {first} to {first + TRIALS_IN_PART - 1}"
            raise DamageError(
                f"{which}: rows are missing, are not of this journal or are older "
                f"versions ({len(rows)} rows are there, {part.num_rows} were written)"
            )

    def change(
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
        part = self.parts[table][number]
        self.before.setdefault((table, number), part)
        total = part.total + sum(int.from_bytes(digest, "big") for digest in new)
        total -= sum(int.from_bytes(digest, "big") for digest in old)
        self.parts[table][number] = Part(
            part.num_rows + len(new) - len(old),
            total % _MODULUS,
            max(part.last, last),
            part.running + running,
            part.digest,
        )

    def write(self) -> None:
        """Write what has changed, within the transaction that changed it."""
        if not self.before:
            return
        old: list[bytes] = []
        new: list[bytes] = []
        for table, number in [*self.before, ("head", 0)]:
            if table == "head":  # all others have been written
                self.change("head", old=old, new=new)
            part = self.parts[table][number]
            columns = (part.num_rows, part.total.to_bytes(32, "big"), *part[2:4])
            [digest] = digests_of("part", [(table, number, *columns)])
            cursor = self._connection.execute(
                _INSERT if part.digest is None else _UPDATE,
                (*columns, digest, table, number),
            )
            if cursor.rowcount != 1:
                raise misplaced("part", table)
            old += [] if part.digest is None else [part.digest]
            new.append(digest)
            self.parts[table][number] = part._replace(digest=digest)


def misplaced(table: str, key: Any) -> DamageError:
    """Return the error of a change that has not found its row."""
    label = _LABELS[table].format(key)
    return DamageError(f"{label} in the table {table} is not where it should be")

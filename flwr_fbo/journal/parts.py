"""The parts of a journal's tables: what is known of their rows, on disk and here."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Callable

from flwr_fbo.journal.checksums import (
    LABELS,
    MODULUS,
    DamageError,
    Part,
    Row,
    damage_of,
    digests_of,
    part_of,
)
from flwr_fbo.journal.sql import write_row

Wanted = Callable[[int, Part], bool]


class Parts:
    """Checksums of all parts, as the table ``part`` of an open file has them.

    See `flwr_fbo.journal.checksums`. They are read when the file is opened, follow each
    row that is written, and are written with the rows, in one transaction.
    """

    def __init__(self) -> None:
        # By table and number, one without rows where there is none; "part" is the head.
        self._parts = _no_parts()
        # What a transaction has changed, as it was when that began.
        self._before: dict[tuple[str, int], Part] = {}
        # By table, the rows that were checked last: of trials those of one part.
        self._checked: dict[str, frozenset[Row]] = {}

    @property
    def head(self) -> Part:
        """The head, which stands for all rows."""
        return self._parts["part"][0]

    @property
    def last_release(self) -> int:
        """The iteration of the last release, or -1."""
        return self._parts["ledger"][0].last

    def count(self, table: str) -> int:
        """Return how many rows a table has."""
        return sum(part.num_rows for part in self._parts[table].values())

    def numbers(self, table: str, wanted: Wanted) -> list[int]:
        """Return the numbers of the parts of a table that are wanted, in order."""
        parts = sorted(self._parts[table].items())
        return [number for number, part in parts if wanted(number, part)]

    def check(self, table: str, number: int, rows: list[Row]) -> None:
        """Raise DamageError if rows are not those of a part; see `damage_of`."""
        part = self._parts[table][number]
        checked = self._checked.get(table, frozenset())
        damage = damage_of(table, number, rows, part, checked)
        if damage is not None:
            raise DamageError(damage)
        if table not in ("state", "ledger"):  # whose rows may be large
            self._checked[table] = frozenset(rows)

    def read(self, connection: sqlite3.Connection) -> bool:
        """Read all, unless the head is the one that is known; return whether it was."""
        heads = connection.execute(
            "SELECT count, total FROM part WHERE name = 'head' AND number = 0"
        ).fetchall()
        known = self.head.num_rows, self.head.total.to_bytes(32, "big")
        if heads == [known] and self.head.total:
            return True
        self._parts = _no_parts()
        rows = connection.execute(
            "SELECT name, number, count, total, last, running, digest FROM part"
        ).fetchall()
        for name, number, count, total, *_ in rows:
            if name == "head" and isinstance(total, bytes):  # not checked, but compared
                self._parts["part"][number] = Part(count, int.from_bytes(total, "big"))
        rows = [row for row in rows if row[0] != "head"]
        self.check("part", 0, rows)
        for name, number, count, total, *rest in rows:
            self._parts[name][number] = Part(count, int.from_bytes(total, "big"), *rest)
        return False

    # In a transaction

    def begin(self) -> None:
        """Begin a transaction: remember no change."""
        self._before.clear()

    def follow(self, table: str, key: object, old: Row | None, new: Row | None) -> None:
        """Count a row that is written in place of an old one, both with digests.

        None is there where there is not a row. Of the old one the digest is enough.
        """
        number = part_of(table, key)
        part = self._parts[table][number]
        self._before.setdefault((table, number), part)
        (last, runs), (_, ran) = _facts(table, new), _facts(table, old)
        self._parts[table][number] = Part(
            part.num_rows + (new is not None) - (old is not None),
            (part.total + _number(new) - _number(old)) % MODULUS,
            max(part.last, last),
            part.running + runs - ran,
            part.digest,
        )

    def write(self, connection: sqlite3.Connection) -> None:
        """Write the parts that have changed, and the head."""
        if not self._before:
            return
        before = self._before["part", 0] = self.head
        # In the transaction of the rows themselves: the disk never has one without the
        # other. The head is written last, and stands for all parts.
        count, total = before.num_rows, before.total
        for table, number in [key for key in self._before if key[0] != "part"]:
            part = self._parts[table][number]
            columns = (part.num_rows, part.total.to_bytes(32, "big"), *part[2:4])
            [digest] = digests_of("part", [(table, number, *columns)])
            key, row = (table, number), (*columns, digest)
            write_row(connection, "part", key, row, is_old=part.digest is not None)
            count += part.digest is None
            total += int.from_bytes(digest, "big")
            total -= int.from_bytes(part.digest or b"", "big")
            self._parts[table][number] = part._replace(digest=digest)
        head = self._parts["part"][0] = Part(count, total % MODULUS)
        row = (count, head.total.to_bytes(32, "big"), -1, 0, b"")
        write_row(connection, "part", ("head", 0), row, is_old=True)

    def undo(self) -> None:
        """Take back what a transaction has changed: it was undone."""
        for (table, number), part in self._before.items():
            self._parts[table][number] = part


def _no_parts() -> dict[str, defaultdict[int, Part]]:
    return {table: defaultdict[int, Part](Part, {0: Part()}) for table in LABELS}


def _facts(table: str, row: Row | None) -> tuple[int, bool]:
    """Return the iteration of a row, or -1, and whether it is a trial that runs."""
    if row is None or table not in ("trial", "ledger"):
        return -1, False
    return (row[1], row[4] == "running") if table == "trial" else (row[0], False)


def _number(row: Row | None) -> int:
    """Return the digest of a row, its last column, as a number; 0 of None."""
    return 0 if row is None else int.from_bytes(row[-1], "big")

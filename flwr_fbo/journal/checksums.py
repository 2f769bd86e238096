"""Digests of all rows of a journal: what is read is what was written, or an error.

Each row of each table has a SHA-256 digest of its table's name and all its columns. A
table is in parts: `ledger` and `identity` have one each, `trial` has one for every 64
numbers, and `state` has one for arrays whose names end in no number and one for every
64 numbers that names end in (``window-64``). For each part the table ``part`` has the
number of its rows, the sum of their digests modulo 2**256, the latest iteration in it
and how many trials in it still run; a digest covers these four too. The row ``head`` of
``part`` has the number of all parts and the sum of their digests: it needs no digest of
its own.

A journal reads ``part`` when it is opened, and then only whole parts: every row must
have its digest, and all rows together must have the count and the sum of their part. No
row is chosen by a column that has not been checked. A change costs one row of ``part``
and the head, however long the journal is. A journal that is opened again reads the head
alone if that is as it was, for then all rows are.

Detected, before anything is computed from it, is every change of a row that is read: a
changed bit, a row that is missing, that was put in, that was exchanged with another or
that is an older version of itself. Rows of a part that is not read are not checked,
and nothing is computed from them.

The table ``request`` only says where a key is: the trial itself has its key, and is
checked. A key that damage has removed from that table is not missed.

Not detected is a file that is as a whole an older copy of itself; where a peer knows
how many releases there were, it refuses it. An empty file is a new journal. Nor is
anybody detected who can write the file and computes the digests again: this is about
damage, not about forgery.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

# The columns of a row.
Row = tuple[Any, ...]

TRIALS_IN_PART = ARRAYS_IN_PART = 64
MODULUS = 2**256
LABELS = {
    "trial": "trial {}",
    "state": "array {!r}",
    "ledger": "the row iteration={}",
    "identity": "{!r} of the identity",
    "part": "the checksum of {!r}",
}

_NUMBERED = re.compile(r"-(\d{1,9})$", re.ASCII)


def part_of(table: str, key: Any) -> int:
    """Return the part that a row is in; 0 is that of arrays without a number."""
    if table == "trial":
        return int(key) // TRIALS_IN_PART
    found = _NUMBERED.search(key) if table == "state" else None
    return 0 if found is None else 1 + int(found[1]) // ARRAYS_IN_PART


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
        # The text has the length of each blob, so that no two rows have one content.
        content = b"".join((repr(values).encode(), *blobs))
        digests.append(hashlib.sha256(content).digest())
    return digests


class DamageError(ValueError):
    """Rows are not as they were written; the text says which."""


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


def damage_of(
    table: str,
    number: int,
    rows: Sequence[Row],
    part: Part,
    checked: Collection[Row] = (),
) -> str | None:
    """Return how rows differ from those of a part, all and no others; None if not.

    The first column of a row is its key, the last its digest. Rows that are among those
    ``checked`` before, to the last bit, have it.
    """
    new = [row for row in rows if row not in checked]
    digests = digests_of(table, [row[:-1] for row in new])
    for row, digest in zip(new, digests, strict=True):
        if row[-1] != digest:
            label = LABELS[table].format(row[0])
            return f"{label} in the table {table} is not as it was written"
    # Each row is as some journal wrote it. The sum says that they are these rows: an
    # older version, or a row of another journal, has another digest.
    total = sum(int.from_bytes(row[-1], "big") for row in rows) % MODULUS
    if (len(rows), total) == (part.num_rows, part.total):
        return None
    which = f"the table {table}"
    if table == "trial":
        first = number * TRIALS_IN_PART
        which += f", trials {first} to {first + TRIALS_IN_PART - 1}"
    return (
        f"{which}: rows are missing, are not of this journal or are older versions "
        f"({len(rows)} rows are there, {part.num_rows} were written)"
    )

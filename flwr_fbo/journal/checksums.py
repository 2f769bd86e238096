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

Not detected is a file that is as a whole an older copy of itself; where a peer knows
how many releases there were, it refuses it. An empty file is a new journal. Nor is
anybody detected who can write the file and computes the digests again: this is about
damage, not about forgery.
"""

from __future__ import annotations

from typing import Any, NamedTuple

TRIALS_IN_PART = ARRAYS_IN_PART = 64
LABELS = {
    "trial": "trial {}",
    "state": "array {!r}",
    "ledger": "the release of iteration {}",
    "identity": "{!r} of the identity",
    "part": "the checksum of {!r}",
}

SCHEMA_VERSION = 7

SCHEMA = """
CREATE TABLE identity (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL,
    digest BLOB NOT NULL
);
CREATE TABLE part (
    name TEXT NOT NULL,
    number INTEGER NOT NULL,
    count INTEGER NOT NULL,
    total BLOB NOT NULL,
    last INTEGER NOT NULL,
    running INTEGER NOT NULL,
    digest BLOB NOT NULL,
    PRIMARY KEY (name, number)
) WITHOUT ROWID;
INSERT INTO part VALUES ('head', 0, 0, zeroblob(32), -1, 0, zeroblob(0));
CREATE TABLE trial (
    number INTEGER PRIMARY KEY,
    iteration INTEGER NOT NULL,
    params TEXT NOT NULL,
    point BLOB NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('running', 'complete', 'failed')),
    value REAL,
    interruptions INTEGER NOT NULL,
    started REAL NOT NULL,
    finished REAL,
    source TEXT CHECK (source IN ('enqueued', 'start', 'own search', 'federation')),
    digest BLOB NOT NULL
);
CREATE TABLE state (
    name TEXT NOT NULL,
    part INTEGER NOT NULL,
    value BLOB NOT NULL,
    digest BLOB NOT NULL,
    PRIMARY KEY (part, name)
);
CREATE TABLE ledger (
    iteration INTEGER PRIMARY KEY,
    facts TEXT NOT NULL,
    vectors BLOB NOT NULL,
    committed REAL NOT NULL,
    digest BLOB NOT NULL
);
"""


class DamageError(ValueError):
    """What is read is not what was written; the text names the table and the row."""


def misplaced(table: str, key: Any) -> DamageError:
    """Return the error of a change that has not found its row."""
    label = LABELS[table].format(key)
    return DamageError(f"{label} in the table {table} is not where it should be")


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

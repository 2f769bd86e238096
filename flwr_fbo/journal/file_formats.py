"""The two formats of files: journals, and ledgers of charges.

A journal lives as long as its study: its format may change with any version of the
package, and a file of another format is refused. A ledger must never be deleted, so its
format is kept: it has a number of its own, and each change of it comes with a step that
upgrades older files. `flwr_fbo.journal.journal_file` reads and writes both.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

LEDGER_KIND = "spending"

_COMMON = """
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
CREATE TABLE ledger (
    iteration INTEGER PRIMARY KEY,
    facts TEXT NOT NULL,
    vectors BLOB NOT NULL,
    committed REAL NOT NULL,
    digest BLOB NOT NULL
);
"""
_STATE = """
CREATE TABLE state (
    name TEXT NOT NULL,
    part INTEGER NOT NULL,
    value BLOB NOT NULL,
    digest BLOB NOT NULL,
    PRIMARY KEY (part, name)
);
"""
_TRIALS = """
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
CREATE TABLE request (
    key TEXT PRIMARY KEY,
    number INTEGER NOT NULL
) WITHOUT ROWID;
"""

Step = Callable[[sqlite3.Connection], object]


@dataclass(frozen=True)
class FileFormat:
    """A format of files.

    Attributes
    ----------
    name : str
        What a file is called in errors.
    application_id : int
        Of SQLite's header: tells the formats apart.
    schema : int
        The number of the format's tables, in SQLite's ``user_version``.
    tables : str
        The statements that make a new file.
    upgrades : mapping of int to callable
        From each older schema that can be read, the step to the next one.
    """

    name: str
    application_id: int
    schema: int
    tables: str
    upgrades: Mapping[int, Step] = field(default_factory=dict)


JOURNAL = FileFormat("journal", 0, 9, _COMMON + _TRIALS + _STATE)


def _leave_journals(connection: sqlite3.Connection) -> None:
    """Turn a ledger that was a journal of schema 7 into a ledger of schema 1."""
    connection.execute("DROP TABLE trial")
    connection.execute("DROP TABLE state")


# Schema 0 is a journal of schema 7: ledgers had no number of their own then. One of
# schema 1 had no arrays beside its rows.
_LEDGER_WAS_JOURNAL = 7
_UPGRADES: dict[int, Step] = {
    0: _leave_journals,
    1: lambda connection: connection.execute(_STATE),
}
LEDGER = FileFormat("ledger", 0x66626F4C, 2, _COMMON + _STATE, _UPGRADES)


def found_format(connection: sqlite3.Connection) -> tuple[FileFormat, int]:
    """Return the format of a file that is there, and its schema."""
    application, schema = (
        int(connection.execute(f"PRAGMA {name}").fetchone()[0])
        for name in ("application_id", "user_version")
    )
    if application == LEDGER.application_id:
        return LEDGER, schema
    if schema == _LEDGER_WAS_JOURNAL:
        kind = '"spending"', "kind"
        found = "SELECT 1 FROM identity WHERE value = ? AND name = ?"
        if connection.execute(found, kind).fetchone():
            return LEDGER, 0
    return JOURNAL, schema

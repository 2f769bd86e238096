"""The SQL of a journal's tables: rows of a part are read, and one row is written."""

from __future__ import annotations

import sqlite3
from typing import Any

from flwr_fbo.journal.checksums import LABELS, TRIALS_IN_PART, DamageError, Row

# Which rows of a table are in a part, or how one of them is found; the columns after
# those that find it.
_IN_PART = {
    "identity": "",
    "trial": "WHERE number BETWEEN ? AND ? ORDER BY number",
    "state": "WHERE part = ?",
    "ledger": "ORDER BY iteration",
}
_WHERE = {
    "identity": "name = ?",
    "trial": "number = ?",
    "state": "name = ? AND part = ?",
    "part": "name = ? AND number = ?",
}
_AFTER_KEY = {
    "identity": "value, digest",
    "trial": (
        "iteration, params, point, state, value, interruptions, started, finished,"
        " source, digest"
    ),
    "state": "value, digest",
    "part": "count, total, last, running, digest",
}
CHECKED_TABLES = tuple(_IN_PART)


def rows_in_part(connection: sqlite3.Connection, table: str, number: int) -> list[Row]:
    """Return the rows of a part as they are on disk, with their digests."""
    first, last = number * TRIALS_IN_PART, (number + 1) * TRIALS_IN_PART - 1
    values = {"trial": (first, last), "state": (number,)}.get(table, ())
    statement = f"SELECT * FROM {table} {_IN_PART[table]}"
    return connection.execute(statement, values).fetchall()


def write_row(
    connection: sqlite3.Connection,
    table: str,
    key: tuple[Any, ...],
    new: Row | None,
    *,
    is_old: bool = False,
) -> None:
    """Insert a row, replace an old one, or remove it: ``new`` is what its key has.

    Raises
    ------
    DamageError
        If there is no old row of that key: nothing is written in its place.
    """
    if new is None:
        statement, values = f"DELETE FROM {table} WHERE {_WHERE[table]}", key
    elif is_old:
        marks = ", ".join("?" * len(new))
        columns = f"({_AFTER_KEY[table]}) = ({marks})"
        statement = f"UPDATE {table} SET {columns} WHERE {_WHERE[table]}"
        values = (*new, *key)
    else:
        values = (*key, *new)
        marks = ", ".join("?" * len(values))
        statement = f"INSERT INTO {table} VALUES ({marks})"
    if connection.execute(statement, values).rowcount != 1:
        label = LABELS[table].format(key[0])
        raise DamageError(f"{label} in the table {table} is not where it should be")

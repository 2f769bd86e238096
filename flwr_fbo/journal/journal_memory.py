"""The rows of a journal in memory, and as bytes between two messages of a client.

Nothing is checked: there is no disk that could change them. As bytes they are the
length of a JSON text, the text, and the arrays, in the order in which they are named.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from flwr_fbo.journal.checksums import Row
from flwr_fbo.journal.journal_file import JournalError

# Which column of a table is an array: in the text it is the length of that.
_ARRAY = {"trial": 3, "state": 2, "ledger": 2}
_LENGTH_BYTES = 8


class JournalMemory:
    """Where a `Journal` without a file has its rows; the same methods as `JournalFile`.

    Parameters
    ----------
    identity : mapping of str to JSON value, or None
        What a new journal belongs to.
    content : bytes, optional
        What `to_bytes` returned.

    Attributes
    ----------
    identity : dict of str to JSON value
        What the journal belongs to.
    """

    path = None

    def __init__(
        self, identity: Mapping[str, Any] | None, content: bytes | None = None
    ) -> None:
        self._tables: dict[str, dict[Any, Row]] = {table: {} for table in _ARRAY}
        # What a transaction has replaced.
        self._before: list[tuple[str, Any, Row | None]] = []
        if content is not None:
            self.identity = self._read(content)
        elif identity is not None:
            self.identity = json.loads(json.dumps(dict(identity)))
        else:
            raise JournalError("There is no journal in memory.")

    def _read(self, content: bytes) -> dict[str, Any]:
        """Take the rows that `to_bytes` wrote; return whom they belong to."""
        start = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES])
        try:
            identity, tables = json.loads(content[_LENGTH_BYTES:start])
        except ValueError as error:
            raise JournalError("The journal in memory is cut off, or none.") from error
        for table, column in _ARRAY.items():
            for row in tables[table]:
                end = start + row[column]
                row[column] = content[start:end]
                self._tables[table][row[0]] = tuple(row)
                start = end
        if start != len(content):
            raise JournalError("The journal in memory is cut off.")
        return dict(identity)

    def to_bytes(self) -> bytes:
        """Return the whole journal, for a later ``content``."""
        arrays: list[bytes] = []

        def length(array: bytes) -> int:
            arrays.append(array)
            return len(array)

        tables = {table: list(rows.values()) for table, rows in self._tables.items()}
        text = json.dumps([self.identity, tables], default=length).encode()
        return b"".join([len(text).to_bytes(_LENGTH_BYTES), text, *arrays])

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make all changes of a block, or none of them."""
        self._before.clear()
        try:
            yield
        except BaseException:
            for table, key, old in reversed(self._before):
                self._set(table, key, old)
            raise

    def explained(self) -> AbstractContextManager[None]:
        """Return a context for what reads rows: here nothing needs be explained."""
        return nullcontext()

    def count(self, table: str) -> int:
        """Return how many rows a table has."""
        return len(self._tables[table])

    @property
    def last_release(self) -> int:
        """The iteration of the last release, or -1."""
        return max(self._tables["ledger"], default=-1)

    def rows(self, table: str, wanted: object = None) -> list[Row]:
        """Return all rows of a table: it is in one part, which is always wanted."""
        return list(self._tables[table].values())

    def row(self, table: str, key: Any) -> Row | None:
        """Return one row, or None."""
        return self._tables[table].get(key)

    def insert(self, table: str, row: Row) -> None:
        """Add a row; in a transaction, as all changes.

        Raises
        ------
        JournalError
            If one of the same key is there.
        """
        if row[0] in self._tables[table]:
            raise JournalError(
                f"The journal in memory cannot be used: {row[0]!r} is in the table "
                f"{table} already."
            )
        self.put(table, row)

    def put(self, table: str, row: Row) -> None:
        """Add a row, or replace the one of the same key."""
        self._before.append((table, row[0], self.row(table, row[0])))
        self._set(table, row[0], row)

    def remove(self, table: str, key: Any) -> None:
        """Remove a row, if it is there."""
        self._before.append((table, key, self.row(table, key)))
        self._set(table, key, None)

    def _set(self, table: str, key: Any, row: Row | None) -> None:
        if row is None:
            self._tables[table].pop(key, None)
        else:
            self._tables[table][key] = row

    def close(self) -> None:
        """Do nothing: there is no file to let go."""

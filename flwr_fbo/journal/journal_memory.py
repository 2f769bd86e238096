"""The rows of a journal in memory, and as bytes between two messages of a client.

There are no checksums: no disk could change what is in memory. As bytes it is a JSON
text with the columns of each table, after its length. A column of arrays is a list of
their lengths there, and one of floats, which take JSON long, the length of one array:
these arrays follow, as .npy, and the length of all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from io import BytesIO
from typing import Any

import numpy as np

from flwr_fbo.journal.checksums import Row
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.journal.npy import from_npy, to_npy

# Which columns of a table are floats, None being NaN, and which one has the arrays.
_NUMBERS = {"trial": (5, 7, 8), "state": (), "ledger": (3,)}
_ARRAYS = {"trial": 3, "state": 2, "ledger": 2}
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
    made_by = ""

    def __init__(
        self, identity: Mapping[str, Any] | None, content: bytes | None = None
    ) -> None:
        self._tables: dict[str, dict[Any, Row]] = {table: {} for table in _ARRAYS}
        # What a transaction has replaced.
        self._before: list[tuple[str, Any, Row | None]] = []
        if content is None:
            if identity is None:
                raise JournalError("There is no journal in memory.")
            self.identity: dict[str, Any] = json.loads(json.dumps(dict(identity)))
            return
        stream = BytesIO(content)
        try:
            length = int.from_bytes(stream.read(_LENGTH_BYTES))
            self.identity, tables, size = json.loads(stream.read(length))
            # Bytes that were cut off would be read as shorter arrays.
            if stream.tell() + size != len(content):
                raise ValueError("not as long as it was written")
            for table, columns in tables.items():
                for i in _NUMBERS[table]:
                    columns[i] = from_npy([stream.read(columns[i])])[0].tolist()
                lengths = columns[_ARRAYS[table]]
                columns[_ARRAYS[table]] = list(map(stream.read, lengths))
                rows = zip(*columns, strict=True)
                self._tables[table] = {row[0]: row for row in rows}
        except ValueError as error:
            text = f"The journal in memory is damaged: {error}."
            raise JournalError(text) from error

    def to_bytes(self) -> bytes:
        """Return the whole journal, for a later ``content``."""
        arrays: list[bytes] = []
        tables: dict[str, list[Any]] = {}
        for table, rows in self._tables.items():
            if not rows:
                continue
            columns = tables[table] = list(zip(*rows.values(), strict=True))
            for i in _NUMBERS[table]:
                [numbers] = to_npy([np.array(columns[i], dtype=np.float64)])
                arrays.append(numbers)
                columns[i] = len(numbers)
            arrays += columns[_ARRAYS[table]]
            columns[_ARRAYS[table]] = list(map(len, columns[_ARRAYS[table]]))
        size = sum(map(len, arrays))
        text = json.dumps([self.identity, tables, size]).encode()
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

    def rows_of(self, table: str, keys: Iterable[Any]) -> list[Row]:
        """Return the rows of these keys that there are."""
        rows = self._tables[table]
        return [rows[key] for key in keys if key in rows]

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

    def put(self, table: str, *rows: Row) -> None:
        """Add rows, each in place of the one of the same key."""
        for row in rows:
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

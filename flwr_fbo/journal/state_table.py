"""The named arrays in a journal: what its owner needs to go on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from flwr_fbo.journal.checksums import misplaced
from flwr_fbo.journal.journal_file import JournalFile, digests_of
from flwr_fbo.journal.npy import from_npy, to_npy

# Name, value, digest.
StateRow = tuple[str, bytes, bytes]

# The order of the parameters is the same.
_INSERT = "INSERT INTO state (value, digest, name) VALUES (?, ?, ?)"
_UPDATE = "UPDATE state SET value = ?, digest = ? WHERE name = ?"
_DELETE = "DELETE FROM state WHERE name = ?"


def state_rows(arrays: Mapping[str, NDArray[Any]]) -> list[StateRow]:
    """Return rows of `state`; ValueError, before any is written, if one cannot be."""
    values = list(zip(arrays, to_npy(arrays.values()), strict=True))
    digests = digests_of("state", values)
    return [(*row, digest) for row, digest in zip(values, digests, strict=True)]


class StateTable(JournalFile):
    """Base of `Journal`: the named arrays."""

    # The digest of each array, by name; None until the table has been read.
    _digests: dict[str, bytes] | None = None

    def put(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Store the named arrays; others stay as they are."""
        rows = state_rows(arrays)
        with self._transaction():
            self._put(rows)

    def _put(
        self, rows: Sequence[StateRow], gone: Iterable[str] = (), replace: bool = True
    ) -> None:
        """Store rows, and remove others; without ``replace`` none may be there."""
        if self._digests is None:
            self._read_state()
        known = self._digests
        assert known is not None
        gone = [name for name in gone if name in known]
        rows = [row for row in rows if not replace or row[2] != known.get(row[0])]
        changes: list[tuple[str, tuple[Any, ...]]] = [
            (_DELETE, (name,)) for name in gone
        ]
        for name, value, digest in rows:
            statement = _UPDATE if replace and name in known else _INSERT
            changes.append((statement, (value, digest, name)))
        for statement, values in changes:
            if self._connection.execute(statement, values).rowcount != 1:
                raise misplaced("state", values[-1])
        old = [known.pop(values[-1]) for _, values in changes if values[-1] in known]
        known |= {name: digest for name, _, digest in rows}
        if changes:
            self._change("state", old=old, new=[row[2] for row in rows])

    def load_state(self) -> dict[str, NDArray[Any]]:
        """Return all named arrays."""
        with self._explained():
            rows = self._read_state()
            arrays = from_npy(row[1] for row in rows)
        return {row[0]: array for row, array in zip(rows, arrays, strict=True)}

    def _read_state(self) -> list[StateRow]:
        rows: list[StateRow] = self._connection.execute(
            "SELECT name, value, digest FROM state"
        ).fetchall()
        self._check("state", 0, rows)
        self._digests = {name: digest for name, _, digest in rows}
        return rows

    def _undone(self) -> None:
        super()._undone()
        self._digests = None

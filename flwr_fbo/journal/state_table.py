"""The named arrays in a journal: what its owner needs to go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from flwr_fbo.journal.journal_file import JournalFile
from flwr_fbo.journal.npy import from_npy, to_npy


def state_rows(arrays: Mapping[str, NDArray[Any]]) -> list[tuple[str, bytes]]:
    """Return rows of `state`; ValueError, before any is written, if one cannot be."""
    return [(name, to_npy(array)) for name, array in arrays.items()]


class StateTable(JournalFile):
    """Base of `Journal`: the named arrays."""

    def save_state(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Replace the named arrays, all of them: one transaction."""
        rows = state_rows(arrays)
        with self._explained(), self._transaction():
            self._connection.execute("DELETE FROM state")
            self._connection.executemany("INSERT INTO state VALUES (?, ?)", rows)

    def put(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Store the named arrays; others stay as they are."""
        rows = state_rows(arrays)
        with self._explained(), self._transaction():
            self._put(rows)

    def _put(self, rows: Sequence[tuple[str, bytes]]) -> None:
        self._connection.executemany("INSERT OR REPLACE INTO state VALUES (?, ?)", rows)

    def load_state(self) -> dict[str, NDArray[Any]]:
        """Return what `save_state` stored last; empty before that."""
        with self._explained():
            rows = self._connection.execute("SELECT name, value FROM state").fetchall()
            return {name: from_npy(value) for name, value in rows}

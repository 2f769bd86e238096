"""The named arrays in a journal: what its owner needs to go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from flwr_fbo.journal.checksums import digest_of, require_one
from flwr_fbo.journal.journal_file import JournalFile
from flwr_fbo.journal.npy import from_npy, to_npy

# Name, value, digest.
StateRow = tuple[str, bytes, bytes]

_INSERT = "INSERT INTO state VALUES (?, ?, ?)"


def state_rows(arrays: Mapping[str, NDArray[Any]]) -> list[StateRow]:
    """Return rows of `state`; ValueError, before any is written, if one cannot be."""
    values = [(name, to_npy(array)) for name, array in arrays.items()]
    return [(*row, digest_of("state", row)) for row in values]


class StateTable(JournalFile):
    """Base of `Journal`: the named arrays."""

    # The digest of each array, by name; None until the table has been read.
    _digests: dict[str, bytes] | None = None

    def save_state(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Replace the named arrays, all of them: one transaction."""
        rows = state_rows(arrays)
        with self._explained(), self._transaction():
            self._connection.execute("DELETE FROM state")
            self._checksums.clear("state")
            self._digests = {}
            self._insert(rows)

    def put(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Store the named arrays; others stay as they are."""
        rows = state_rows(arrays)
        with self._explained(), self._transaction():
            self._put(rows)

    def _put(self, rows: Sequence[StateRow]) -> None:
        digests = self._known_digests()
        self._insert([row for row in rows if row[0] not in digests])
        for name, value, digest in rows:
            if (old := digests[name]) == digest:
                continue
            written = self._connection.execute(
                "UPDATE state SET value = ?, digest = ? WHERE name = ?",
                (value, digest, name),
            )
            require_one(written.rowcount, "state", name)
            self._checksums.change("state", old=old, new=digest)
            digests[name] = digest

    def _insert(self, rows: Sequence[StateRow]) -> None:
        digests = self._known_digests()
        self._connection.executemany(_INSERT, rows)
        for name, _, digest in rows:
            self._checksums.change("state", new=digest)
            digests[name] = digest

    def _remove(self, name: str) -> None:
        digests = self._known_digests()
        if name not in digests:
            return
        removed = self._connection.execute("DELETE FROM state WHERE name = ?", (name,))
        require_one(removed.rowcount, "state", name)
        self._checksums.change("state", old=digests.pop(name))

    def load_state(self) -> dict[str, NDArray[Any]]:
        """Return what `save_state` stored last; empty before that."""
        with self._explained():
            return {name: from_npy(value) for name, value, _ in self._read_state()}

    def _read_state(self) -> list[StateRow]:
        rows: list[StateRow] = self._connection.execute(
            "SELECT name, value, digest FROM state"
        ).fetchall()
        self._checksums.check_part("state", 0, rows)
        self._digests = {name: digest for name, _, digest in rows}
        return rows

    def _known_digests(self) -> dict[str, bytes]:
        if self._digests is None:
            self._read_state()
        assert self._digests is not None
        return self._digests

    def _undone(self) -> None:
        super()._undone()
        self._digests = None

"""The named arrays in a journal: what its owner needs to go on.

Arrays whose names end in a number, as in ``draw-17``, become more and more. They are in
parts of their own: the others, or a few of them, can be read without reading them all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from flwr_fbo.journal.checksums import ARRAYS_IN_PART, misplaced
from flwr_fbo.journal.journal_file import JournalFile, digests_of
from flwr_fbo.journal.npy import from_npy, to_npy

# Name, part, value, digest.
StateRow = tuple[str, int, bytes, bytes]

# The order of the parameters is the same.
_INSERT = "INSERT INTO state (value, digest, part, name) VALUES (?, ?, ?, ?)"
_UPDATE = "UPDATE state SET value = ?, digest = ? WHERE part = ? AND name = ?"
_DELETE = "DELETE FROM state WHERE part = ? AND name = ?"

_NUMBERED = re.compile(r"-(\d{1,9})$", re.ASCII)
_WITHOUT_NUMBER = 0


def part_of(name: str) -> int:
    """Return the part that an array is in."""
    found = _NUMBERED.search(name)
    if found is None:
        return _WITHOUT_NUMBER
    return 1 + int(found[1]) // ARRAYS_IN_PART


def state_rows(arrays: Mapping[str, NDArray[Any]]) -> list[StateRow]:
    """Return rows of `state`; ValueError, before any is written, if one cannot be."""
    contents = zip(arrays, to_npy(arrays.values()), strict=True)
    values = [(name, part_of(name), content) for name, content in contents]
    digests = digests_of("state", values)
    return [(*row, digest) for row, digest in zip(values, digests, strict=True)]


class StateTable(JournalFile):
    """Base of `Journal`: the named arrays."""

    # The digest of each array, by name, of the parts that have been read.
    _digests: dict[int, dict[str, bytes]]

    def put(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Store the named arrays; others stay as they are."""
        rows = state_rows(arrays)
        with self._transaction():
            self._put(rows)

    def _put(
        self, rows: Sequence[StateRow], gone: Iterable[str] = (), replace: bool = True
    ) -> None:
        """Store rows, and remove others; without ``replace`` none may be there."""
        removed = list(gone)
        parts = {row[1] for row in rows} | {part_of(name) for name in removed}
        for part in sorted(parts):
            self._put_part(
                part,
                [row for row in rows if row[1] == part],
                [name for name in removed if part_of(name) == part],
                replace,
            )

    def _put_part(
        self, part: int, rows: Sequence[StateRow], gone: Iterable[str], replace: bool
    ) -> None:
        """Do the same with rows and names of one part."""
        if part not in self._digests:
            self._read_state(part)
        known = self._digests[part]
        gone = [name for name in gone if name in known]
        rows = [row for row in rows if not replace or row[-1] != known.get(row[0])]
        changes: list[tuple[str, tuple[Any, ...]]] = [
            (_DELETE, (part, name)) for name in gone
        ]
        for name, _, value, digest in rows:
            statement = _UPDATE if replace and name in known else _INSERT
            changes.append((statement, (value, digest, part, name)))
        for statement, values in changes:
            if self._connection.execute(statement, values).rowcount != 1:
                raise misplaced("state", values[-1])
        old = [known.pop(values[-1]) for _, values in changes if values[-1] in known]
        known |= {row[0]: row[-1] for row in rows}
        if changes:
            self._change("state", part, old=old, new=[row[-1] for row in rows])

    def load_state(self) -> dict[str, NDArray[Any]]:
        """Return all named arrays."""
        return self._load(sorted(self._parts["state"]))

    def load_unnumbered(self) -> dict[str, NDArray[Any]]:
        """Return the arrays whose names end in no number."""
        return self._load([_WITHOUT_NUMBER])

    def load_array(self, name: str) -> NDArray[Any] | None:
        """Return one array, or None if there is none, in a time that is bounded."""
        with self._explained():
            rows = self._read_state(part_of(name))
            found = from_npy(row[2] for row in rows if row[0] == name)
        return found[0] if found else None

    def _load(self, parts: Iterable[int]) -> dict[str, NDArray[Any]]:
        with self._explained():
            rows = [row for part in parts for row in self._read_state(part)]
            arrays = from_npy(row[2] for row in rows)
        return {row[0]: array for row, array in zip(rows, arrays, strict=True)}

    def _read_state(self, part: int) -> list[StateRow]:
        """Return the arrays of a part, all of them checked."""
        rows: list[StateRow] = self._connection.execute(
            "SELECT name, part, value, digest FROM state WHERE part = ?", (part,)
        ).fetchall()
        self._check("state", part, rows)
        self._digests[part] = {row[0]: row[-1] for row in rows}
        return rows

    def _forget(self) -> None:
        super()._forget()
        self._digests = {}

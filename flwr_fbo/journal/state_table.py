"""The named arrays in a journal: what its owner needs to go on.

Arrays whose names end in a number, as in ``draw-17``, become more and more. They are in
parts of their own: the others, or a few of them, can be read without reading them all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from flwr_fbo.journal.checksums import Row, part_of
from flwr_fbo.journal.npy import from_npy, to_npy


def state_rows(arrays: Mapping[str, NDArray[Any]]) -> list[Row]:
    """Return rows of the table ``state``; ValueError if an array cannot be in one."""
    contents = zip(arrays, to_npy(arrays.values()), strict=True)
    return [(name, part_of("state", name), content) for name, content in contents]


def arrays_of(rows: Sequence[Row]) -> dict[str, NDArray[Any]]:
    """Return the arrays of rows of the table ``state``."""
    arrays = from_npy(row[2] for row in rows)
    return {row[0]: array for row, array in zip(rows, arrays, strict=True)}

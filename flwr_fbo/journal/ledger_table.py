"""The ledger in a journal: all releases, in order."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from flwr_fbo.journal.checksums import Row
from flwr_fbo.journal.npy import from_npy, to_npy


@dataclass(frozen=True, eq=False)
class LedgerRow:
    """One release.

    Attributes
    ----------
    iteration : int
    facts : dict
        JSON values that describe it.
    vectors : ndarray
        What left, or was about to; of a server that tunes, of shape (P, M).
    committed : float
        Unix time; NaN before it is in a journal.
    """

    iteration: int
    facts: dict[str, Any]
    vectors: NDArray[Any]
    committed: float = math.nan


def release_row(release: LedgerRow) -> Row:
    """Return the row of a release that is committed now."""
    [vectors], facts = to_npy([release.vectors]), json.dumps(release.facts)
    return release.iteration, facts, vectors, time.time()


def releases_of(rows: Sequence[Row]) -> list[LedgerRow]:
    """Return the releases of rows of the table ``ledger``, in their order."""
    vectors = from_npy(row[2] for row in rows)
    return [
        LedgerRow(row[0], json.loads(row[1]), array, row[3])
        for row, array in zip(rows, vectors, strict=True)
    ]

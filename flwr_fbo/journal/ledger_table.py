"""The ledger in a journal: all releases, in order."""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from flwr_fbo.journal.journal_file import JournalError, JournalFile, digests_of
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


class LedgerTable(JournalFile):
    """Base of `Journal`: the releases."""

    def ledger(self) -> list[LedgerRow]:
        """Return all releases, in order.

        Raises
        ------
        JournalError
            If they are not as they were written.
        """
        with self._explained():
            rows = self._connection.execute(
                "SELECT iteration, facts, vectors, committed, digest FROM ledger"
                " ORDER BY iteration"
            ).fetchall()
            self._check("ledger", 0, rows)
            vectors = from_npy(row[2] for row in rows)
            return [
                LedgerRow(row[0], json.loads(row[1]), array, row[3])
                for row, array in zip(rows, vectors, strict=True)
            ]

    @property
    def num_releases(self) -> int:
        """How many releases there are."""
        return self._parts["ledger"][0].num_rows

    def _add_release(self, row: LedgerRow) -> None:
        last = self._parts["ledger"][0].last
        if row.iteration < last:
            raise JournalError(
                f"Release {row.iteration} comes too late: {last} is on record."
            )
        [vectors], facts = to_npy([row.vectors]), json.dumps(row.facts)
        columns = (row.iteration, facts, vectors, time.time())
        digests = digests_of("ledger", [columns])
        self._connection.execute(
            "INSERT INTO ledger VALUES (?, ?, ?, ?, ?)", (*columns, *digests)
        )
        self._change("ledger", new=digests, last=row.iteration)

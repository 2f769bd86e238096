"""The ledger in a journal: releases, each with a digest of all before it."""

from __future__ import annotations

import hashlib
import json
import math
import time
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from flwr_fbo.journal.journal_file import JournalError, JournalFile
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


def _digest(
    before: str, iteration: int, facts: str, vectors: bytes, committed: float
) -> str:
    """Return the digest of a row of the ledger and of all rows before it."""
    head = json.dumps([before, iteration, facts, committed]).encode()
    return hashlib.sha256(head + b"\n" + vectors).hexdigest()


class LedgerTable(JournalFile):
    """Base of `Journal`: the releases."""

    def ledger(self) -> list[LedgerRow]:
        """Return all releases, in order.

        Raises
        ------
        JournalError
            If a row is not as it was written: each carries a digest of itself and of
            the row before it.
        """
        with self._explained():
            rows = self._connection.execute(
                "SELECT iteration, facts, vectors, committed, digest FROM ledger"
                " ORDER BY iteration"
            ).fetchall()
        digest = ""
        for *entries, stored in rows:
            digest = _digest(digest, *entries)
            if digest != stored:
                raise JournalError(
                    f"The ledger in {self.path} is damaged: the release of iteration "
                    f"{entries[0]}, or one before it, is not as it was written."
                )
        return [
            LedgerRow(row[0], json.loads(row[1]), from_npy(row[2]), row[3])
            for row in rows
        ]

    @property
    def num_releases(self) -> int:
        """How many releases there are."""
        with self._explained():
            row = self._connection.execute("SELECT count(*) FROM ledger").fetchone()
        return int(row[0])

    def _add_release(self, row: LedgerRow) -> None:
        entries = (row.iteration, json.dumps(row.facts), to_npy(row.vectors))
        committed = time.time()
        last = self._connection.execute(
            "SELECT iteration, digest FROM ledger ORDER BY iteration DESC LIMIT 1"
        ).fetchone()
        if last is not None and row.iteration < last[0]:  # digests are in order
            raise JournalError(
                f"Release {row.iteration} comes too late: {last[0]} is on record."
            )
        digest = _digest("" if last is None else last[1], *entries, committed)
        self._connection.execute(
            "INSERT INTO ledger VALUES (?, ?, ?, ?, ?)", (*entries, committed, digest)
        )

"""What is in the tables of a journal: trials, releases, and named arrays.

trial     evaluations, and actions whose rewards are awaited
ledger    all releases, in order
state     named arrays: what the owner needs to go on

Append-only arrays have names that end in a number, as ``draw-17``. They are in parts of
their own: the others, or a few of them, can be read without reading them all.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from flwr_fbo.journal.checksums import Row, part_of
from flwr_fbo.journal.npy import from_npy, to_npy

TrialState = Literal["running", "complete", "failed"]
TrialSource = Literal["enqueued", "start", "own search", "federation"]


@dataclass(frozen=True, eq=False)
class Trial:
    """One evaluation, or one decision of a bandit.

    Attributes
    ----------
    number : int
        From 0, in the order of evaluation.
    iteration : int
        In which it was chosen; evaluated again after a cut, it may end in a later one.
    params : dict
        Of a decision: what was recorded, see
        `flwr_fbo.bandits.site.decisions_and_rewards`.
    point : ndarray of shape (D,)
        Where ``params`` lies on the unit cube. Of a decision: its action, shape (d,),
        or all actions that it was among, shape (K, d).
    state : {"running", "complete", "failed"}
        How far the trial is.
    value : float
        NaN unless complete.
    interruptions : int
        How often the evaluation was cut off and run again.
    started, finished : float
        Unix times; ``finished`` is NaN while running.
    source : {"enqueued", "start", "own search", "federation"}, optional
        Where the setting came from; None for an action of a bandit.
    """

    number: int
    iteration: int
    params: dict[str, Any]
    point: NDArray[np.float64]
    state: TrialState
    value: float
    interruptions: int
    started: float
    finished: float
    source: TrialSource | None


def trials_of(rows: Sequence[Row]) -> list[Trial]:
    """Return the trials of rows of the table ``trial``, in their order."""
    points = from_npy(row[3] for row in rows)
    return [
        Trial(
            number=row[0],
            iteration=row[1],
            params=json.loads(row[2]),
            point=point,
            state=row[4],
            value=math.nan if row[5] is None else row[5],
            interruptions=row[6],
            started=row[7],
            finished=math.nan if row[8] is None else row[8],
            source=row[9],
        )
        for row, point in zip(rows, points, strict=True)
    ]


def ended(row: Row, value: float, iteration: int | None = None) -> Row:
    """Return the row of a trial that has ended now; NaN is a failed one.

    Without an iteration it keeps its own.
    """
    number, began_in, params, point, _, _, cuts, started, _, source = row
    where = began_in if iteration is None else iteration
    is_failed = math.isnan(value)
    state: TrialState = "failed" if is_failed else "complete"
    kept = None if is_failed else float(value) + 0.0  # SQLite has no -0.0
    outcome = state, kept, cuts, started, time.time(), source
    return (number, where, params, point, *outcome)


@dataclass(frozen=True, eq=False)
class LedgerRow:
    """One release.

    Attributes
    ----------
    iteration : int
        Iteration of the release, from 0.
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

    @property
    def made_after(self) -> int:
        """Of a server's release: the iteration whose messages it is of, from 0."""
        # A release that was postponed has the iteration it was planned for in its row.
        return int(self.facts.get("made_after", self.iteration))


def release_row(release: LedgerRow) -> Row:
    """Return the row of a release that is committed now."""
    [vectors], facts = to_npy([release.vectors]), json.dumps(release.facts)
    return release.iteration, facts, vectors, time.time()


def releases_of(rows: Sequence[Row]) -> list[LedgerRow]:
    """Return the releases of rows of the table ``ledger``, in their order."""
    vectors = from_npy(row[2] for row in rows)
    # One text for all: half the time of one for each.
    facts = json.loads(f"[{','.join(row[1] for row in rows)}]")
    return [
        LedgerRow(row[0], about, array, row[3])
        for row, about, array in zip(rows, facts, vectors, strict=True)
    ]


def state_rows(arrays: Mapping[str, NDArray[Any]]) -> list[Row]:
    """Return rows of the table ``state``; ValueError if an array cannot be in one."""
    contents = zip(arrays, to_npy(arrays.values()), strict=True)
    return [(name, part_of("state", name), content) for name, content in contents]


def arrays_of(rows: Sequence[Row]) -> dict[str, NDArray[Any]]:
    """Return the arrays of rows of the table ``state``."""
    arrays = from_npy(row[2] for row in rows)
    return {row[0]: array for row, array in zip(rows, arrays, strict=True)}

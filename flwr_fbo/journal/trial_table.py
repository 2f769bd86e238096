"""The trials in a journal: evaluations, and actions whose rewards are awaited."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from flwr_fbo.journal.checksums import Row
from flwr_fbo.journal.npy import from_npy

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
        Of a decision: what was recorded, see `flwr_fbo.clients.bandits.bandit_store`.
    point : ndarray of shape (D,)
        Where ``params`` lies on the unit cube. Of a decision: its action, shape (d,),
        or all actions that it was among, shape (K, d).
    state : {"running", "complete", "failed"}
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

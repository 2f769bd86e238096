"""The trials in a journal: evaluations, and actions whose rewards are awaited."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from flwr_fbo.journal.journal_file import JournalFile
from flwr_fbo.journal.npy import from_npy, to_npy

TrialState = Literal["running", "complete", "failed"]


@dataclass(frozen=True, eq=False)
class Trial:
    """One evaluation.

    Attributes
    ----------
    number : int
        From 0, in the order of evaluation.
    iteration : int
        In which it was chosen; evaluated again after a cut, it may end in a later one.
    params : dict
    point : ndarray of shape (D,)
        Where ``params`` lies on the unit cube.
    state : {"running", "complete", "failed"}
    value : float
        NaN unless complete.
    interruptions : int
        How often the evaluation was cut off and run again.
    started, finished : float
        Unix times; ``finished`` is NaN while running.
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


class TrialTable(JournalFile):
    """Base of `Journal`: the trials."""

    def begin_trial(
        self, iteration: int, params: Mapping[str, Any], point: NDArray[np.float64]
    ) -> int:
        """Record that an evaluation starts; return its number.

        If the last recorded evaluation was cut off, this is it, run again.
        """
        entries = (iteration, json.dumps(dict(params)), to_npy(point), time.time())
        with self._explained(), self._transaction():
            row = self._connection.execute(
                "SELECT number FROM trial WHERE state = 'running'"
            ).fetchone()
            if row is not None:
                self._connection.execute(
                    "UPDATE trial SET interruptions = interruptions + 1, iteration = ?,"
                    " params = ?, point = ?, started = ? WHERE number = ?",
                    (*entries, row[0]),
                )
                return int(row[0])
            count = self._connection.execute("SELECT count(*) FROM trial").fetchone()
            self._connection.execute(
                "INSERT INTO trial (iteration, params, point, started, number, state)"
                " VALUES (?, ?, ?, ?, ?, 'running')",
                (*entries, count[0]),
            )
            return int(count[0])

    def end_trial(self, number: int, value: float) -> None:
        """Record what an evaluation gave; NaN is a failed one."""
        failed = math.isnan(value)
        with self._explained(), self._transaction():
            self._connection.execute(
                "UPDATE trial SET state = ?, value = ?, finished = ? WHERE number = ?",
                (
                    "failed" if failed else "complete",
                    None if failed else value,
                    time.time(),
                    number,
                ),
            )

    def add_trial(self, iteration: int, point: NDArray[np.float64]) -> int:
        """Record an action whose reward is awaited, one of many; return its number."""
        with self._explained(), self._transaction():
            number = self._connection.execute("SELECT count(*) FROM trial").fetchone()
            self._connection.execute(
                "INSERT INTO trial (number, iteration, params, point, state, started)"
                " VALUES (?, ?, '{}', ?, 'running', ?)",
                (number[0], iteration, to_npy(point), time.time()),
            )
        return int(number[0])

    def awaited(self) -> dict[int, NDArray[np.float64]]:
        """Return the points of the trials without a value, by number."""
        with self._explained():
            rows = self._connection.execute(
                "SELECT number, point FROM trial WHERE state = 'running'"
                " ORDER BY number"
            ).fetchall()
            return {int(number): from_npy(point) for number, point in rows}

    def awaited_point(self, number: int) -> NDArray[np.float64] | None:
        """Return the point of a trial, or None unless its value is awaited."""
        with self._explained():
            row = self._connection.execute(
                "SELECT point FROM trial WHERE state = 'running' AND number = ?",
                (number,),
            ).fetchone()
            return None if row is None else from_npy(row[0])

    @property
    def num_trials(self) -> int:
        """How many trials there are, with and without a value."""
        with self._explained():
            row = self._connection.execute("SELECT count(*) FROM trial").fetchone()
        return int(row[0])

    def drop_trial(self, number: int) -> None:
        """Forget an evaluation that has started, and was none."""
        with self._explained(), self._transaction():
            self._connection.execute(
                "DELETE FROM trial WHERE number = ? AND state = 'running'", (number,)
            )

    def trials(self, since: int = 0, first: int = 0) -> list[Trial]:
        """Return trials in order of evaluation.

        Parameters
        ----------
        since : int
            Those of iterations from ``since`` on.
        first : int
            Those of numbers from ``first`` on.
        """
        with self._explained():
            rows = self._connection.execute(
                "SELECT number, iteration, params, point, state, value, interruptions,"
                " started, finished FROM trial WHERE iteration >= ? AND number >= ?"
                " ORDER BY number",
                (since, first),
            ).fetchall()
            return [
                Trial(
                    number=row[0],
                    iteration=row[1],
                    params=json.loads(row[2]),
                    point=from_npy(row[3]),
                    state=row[4],
                    value=math.nan if row[5] is None else row[5],
                    interruptions=row[6],
                    started=row[7],
                    finished=math.nan if row[8] is None else row[8],
                )
                for row in rows
            ]

"""The trials in a journal: evaluations, and actions whose rewards are awaited."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from flwr_fbo.journal.checksums import TRIALS_IN_PART, misplaced
from flwr_fbo.journal.journal_file import digests_of
from flwr_fbo.journal.npy import from_npy, to_npy
from flwr_fbo.journal.state_table import StateTable, state_rows

TrialState = Literal["running", "complete", "failed"]
TrialSource = Literal["enqueued", "start", "own search", "federation"]

# The values of the columns.
TrialRow = tuple[
    int,
    int,
    str,
    bytes,
    TrialState,
    float | None,
    int,
    float,
    float | None,
    TrialSource | None,
]
# With the digest.
StoredRow = tuple[*TrialRow, bytes]

_INSERT = f"INSERT INTO trial VALUES ({'?, ' * 10}?)"
_UPDATE = (
    "UPDATE trial SET (number, iteration, params, point, state, value, interruptions,"
    f" started, finished, source, digest) = ({'?, ' * 10}?) WHERE number = ?"
)
_DELETE = "DELETE FROM trial WHERE number = ?"


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
        Of a decision: what was recorded of it, see `flwr_fbo.agents.durable.offer`.
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


class TrialTable(StateTable):
    """Base of `Journal`: the trials."""

    # What has been read, by part and by number.
    _trials: dict[int, dict[int, StoredRow]]

    def begin_trial(
        self,
        iteration: int,
        params: Mapping[str, Any],
        point: NDArray[np.float64],
        source: TrialSource,
        arrays: Mapping[str, NDArray[Any]] | None = None,
    ) -> int:
        """Record that an evaluation starts, and arrays: at once; return its number.

        If the last recorded evaluation was cut off, this is it, run again.
        """
        text, [content] = json.dumps(dict(params)), to_npy([point])
        states = state_rows(arrays or {})
        with self._transaction():
            self._put(states)
            parts = self._parts["trial"].items()
            last = [i for i, part in parts if part.running]
            rows = [row for i in last for row in self._rows(i).values()]
            cut_off = next((row for row in rows if row[4] == "running"), None)
            number = self.num_trials if cut_off is None else cut_off[0]
            cuts = 0 if cut_off is None else cut_off[6] + 1
            now = time.time()
            about = number, iteration, text, content
            row: TrialRow = (*about, "running", None, cuts, now, None, source)
            self._replace(cut_off, row)
            return number

    def end_trial(self, number: int, value: float) -> None:
        """Record what an evaluation gave; NaN is a failed one."""
        failed = math.isnan(value)
        state: TrialState = "failed" if failed else "complete"
        with self._transaction():
            self._end(number, None, state, None if failed else float(value))

    def _end(
        self, number: int, iteration: int | None, state: TrialState, value: float | None
    ) -> None:
        """Change a trial, if there is one; without an iteration it keeps its own."""
        old = self._rows(number // TRIALS_IN_PART).get(number)
        if old is None:
            return
        _, began_in, params, point, _, _, cuts, started, _, source, _ = old
        where = began_in if iteration is None else iteration
        about, times = (number, where, params, point), (started, time.time())
        self._replace(old, (*about, state, value, cuts, *times, source))

    def add_trials(
        self,
        iteration: int,
        decisions: Sequence[tuple[Mapping[str, Any], NDArray[np.float64]]],
        arrays: Mapping[str, NDArray[Any]],
    ) -> list[int]:
        """Record decisions whose rewards are awaited, and arrays: at once.

        Parameters
        ----------
        iteration : int
        decisions : sequence of (mapping, ndarray)
            What `Trial.params` and `Trial.point` are to be.
        arrays : mapping of str to ndarray

        Returns
        -------
        list of int
            The numbers of the trials.
        """
        texts = [json.dumps(dict(params)) for params, _ in decisions]
        contents, states = to_npy(p for _, p in decisions), state_rows(arrays)
        with self._transaction():
            self._put(states)
            first, now = self.num_trials, time.time()
            rows = enumerate(zip(texts, contents, strict=True), first)
            for number, about in rows:
                row = number, iteration, *about
                self._replace(None, (*row, "running", None, 0, now, None, None))
        return list(range(first, first + len(texts)))

    def trial(self, number: int) -> Trial | None:
        """Return a trial, or None if there is none of that number."""
        with self._explained():
            row = self._rows(number // TRIALS_IN_PART).get(number)
            return None if row is None else _trials_of([row])[0]

    @property
    def num_trials(self) -> int:
        """How many trials there are, with and without a value."""
        return sum(part.num_rows for part in self._parts["trial"].values())

    def drop_trial(self, number: int) -> None:
        """Forget an evaluation that has started, and was none."""
        with self._transaction():
            row = self._rows(number // TRIALS_IN_PART).get(number)
            if row is not None and row[4] == "running":
                self._replace(row, None)

    def trials(
        self, since: int = 0, first: int = 0, running: bool = False
    ) -> list[Trial]:
        """Return trials in order of evaluation.

        Parameters
        ----------
        since : int
            Those of iterations from ``since`` on.
        first : int
            Those of numbers from ``first`` on.
        running : bool
            Only those without a value.
        """
        if running and not any(part.running for part in self._parts["trial"].values()):
            return []
        with self._explained():
            rows = [
                row
                for i, part in sorted(self._parts["trial"].items())
                if part.last >= since and (i + 1) * TRIALS_IN_PART > first
                if part.running or not running
                for row in self._rows(i).values()
                if row[1] >= since and row[0] >= first
                if row[4] == "running" or not running
            ]
            return _trials_of(rows)

    def _rows(self, part: int) -> dict[int, StoredRow]:
        """Return the trials of a part, all of them checked, in order and by number."""
        if part not in self._trials:
            first = part * TRIALS_IN_PART
            rows = self._connection.execute(
                "SELECT * FROM trial WHERE number BETWEEN ? AND ? ORDER BY number",
                (first, first + TRIALS_IN_PART - 1),
            ).fetchall()
            self._check("trial", part, rows)
            self._trials[part] = {row[0]: row for row in rows}
        return self._trials[part]

    def close(self) -> None:
        """Let the file go, and the memory of trials; nothing is lost without it."""
        super().close()
        self._trials = {}

    def _forget(self) -> None:
        super()._forget()
        self._trials = {}

    def _replace(self, old: StoredRow | None, new: TrialRow | None) -> None:
        """Write ``new`` in place of ``old``: None is no row."""
        row = new if old is None else old
        assert row is not None
        digests = [] if new is None else digests_of("trial", [new])
        if new is None:
            cursor = self._connection.execute(_DELETE, row[:1])
        elif old is None:
            cursor = self._connection.execute(_INSERT, (*new, *digests))
        else:
            cursor = self._connection.execute(_UPDATE, (*new, *digests, row[0]))
        if cursor.rowcount != 1:
            raise misplaced("trial", row[0])
        part = row[0] // TRIALS_IN_PART
        read = self._trials.get(part, {})  # or one that is forgotten
        if new is None:
            read.pop(row[0], None)
        else:
            read[row[0]] = (*new, digests[0])
        self._change(
            "trial",
            part,
            old=[] if old is None else [old[-1]],
            new=digests,
            last=-1 if new is None else new[1],
            running=(new is not None and new[4] == "running")
            - (old is not None and old[4] == "running"),
        )


def _trials_of(rows: Sequence[StoredRow]) -> list[Trial]:
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

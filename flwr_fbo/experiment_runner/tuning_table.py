"""Experiments in which agents look for the best setting: their runs, table, verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import PlainValidator

from flwr_fbo._validation import require
from flwr_fbo.experiment_runner.base import Column, Experiment, FloatArray, Row, Run
from flwr_fbo.experiment_runner.estimates import Estimate
from flwr_fbo.experiment_runner.summary import summarize
from flwr_fbo.experiment_runner.tuning_runs import TuningRun
from flwr_fbo.experiment_runner.wording import ONE_SEED, carried, helped
from flwr_fbo.tasks.base import Task
from flwr_fbo.tasks.known_tasks import task_reader

AnyTask = Annotated[Task, PlainValidator(task_reader(Task))]


@dataclass(frozen=True)
class TuningRow(Row):
    """One method, beside the two it is compared to on the same seeds.

    Attributes
    ----------
    final : Estimate
        Best value after the last iteration, mean over agents.
    final_over_ts : Estimate or None
        Its paired difference, positive where this method is better; None for TS itself.
    over_ts, over_noise_only : Estimate or None
        The same for the mean best value over iterations 1 to T, or to ``until``.
    """

    final: Estimate
    final_over_ts: Estimate | None
    over_ts: Estimate | None
    over_noise_only: Estimate | None


@dataclass(frozen=True, kw_only=True)
class OptimisationExperiment(Experiment):
    """Methods that look for the best setting of a task.

    Attributes
    ----------
    task : Task
    """

    task_type: ClassVar[type[Any]] = Task
    log_axes: ClassVar[bool] = False

    task: AnyTask

    @property
    def lower_is_better(self) -> bool:
        """Whether the task is to minimize."""
        return self.task.direction == "minimize"

    def run_of(self, values: Mapping[str, Any]) -> TuningRun:
        """Return the run of a line of results."""
        run = TuningRun.from_dict(values)
        shapes = (len(run.best_so_far), {len(row) for row in run.best_so_far})
        expected = (self.num_compared, {self.num_iterations + 1})
        require(shapes == expected, "best_so_far", shapes, str(expected))
        return run

    @property
    def iterations(self) -> NDArray[np.intp]:
        """Where the runs' curves have their values."""
        return np.arange(self.num_iterations + 1)

    @property
    def axes(self) -> tuple[str, str]:
        """What the figure's two axes are called."""
        return "iteration (0: initial points)", f"best {self.task.unit} so far"

    def estimates(self) -> dict[str, Column]:
        """Return how the estimates of rows are made and shown, by name."""
        over = partial(Column, sign="+", compare=self._gain)
        return {
            "final": Column(f"iteration {self.num_iterations}", reads="end"),
            "final_over_ts": over("", control="ts", reads="end"),
            "over_ts": over("over TS*", control="ts", reads="mean"),
            "over_noise_only": over(
                "over noise-only*", control="noise-only", reads="mean"
            ),
        }

    def _gain(self, values: FloatArray, control: FloatArray) -> FloatArray:
        """Return by how much values are better than a control's."""
        return (-1.0 if self.lower_is_better else 1.0) * (values - control)

    def summarize(
        self, runs: Sequence[Run], until: int | None = None
    ) -> dict[str, TuningRow]:
        """Return a row a method; see `Experiment.summarize`."""
        return summarize(self, TuningRow, runs, until)

    def notes(self, runs: Sequence[Run], until: int | None) -> tuple[str, list[str]]:
        """Return the table's title, and what is to be said below it."""
        last = until or self.num_iterations
        lines = [
            f"* paired by seed, mean over iterations 1 to {last}; positive is better.",
        ]
        failed = self.counts(runs)["failed_trials"]
        if failed:
            lines.append(f"{failed} trials failed.")
        return f"Best {self.task.unit} so far, mean over agents", lines

    def counts(self, runs: Sequence[Run]) -> dict[str, int]:
        """Return how many trials failed."""
        failed = [run.failed_trials for run in runs if isinstance(run, TuningRun)]
        return {"failed_trials": sum(failed)}


def verdict(rows: Mapping[str, TuningRow]) -> list[str]:
    """Say in words whether federation helped, with and without privacy."""
    lines = []
    for name, what in (("fts-de", "without"), ("dp-fts-de", "with")):
        gain = rows[name].over_ts if name in rows else None
        if gain is not None:
            lines.append(
                f"Federation {what} privacy ({rows[name].label}) {helped(gain, 'TS')}"
            )
    if "dp-fts-de" in rows:
        lines += _of_private(rows["dp-fts-de"])
    if any(row.final.num_runs < 2 for row in rows.values()):
        return [ONE_SEED]
    return lines


def _of_private(row: TuningRow) -> list[str]:
    """Say whether privacy left a signal, and what is lost in the end at most."""
    lines = []
    if row.over_noise_only is not None:
        lines.append(carried(row.label, row.over_noise_only))
    final = row.final_over_ts
    if final is not None and math.isfinite(final.lower_bound):
        lines.append(at_the_end(row.label, final.lower_bound))
    return lines


def at_the_end(label: str, lower_bound: float) -> str:
    """Say what is lost in the last iteration at most."""
    if lower_bound > 0:
        return f"In the last iteration {label} is ahead of TS (one-sided 95% bound)."
    return (
        f"In the last iteration {label} is behind TS by {abs(lower_bound):.4f} at most "
        "(one-sided 95% bound)."
    )

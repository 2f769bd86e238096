"""What experiments have in common in which agents look for the best setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import PlainValidator

from flwr_fbo._validation import require
from flwr_fbo.experiment_runner.base import Column, Experiment, Run
from flwr_fbo.experiment_runner.tuning_runs import TuningRun
from flwr_fbo.experiment_runner.tuning_table import TuningRow, columns, summarize
from flwr_fbo.tasks.base import Task
from flwr_fbo.tasks.known_tasks import task_reader

AnyTask = Annotated[Task, PlainValidator(task_reader(Task))]


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

    def summarize(
        self, runs: Sequence[Run], until: int | None = None
    ) -> dict[str, TuningRow]:
        """Return a row a method; see `Experiment.summarize`."""
        return summarize(self, runs, until)

    def columns(self) -> dict[str, Column]:
        """Return the columns of the table, by the estimate of a row they show."""
        return columns(self)

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

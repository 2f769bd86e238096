"""Experiments in which agents look for the best setting: their runs, table, verdict."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import BeforeValidator

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.fields import flag, integer
from flwr_fbo._common.text import counted
from flwr_fbo._common.validation import require
from flwr_fbo.lab.experiment_runner.base import (
    Column,
    Experiment,
    Run,
    reader,
    six_digits,
)
from flwr_fbo.lab.experiment_runner.estimates import Estimate
from flwr_fbo.lab.tasks.catalogue import TuningTask
from flwr_fbo.space.search_space import Params, SearchSpace
from flwr_fbo.tuning.search.agent import Agent
from flwr_fbo.tuning.search.settings import SearchSettings
from flwr_fbo.tuning.search.study import TuningStudy

# NaN is null in a line of results.
Value = Annotated[float, BeforeValidator(lambda v: math.nan if v is None else v)]


@dataclass(frozen=True, kw_only=True)
class TuningRun(Run):
    """Result of one method on one seed.

    Attributes
    ----------
    best_so_far : list of N lists of E floats
        Each agent's best value after its evaluations 1 to E, in the order in which it
        made them; NaN before its first success. A compact run has one list, the mean
        over agents.
    failed_trials : int
        Number of failed trials of all agents.
    num_messages, num_clipped : int
        Messages that agents sent to be clipped, and how many of them were longer than
        the clip norm allows. Of DP-FTS-DE; 0 where none is clipped.
    correlation, percentile : float
        Mean correlation of the messages, and mean percentile of the followed points:
        see `TuningExperiment`; NaN where they are not measured.
    best_settings : list of N dicts or None
        Setting of each agent's best value; None where it had no success. Empty in a
        compact run.
    """

    best_so_far: list[list[Value]]
    failed_trials: int
    best_settings: list[Params | None] = field(default_factory=list)
    num_messages: int = 0
    num_clipped: int = 0
    correlation: Value = math.nan
    percentile: Value = math.nan

    @property
    def curve(self) -> FloatArray:
        """The mean over agents, shape (E,), leaving out those without a success."""
        return np.asarray(np.nanmean(np.array(self.best_so_far), axis=0))

    def compact(self) -> Self:
        """Return it with the mean over agents in place of each agent's values."""
        mean = six_digits(self.curve)
        return replace(super().compact(), best_so_far=[mean], best_settings=[])


@dataclass(frozen=True)
class Seeds:
    """The three seeds of a run, which must not be one and the same.

    Attributes
    ----------
    study : int
        Seed of the agents' draws.
    features : int
        Seed of the shared features; public.
    noise : int
        Seed of the releases' noise and masks, in place of real entropy.
    """

    study: int
    features: int
    noise: int

    @classmethod
    def of_run(cls, run: int) -> Seeds:
        """Return three seeds that no other run shares."""
        return cls(3 * run, 3 * run + 1, 3 * run + 2)


@dataclass(frozen=True, kw_only=True)
class OptimisationExperiment(Experiment):
    """Methods that look for the best setting of a task.

    Every evaluation of an agent counts, the first one too.

    Attributes
    ----------
    task : Task
        Task whose objectives are tuned.
    num_evaluations : int
        E >= 1, of each agent that is compared.
    as_loss : bool
        Whether figures show 1 - value, which falls, as the paper's figure does; of a
        task to maximize.
    y_range : (float, float), optional
        Limits of a figure's y axis, where all that is drawn would hide a part.
    """

    step: ClassVar[Literal["iteration", "evaluation"]] = "evaluation"

    task: TuningTask
    num_evaluations: int = field(metadata=integer(1))
    as_loss: bool = field(default=False, metadata=flag())
    y_range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        is_valid = not (self.as_loss and self.lower_is_better)
        require(is_valid, "as_loss", self.as_loss, "False, with a task to minimize")
        is_valid = self.y_range is None or self.y_range[0] < self.y_range[1]
        require(is_valid, "y_range", self.y_range, "a lower and an upper limit")

    @property
    def lower_is_better(self) -> bool:
        """True if the task is to minimize."""
        return self.task.direction == "minimize"

    def group(self, seed: int) -> int:
        """Return the group of like runs that a seed's is of: see `Task.group`."""
        return self.task.group(seed)

    def check(self) -> None:
        """Raise, before any work is done, if it cannot be run: see `Task.check`."""
        self.task.check(self.num_agents)

    def study(self, agent: SearchSettings, seeds: Seeds) -> TuningStudy:
        """Return what agents and their server agree on."""
        return TuningStudy(
            SearchSpace(self.task.space),
            self.task.direction,
            agent,
            study_seed=seeds.study,
            feature_seed=seeds.features,
        )

    def run_of_agents(
        self, agents: Sequence[Agent], seed: int, **values: Any
    ) -> TuningRun:
        """Return the run of agents that have made all their evaluations.

        What they observed with noise counts without it. ``values`` are those that a
        `Run` has besides.
        """
        failed = sum(int(np.isnan(agent.values).sum()) for agent in agents)
        for agent in agents:
            truth = self.task.truth(agent.slot, self.num_agents, seed)
            if truth is not None:
                agent.values = [
                    math.nan if math.isnan(y) else truth(agent.space.from_unit(x))
                    for x, y in zip(agent.points, agent.values, strict=True)
                ]
        best = [agent.best_so_far.tolist() for agent in agents]
        settings = [agent.best_setting for agent in agents]
        return TuningRun(
            seed=seed,
            best_so_far=best,
            failed_trials=failed,
            best_settings=settings,
            **values,
        )

    def run_of(self, values: Mapping[str, Any]) -> TuningRun:
        """Return the run of a line of results."""
        run: TuningRun = reader(TuningRun).validate_python(values)
        shape = np.shape(run.best_so_far)
        rows = {self.num_compared, 1}
        expected = f"{self.num_compared} (or 1) x {self.num_evaluations}"
        is_valid = shape[0] in rows and shape[1:] == (self.num_evaluations,)
        require(is_valid, "best_so_far", shape, expected)
        return run

    def best_found(self, runs: Sequence[Run], seeds: Sequence[int]) -> FloatArray:
        """Return the best value that any run of a seed ends at, shape (num_seeds,)."""
        ends: dict[int, list[float]] = {seed: [] for seed in seeds}
        for run in runs:
            if run.seed in ends:
                ends[run.seed].append(float(run.curve[-1]))
        best = min if self.lower_is_better else max
        return np.array([best(ends[seed]) for seed in seeds])

    @property
    def axes(self) -> tuple[str, str]:
        """Labels of the figure's two axes."""
        return "evaluation", f"{self.drawn_unit} so far"

    @property
    def drawn_unit(self) -> str:
        """What figures show of the best value."""
        return self.task.loss if self.as_loss else f"best {self.task.unit}"

    @property
    def falls(self) -> bool:
        """True if what figures show is better where it is lower."""
        return self.lower_is_better or self.as_loss

    def drawn(self, values: FloatArray) -> FloatArray:
        """Return values of curves as figures show them."""
        return 1.0 - values if self.as_loss else values

    def estimates(self) -> dict[str, Column]:
        """Return how the estimates of rows are made and shown, by name.

        The best value after the last evaluation, and in the mean over evaluations; and
        paired differences to controls, positive where the method is better.
        """
        over = partial(Column, sign="+", compare=self._gain)
        over_alone = partial(over, control="alone")
        return {
            "final": Column(f"evaluation {self.num_evaluations}", reads="end"),
            "mean": Column("", reads="mean"),
            "final_over_alone": over_alone("", reads="end"),
            "over_alone": over_alone(f"over {self._alone}*", reads="mean"),
            "over_noise_only": over(
                "over noise-only*", control="noise-only", reads="mean"
            ),
        }

    @property
    def _alone(self) -> str:
        """Name of the agents alone."""
        return self.label_of("alone")

    def _gain(self, values: FloatArray, control: FloatArray) -> FloatArray:
        """Return by how much values are better than a control's."""
        return (-1.0 if self.lower_is_better else 1.0) * (values - control)

    def notes(self, runs: Sequence[Run], until: int | None) -> tuple[str, list[str]]:
        """Return the table's title, and what is to be said below it."""
        last = until or self.num_evaluations
        lines = [
            f"* paired by seed, mean over evaluations 1 to {last}; positive is better.",
        ]
        failed = self.counts(runs)["failed_trials"]
        if failed:
            lines.append(f"{failed} trials failed.")
        shares = self.clipped_shares(runs)
        if shares:
            each = (f"{self.label_of(n)} {share:.2%}" for n, share in shares.items())
            lines.append(f"Messages clipped: {', '.join(each)}.")
        compared = counted(self.num_compared, self.compared)
        return f"Best {self.task.unit} so far, mean over {compared}", lines

    def clipped_shares(self, runs: Sequence[Run]) -> dict[str, float]:
        """Return the share of messages that were clipped, by method that clips."""
        sent, clipped = Counter[str](), Counter[str]()
        for run in runs:
            if isinstance(run, TuningRun) and run.num_messages:
                sent[run.method] += run.num_messages
                clipped[run.method] += run.num_clipped
        return {name: clipped[name] / number for name, number in sent.items()}

    def counts(self, runs: Sequence[Run]) -> dict[str, int]:
        """Return how many trials failed."""
        failed = [run.failed_trials for run in runs if isinstance(run, TuningRun)]
        return {"failed_trials": sum(failed)}


def at_the_end(label: str, gain: Estimate, control: str) -> list[str]:
    """Say what is lost to a control in the end at most, where that is known."""
    bound = gain.lower_bound
    if math.isnan(bound):
        return []
    text = f"is ahead of {control}"
    if bound <= 0:
        text = f"is behind {control} by {abs(bound):.4f} at most"
    return [f"After the last evaluation {label} {text} (one-sided 95% bound)."]

"""The table of an experiment that tunes: paired differences, and which verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flwr_fbo._validation import require
from flwr_fbo.experiment_runner.base import Column, Experiment, Row, Run
from flwr_fbo.experiment_runner.curves import curves_by_method, epsilon_of
from flwr_fbo.experiment_runner.estimates import Estimate
from flwr_fbo.experiment_runner.wording import ONE_SEED, carried, helped


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


def columns(experiment: Experiment) -> dict[str, Column]:
    """Return the columns of the table, by the estimate of a row they show."""
    return {
        "final": Column(f"iteration {experiment.num_iterations}"),
        "over_ts": Column("over TS*", "+"),
        "over_noise_only": Column("over noise-only*", "+"),
    }


def summarize(
    experiment: Experiment, runs: Sequence[Run], until: int | None = None
) -> dict[str, TuningRow]:
    """Do what `Experiment.summarize` says."""
    horizon = experiment.num_iterations
    until = horizon if until is None else until
    require(1 <= until <= horizon, "until", until, f"1 to {horizon}")
    curves = curves_by_method(experiment.methods, runs)
    sign = -1.0 if experiment.lower_is_better else 1.0
    known = experiment.known_methods

    def over(name: str, control: str, begin: int, end: int) -> Estimate | None:
        if name == control or control not in curves:
            return None
        gap = sign * (curves[name] - curves[control])
        return Estimate.of(gap[:, begin : end + 1].mean(axis=1))

    return {
        name: TuningRow(
            name,
            experiment.label_of(name),
            epsilon_of(runs, name),
            Estimate.of(curves[name][:, -1]),
            over(name, "ts", horizon, horizon),
            over(name, "ts", 1, until),
            over(name, known[name].noise_only or "noise-only", 1, until),
        )
        for name in experiment.methods
    }


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

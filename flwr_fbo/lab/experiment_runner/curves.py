"""Means over the seeds that all methods have run: curves, rows of tables, verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.validation import require
from flwr_fbo.lab.experiment_runner.base import Column, Experiment, Run
from flwr_fbo.lab.experiment_runner.estimates import Estimate, Row


def common_seeds(methods: Sequence[str], runs: Sequence[Run]) -> list[int]:
    """Return the seeds that each of the methods has run, in order."""
    seeds = [{run.seed for run in runs if run.method == name} for name in methods]
    return sorted(set.intersection(*seeds))


def curves_by_method(
    methods: Sequence[str], runs: Sequence[Run], of: str = "curve"
) -> dict[str, FloatArray]:
    """Return the curves of methods, one a seed, over the seeds that all have run.

    Or another attribute of runs than their curve.

    Raises
    ------
    ValueError
        If there is no such seed.
    """
    seeds = common_seeds(methods, runs)
    if not seeds:
        raise ValueError(
            "No seed has been run by all methods yet: go on with `flwr-fbo run`."
        )
    by_key = {(run.method, run.seed): run for run in runs}
    return {
        name: np.array([getattr(by_key[name, seed], of) for seed in seeds])
        for name in methods
    }


def epsilon_of(runs: Sequence[Run], method: str) -> float:
    """Return the largest epsilon that a method spent."""
    return max(run.epsilon for run in runs if run.method == method)


def summarize(
    experiment: Experiment, runs: Sequence[Run], until: int | None = None
) -> dict[str, Row]:
    """Return one row per method, by name, over the seeds that all methods have run.

    Parameters
    ----------
    experiment : Experiment
        Experiment that names the methods.
    runs : sequence of Run
        Runs of the experiment, in any order.
    until : int, optional
        The last step that counts, from 1; all unless given.

    Raises
    ------
    ValueError
        If there is no such seed, or no such step.
    """
    values = _values(experiment, runs, until)
    seeds = common_seeds(experiment.methods, runs)
    groups = [experiment.group(seed) for seed in seeds]
    return {
        method: Row(
            method,
            experiment.label_of(method),
            epsilon_of(runs, method),
            {
                name: Estimate.of(of_methods[method], groups)
                for name, of_methods in values.items()
                if method in of_methods
            },
        )
        for method in experiment.methods
    }


def _index_of(experiment: Experiment, until: int | None) -> int:
    """Return where curves have their value at the last step that counts."""
    horizon, kept = experiment.num_steps, experiment.steps
    last = horizon if until is None else until
    index = int(np.argmin(np.abs(kept - last)))
    expected = f"1 to {horizon}"
    if len(kept) < horizon:
        expected = f"a trial whose regret was kept; {kept[index]} is the nearest"
    require(1 <= last == kept[index], "until", last, expected)
    return index


def rows_by_seed(
    experiment: Experiment, runs: Sequence[Run], until: int | None
) -> list[dict[str, Any]]:
    """Return one row per method and seed, over the seeds that all methods have run.

    It has the run's epsilon, and a value for each estimate of a row; None where there
    is nothing to compare. The mean over seeds is the estimate.

    Parameters
    ----------
    experiment : Experiment
        Experiment that names the methods.
    runs : sequence of Run
        Runs of the experiment, in any order.
    until : int, optional
        Last step that counts, from 1; all unless given.

    Raises
    ------
    ValueError
        If there is no seed that all methods have run, or no such step.
    """
    values = _values(experiment, runs, until)
    by_key = {(run.method, run.seed): run for run in runs}
    rows = []
    for method in experiment.methods:
        for index, seed in enumerate(common_seeds(experiment.methods, runs)):
            run = by_key[method, seed]
            row: dict[str, Any] = {"method": method, "seed": seed}
            row |= {"epsilon": run.epsilon, "private": run.private}
            for name, of_methods in values.items():
                known = method in of_methods
                row[name] = float(of_methods[method][index]) if known else None
            rows.append(row)
    return rows


def mean_curves(
    experiment: Experiment, runs: Sequence[Run], until: int | None
) -> tuple[list[int], dict[str, list[Estimate]]]:
    """Return steps, and by method an estimate at each of them.

    Over the seeds that all methods have run.

    Raises
    ------
    ValueError
        If there is no such seed, or no such step.
    """
    end = _index_of(experiment, until) + 1
    curves = curves_by_method(experiment.methods, runs)
    steps = [int(step) for step in experiment.steps[:end]]
    return steps, {
        name: [Estimate.of(values) for values in curve[:, :end].T]
        for name, curve in curves.items()
    }


def _values(
    experiment: Experiment, runs: Sequence[Run], until: int | None
) -> dict[str, dict[str, FloatArray]]:
    """Return, by estimate, a value a seed of each method with which there is one."""
    last = _index_of(experiment, until)
    return {
        name: _values_of(experiment, column, runs, last)
        for name, column in experiment.estimates().items()
    }


def _values_of(
    experiment: Experiment, column: Column, runs: Sequence[Run], last: int
) -> dict[str, FloatArray]:
    if column.reads == "whole" and last < len(experiment.steps) - 1:
        return {}
    window = {"last": slice(last, last + 1), "mean": slice(last + 1)}.get(
        column.reads, slice(-1, None)
    )
    known = experiment.known_methods
    curves = curves_by_method(experiment.methods, runs, column.of)
    by_method: dict[str, FloatArray] = {}
    for name, curve in curves.items():
        values = curve[:, window]
        if column.control is not None:
            control = known[name].control(column.control)
            if control == name or control not in curves:
                continue
            values = column.compare(values, curves[control][:, window])
        by_method[name] = values.mean(axis=1)
    return by_method


def helped(gain: Estimate, control: str) -> str:
    """Say what a gain over a control shows; positive is better."""
    text = {
        "positive": f"does better than {control}",
        "negative": f"does worse than {control}",
        "unclear": f"cannot be told from {control} by these runs",
    }[gain.sign]
    low, high = gain.interval
    return f"{text}: {gain.mean:+.4f} (95% t interval {low:+.4f} to {high:+.4f})."


def carried(label: str, signal: Estimate) -> str:
    """Say whether agents' messages carried something through the noise."""
    if signal.sign == "positive":
        return (
            f"{label} beats its noise-only control: the agents' messages carried "
            "something through the noise."
        )
    return (
        f"These runs cannot show that {label} does better than noise-only, its "
        "control with every message zeroed "
        f"({signal.mean:+.4f} ± {signal.standard_error:.4f}): no gain of the "
        "federation is shown."
    )


ONE_SEED = "One seed shows no standard error, and so allows no verdict."

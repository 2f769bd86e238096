"""Curves of methods, over the seeds that all of them have run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flwr_fbo.experiment_runner.base import FloatArray, Run


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

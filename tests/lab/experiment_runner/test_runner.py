"""Runs of an experiment: what methods share, and that they repeat."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.lab.experiment_runner.runner import play
from flwr_fbo.lab.experiment_runner.tuning_experiment import (
    METHODS,
    TuningExperiment,
    TuningPrivacy,
    run_one,
)
from flwr_fbo.lab.experiment_runner.tuning_table import Seeds
from flwr_fbo.lab.tasks.synthetic import SyntheticTask
from flwr_fbo.privacy.release import Release
from tests.support.experiments import (
    SMALL,
    Quadratic,
)


def test_all_methods_share_their_initial_points() -> None:
    runs = [run_one(SMALL, method, seed=1) for method in METHODS]
    first = [np.array(run.best_so_far)[:, :10] for run in runs]
    for values in first[1:]:
        np.testing.assert_array_equal(values, first[0])
    assert len({run.curve.tobytes() for run in runs}) > 2
    spent = {run.method: run.epsilon for run in runs}
    assert spent["alone"] == spent["random"] == spent["noise-only"] == 0.0
    assert spent["open"] == math.inf
    assert 0 < spent["private"] < 10
    assert sum(run.failed_trials for run in runs) > 0
    private = {run.method for run in runs if run.private}
    assert private == {"alone", "random"}  # seeded noise protects nobody


def test_one_process_has_one_blas_thread_too(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    def noted(*_: Any) -> list[Any]:
        pools = threadpool_info()
        threads.append({p["num_threads"] for p in pools if p["user_api"] == "blas"})
        return []

    monkeypatch.setattr(TuningExperiment, "play", noted)
    with threadpool_limits(2):
        assert list(play(SMALL, [("alone", 0)], 1)) == []
    assert threads == [{1}]


def test_runs_repeat_whatever_the_number_of_workers() -> None:
    todo = [("alone", seed) for seed in range(2)]
    one, two = list(play(SMALL, todo, 1)), list(play(SMALL, todo, 2))
    curves = {run.seed: run.curve.tolist() for run in one}
    assert curves == {run.seed: run.curve.tolist() for run in two}


def test_curves_of_noisy_functions_are_without_noise() -> None:
    experiment = replace(SMALL, task=SyntheticTask(), preset="paper-synthetic")
    run = run_one(experiment, "random", seed=0)
    best = np.array(run.best_so_far)
    assert np.all(best <= 1.02)  # noisy ones would exceed it
    assert run.failed_trials == 0


def test_seeds_of_a_run_are_three_and_its_own() -> None:
    seeds = [s for run in range(50) for s in vars(Seeds.of_run(run)).values()]
    assert len(set(seeds)) == 150


def test_liars_all_praise_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they send reaches the server, which clips it."""
    methods = ("alone", "random", "noise-only", "private", "liars")
    task = Quadratic()
    voting = replace(
        SMALL,
        num_agents=6,
        strategy="FedVote",
        privacy=TuningPrivacy(1e-3, noise_multiplier=1e-3),
        methods=methods,
        task=task,
    )
    seen: dict[int, FloatArray] = {}
    release = Release.release

    def spy(self: Release, t: int, messages: Any, num_features: int) -> FloatArray:
        seen.update(messages)
        return release(self, t, messages, num_features)

    monkeypatch.setattr(Release, "release", spy)
    run_one(voting, "liars", 0)
    norms = [float(np.linalg.norm(seen[slot])) for slot in range(6)]
    np.testing.assert_allclose(norms, [1e6, 1e6, 1, 1, 1, 1])
    np.testing.assert_array_equal(seen[0], seen[1])
    blind = replace(voting, methods=("alone", "random", "noise-only", "blind"))
    run_one(blind, "blind", 0)
    norms = [float(np.linalg.norm(seen[slot])) for slot in range(6)]
    np.testing.assert_allclose(norms, [1e6] * 6)
    assert len({tuple(message) for message in seen.values()}) == 6

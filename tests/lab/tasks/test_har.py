"""Logistic regression on HAR: SGD as it is documented, whatever the data."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from optuna.distributions import FloatDistribution, IntDistribution

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.random import Purpose, generator
from flwr_fbo.lab.datasets.base import DataError, Split, data_folder
from flwr_fbo.lab.experiment_runner.config import builtin_experiments, load_experiment
from flwr_fbo.lab.experiment_runner.tuning_experiment import TuningExperiment, run_one
from flwr_fbo.lab.tasks import har
from flwr_fbo.lab.tasks.har import HarTask
from flwr_fbo.space.search_space import SearchSpace

needs_har = pytest.mark.skipif(
    not (data_folder() / "har").is_dir(), reason=f"no folder har in {data_folder()}"
)

GOOD = {"batch_size": 128, "l2": 1e-4, "learning_rate": 0.1}
SETTINGS: list[dict[str, Any]] = [
    GOOD,
    {"batch_size": 512, "l2": 1e-6, "learning_rate": 1e-3},
    {"batch_size": 160, "l2": 0.3, "learning_rate": 0.02},
    {"batch_size": 140, "l2": 10.0, "learning_rate": 1.0},  # decay is held at zero
]


def _windows(num: int, rng: np.random.Generator) -> tuple[FloatArray, Any]:
    """Return overlapping classes; feature 0 is constant, 1 is on a scale of its own."""
    y = np.arange(num) % 6
    X = rng.normal(size=(num, 40)) + 2.0 * np.eye(6, 40)[:, ::-1][y]
    X[:, 0] = 0.3
    X[:, 1] = 1e3 + 1e2 * X[:, 1]
    return X, y


@pytest.fixture
def subject(monkeypatch: pytest.MonkeyPatch) -> Split:
    """Return one subject, which all clients hold: fewer windows than real ones."""
    rng = np.random.default_rng(0)
    data = Split(*_windows(150, rng), *_windows(170, rng))
    monkeypatch.setattr(har, "partition", lambda client: data)
    return data


def _reference(
    data: Split, seed: int, client: int, *, batch_size: int, l2: float, rate: float
) -> FloatArray:
    """Return the validation scores by SGD on the weights themselves, in float64."""
    mean, deviation = data.X_train.mean(axis=0), data.X_train.std(axis=0)
    deviation[deviation < 1e-9] = 1.0
    X, X_validation = (
        (x - mean) / deviation for x in (data.X_train, data.X_validation)
    )
    rng = generator(seed, client, Purpose.TRAINING)
    W, b = np.zeros((X.shape[1], 6)), np.zeros(6)
    for order in [rng.permutation(len(X)) for _ in range(50)]:
        for batch in np.split(order, range(batch_size, len(X), batch_size)):
            odds = np.exp(X[batch] @ W + b)
            residual = odds / odds.sum(axis=1, keepdims=True)
            residual[np.arange(len(batch)), data.y_train[batch]] -= 1
            W = max(0.0, 1 - rate * l2) * W - rate * X[batch].T @ residual / len(batch)
            b = b - rate * residual.mean(axis=0)
    return np.asarray(X_validation @ W + b)


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_error_is_that_of_plain_sgd(subject: Split, setting: Any) -> None:
    setting = dict(setting)
    error = HarTask().objective(3, 30, seed=5)(setting)
    rate = setting.pop("learning_rate")
    scores = _reference(subject, 5, 3, rate=rate, **setting)
    expected = np.mean(scores.argmax(axis=1) != subject.y_validation)
    assert error == pytest.approx(expected, abs=1e-9)


def test_settings_matter(subject: Split) -> None:
    error = HarTask().objective(0, 30, seed=0)
    values = [error(setting) for setting in SETTINGS]
    assert len(set(values)) == len(values)
    assert values[-1] > values[0] + 0.2  # nothing but the last batch is remembered


@pytest.mark.parametrize("log", [True, False])
def test_every_setting_gives_an_error_rate(subject: Split, log: bool) -> None:
    space = SearchSpace(HarTask(log=log).space)
    error = HarTask(log=log).objective(0, 30, seed=0)
    corners = np.array(np.meshgrid(*[[0.0, 1.0]] * 3)).reshape(3, -1).T
    for u in corners:
        assert 0.0 <= error(space.from_unit(u)) <= 1.0


def test_a_run_repeats_and_seeds_and_clients_differ(subject: Split) -> None:
    def values(client: int, seed: int) -> list[float]:
        error = HarTask().objective(client, 30, seed)
        return [error(setting) for setting in SETTINGS]

    first = values(0, 0)
    error = HarTask().objective(0, 30, 0)
    assert [error(s) for s in reversed(SETTINGS)] == first[::-1]
    assert values(1, 0) != first
    assert values(0, 1) != first


@pytest.mark.parametrize("log", [True, False])
def test_the_ranges_are_the_published_ones(log: bool) -> None:
    assert dict(HarTask(log=log).space) == {
        "batch_size": IntDistribution(128, 512, log=log),
        "l2": FloatDistribution(1e-6, 10.0, log=log),
        "learning_rate": FloatDistribution(1e-6, 1.0, log=log),
    }
    assert HarTask.direction == "minimize"


def test_bad_arguments_are_named(subject: Split) -> None:
    HarTask().check(1)
    HarTask().check(30)
    for number in (0, 31, True, 2.0):
        with pytest.raises(ValueError, match=f"num_agents={number!r} is not allowed"):
            HarTask().check(number)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="log=1 is not allowed: True or False"):
        HarTask(log=1)  # type: ignore[arg-type]


def test_missing_data_are_named(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLWR_FBO_DATA", str(tmp_path))
    with pytest.raises(DataError, match="har"):
        HarTask().check(30)


@needs_har
def test_good_settings_tell_the_activities_apart() -> None:
    HarTask().check(30)
    objectives = [HarTask().objective(i, 30, seed=0) for i in range(0, 30, 6)]

    def mean(**setting: float) -> float:
        return float(np.mean([error(GOOD | setting) for error in objectives]))

    assert mean() < 0.05
    assert 0.2 < mean(learning_rate=1e-6) < 0.5
    assert 0.4 < mean(l2=10.0, learning_rate=1.0) < 0.95


@needs_har
@pytest.mark.parametrize("log", [True, False])
def test_the_experiment_runs_on_either_scale(log: bool) -> None:
    har_experiment = load_experiment(builtin_experiments()["har"])
    assert isinstance(har_experiment, TuningExperiment)
    assert har_experiment.task == HarTask()
    assert (har_experiment.num_agents, har_experiment.num_evaluations) == (30, 70)
    plan = replace(
        har_experiment, task=HarTask(log=log), num_agents=4, num_evaluations=12
    )
    run = run_one(plan, "private", seed=0)
    assert run.failed_trials == 0
    best = np.array(run.best_so_far)
    assert best.shape == (4, 12)
    assert (np.diff(best) <= 0).all()  # errors, of which the smallest is the best
    assert (best[:, -1] < 5 / 6).all()

"""Functions drawn for each client: how alike they are, and what is observed."""

import math
from typing import Any

import numpy as np
import pytest

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.lab.tasks.synthetic import SyntheticTask

GRID = np.arange(1000) / 999


def _mean_correlation(rows: list[FloatArray]) -> float:
    matrix = np.asarray(np.corrcoef(rows))
    return float(np.mean(matrix[np.triu_indices(len(rows), 1)]))


def _function(task: SyntheticTask, client: int, seed: int) -> FloatArray:
    truth = task.truth(client, 200, seed)
    return np.array([truth({"x": float(x)}) for x in GRID])


def test_homogeneous_agents_share_one_function() -> None:
    agents = np.array([_function(SyntheticTask(), i, seed=5) for i in range(40)])
    base = agents.mean(axis=0)  # within 0.02 / sqrt(3 * 40) = 0.002 of it
    assert base.min() == pytest.approx(0.0, abs=0.01)
    assert base.max() == pytest.approx(1.0, abs=0.01)
    deviations = agents - base
    assert 0.019 < np.abs(deviations).max() < 0.04
    assert np.std(deviations) == pytest.approx(0.02 / math.sqrt(3), rel=0.05)
    correlation = np.corrcoef(deviations)
    assert np.abs(correlation - np.eye(40)).max() < 0.2
    # Independent along the grid as well.
    lag = np.corrcoef(deviations[:, 1:].ravel(), deviations[:, :-1].ravel())[0, 1]
    assert abs(lag) < 0.05


def test_functions_fill_the_unit_interval() -> None:
    values = _function(SyntheticTask(alpha=1.0), 0, 0)
    assert values.min() == 0.0
    assert values.max() == 1.0


def test_agents_lie_between_their_own_function_and_the_shared_one() -> None:
    same, own, half = (
        _function(SyntheticTask(alpha=alpha), 2, seed=1) for alpha in (0.0, 1.0, 0.5)
    )
    np.testing.assert_allclose(half, (same + own) / 2, atol=1e-12)


def test_the_kernel_is_the_published_one() -> None:
    draws = np.array(
        [
            _function(SyntheticTask(alpha=1.0), i, seed)
            for seed in range(5)
            for i in range(20)
        ]
    )
    # Scaled draws have their own means and sizes: take both from each.
    draws = (draws - draws.mean(axis=1, keepdims=True)) / draws.std(
        axis=1, keepdims=True
    )
    for lag, tolerance in ((15, 0.03), (30, 0.06), (90, 0.08)):
        expected = math.exp(-0.5 * (lag / 999 / 0.03) ** 2)
        correlation = float(np.mean(draws[:, lag:] * draws[:, :-lag]))
        # Taking the mean out costs about lengthscale * sqrt(2 pi) = 0.08.
        assert correlation == pytest.approx((expected - 0.075) / 0.925, abs=tolerance)
    # The far ends of the circle that draws are made on have nothing in common.
    assert abs(np.mean(draws[:, 0] * draws[:, -1])) < 0.35


def test_heterogeneous_agents_have_little_in_common() -> None:
    def similarity(alpha: float) -> float:
        agents = [_function(SyntheticTask(alpha=alpha), i, seed=0) for i in range(20)]
        return _mean_correlation(agents)

    assert similarity(0.0) > 0.98
    assert 0.2 < similarity(0.5) < 0.8
    assert abs(similarity(1.0)) < 0.08


def test_seeds_have_functions_of_their_own() -> None:
    functions = [_function(SyntheticTask(), 0, seed) for seed in range(20)]
    assert abs(_mean_correlation(functions)) < 0.08


def test_runs_share_a_function_and_differ_in_noise() -> None:
    """Run s has function first + s // k, by counting; the noise is its own."""
    task = SyntheticTask(signs=True, runs_per_function=5, first_function=3)
    plain = SyntheticTask(signs=True)
    for seed, number in ((0, 3), (4, 3), (5, 4), (19, 6)):
        np.testing.assert_array_equal(
            _function(task, 1, seed), _function(plain, 1, number)
        )

    def noise(seed: int) -> float:
        x = {"x": 0.3}
        return task.objective(1, 200, seed)(x) - task.truth(1, 200, seed)(x)

    assert len({noise(seed) for seed in range(5)}) == 5


def test_deviations_are_plus_or_minus_d() -> None:
    """At each of 40 x 1000 places, with probability 1/2 each."""
    base = _function(SyntheticTask(deviation=0.0), 0, seed=5)
    task = SyntheticTask(signs=True, num_exact=1)
    signs = np.array([_function(task, i, seed=5) - base for i in range(1, 41)])
    np.testing.assert_allclose(np.abs(signs), 0.02, atol=1e-12)
    # Within four standard errors.
    assert np.mean(signs > 0) == pytest.approx(0.5, abs=4 * 0.5 / math.sqrt(40_000))
    assert np.abs(np.corrcoef(signs) - np.eye(40)).max() < 0.2
    np.testing.assert_array_equal(_function(task, 0, seed=5), base)


def test_the_nearest_grid_point_is_evaluated() -> None:
    truth = SyntheticTask().truth(0, 1, seed=0)
    assert truth({"x": 499.4 / 999}) == truth({"x": 499 / 999})
    assert truth({"x": 499.6 / 999}) == truth({"x": 500 / 999})
    assert truth({"x": 0}) != truth({"x": 1})


def test_observations_have_independent_noise_of_the_published_variance() -> None:
    task = SyntheticTask(alpha=0.4)
    xs = np.random.default_rng(0).random(500)

    def noise(client: int, seed: int) -> FloatArray:
        observe = task.objective(client, 3, seed)
        truth = task.truth(client, 3, seed)
        return np.array([observe(p) - truth(p) for p in ({"x": float(x)} for x in xs)])

    errors = np.array([noise(0, 0), noise(1, 0), noise(0, 1), noise(1, 1)])
    assert np.var(errors) == pytest.approx(0.01, rel=0.1)
    assert abs(np.mean(errors)) < 0.01
    assert np.abs(np.corrcoef(errors) - np.eye(4)).max() < 0.15
    np.testing.assert_array_equal(noise(0, 0), errors[0])
    # Two points of one grid cell: the same function value, other noise.
    observe = task.objective(0, 3, seed=0)
    assert observe({"x": 0.5001}) != observe({"x": 0.5002})


def test_a_run_that_goes_on_observes_the_same() -> None:
    xs = [float(x) for x in np.random.default_rng(1).random(10)]
    observe = SyntheticTask().objective(7, 200, seed=2)
    first = [observe({"x": x}) for x in xs]
    again = SyntheticTask().objective(7, 200, seed=2)
    assert [again({"x": x}) for x in reversed(xs)] == first[::-1]


@pytest.mark.parametrize("alpha", [1.1, math.nan, "0.5"])
def test_a_bad_alpha_is_named(alpha: Any) -> None:
    with pytest.raises(ValueError, match=f"alpha={alpha!r} is not allowed"):
        SyntheticTask(alpha=alpha)


def test_synthetic_names_bad_clients() -> None:
    SyntheticTask().check(200)
    with pytest.raises(ValueError, match="num_agents=0 is not allowed"):
        SyntheticTask().check(0)
    with pytest.raises(ValueError, match="client=3 is not allowed: 0 to 2"):
        SyntheticTask().objective(3, 3, seed=0)

"""What last digits must not decide."""

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from flwr_fbo._common.arrays import PRECISION, first_best, one_blas_thread
from flwr_fbo.lab.baselines.transfer import root
from flwr_fbo.lab.tasks.base import ObservationNoise
from flwr_fbo.lab.tasks.synthetic import SyntheticTask
from flwr_fbo.models.features import RandomFeatures


def test_of_values_that_are_all_but_equal_the_first_wins() -> None:
    below = 5.0 * (1.0 - 0.5 * PRECISION)
    assert first_best(np.array([1.0, below, 5.0, -2.0])) == 1
    assert first_best(np.array([1.0, 5.0 * (1.0 - 2.0 * PRECISION), 5.0])) == 2
    assert first_best(np.zeros(3)) == 0


def test_values_below_zero_and_tiny_ones_are_compared_by_their_size() -> None:
    assert first_best(np.array([-3.0, -1.0, -2.0])) == 1
    assert first_best(1e-300 * np.array([1.0, 3.0, 2.0])) == 1
    assert first_best(np.array([-1e12, 0.0, 1.0])) == 1  # 1 is rounding there


def test_nan_is_chosen_only_where_there_is_nothing_else() -> None:
    nan, inf = np.nan, np.inf
    assert first_best(np.array([nan, -4.0, nan, 2.0])) == 3
    assert first_best(np.array([nan, nan])) == 0
    assert first_best(np.array([-inf, 7.0, inf, inf])) == 2
    assert first_best(np.array([-inf, -inf])) == 0


def test_rows_are_decided_one_by_one() -> None:
    values = np.random.default_rng(0).standard_normal((4, 5, 6))
    chosen = first_best(values)
    assert chosen.shape == (4, 5)
    np.testing.assert_array_equal(chosen, values.argmax(axis=-1))


def test_the_largest_of_many_points_are_those_of_double_precision() -> None:
    rng = np.random.default_rng(1)
    features = RandomFeatures.draw(rng, 40, 2, 0.3)
    x, weights = rng.random((500, 2)), rng.standard_normal((3, 40))
    # Many that only double precision tells apart.
    x[250:] = x[:250] + 1e-9
    index = np.tile(np.arange(3), 167)[:500]
    index[250:] = index[:250]
    exact = features.function(x, weights[index])
    rough = features.rough_values(x, weights, index)
    largest = features.largest(x, weights, index, rough, 20)
    np.testing.assert_array_equal(largest, np.argsort(-exact, kind="stable")[:20])
    few = features.largest(x[:3], weights, index[:3], rough[:3], 20)
    assert len(few) == 3


def test_the_root_of_a_covariance_does_not_depend_on_eigenvectors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    half = np.random.default_rng(2).standard_normal((6, 4))
    covariance = half @ half.T  # singular
    found = root(covariance)
    np.testing.assert_allclose(found @ found.T, covariance, atol=1e-12)
    values, vectors = np.linalg.eigh(covariance)
    flipped = values, vectors * np.array([1, -1, 1, -1, -1, 1])
    monkeypatch.setattr(np.linalg, "eigh", lambda matrix: flipped)
    np.testing.assert_allclose(root(covariance), found, atol=1e-7)


def test_noise_depends_on_place_and_count_but_on_no_last_bit() -> None:
    task = SyntheticTask()
    one, other = (task.objective(1, 3, seed=5) for _ in range(2))
    x = 0.3
    above = float(np.nextafter(x, 1.0))
    values = [one({"x": x}) for _ in range(3)]
    assert values == [other({"x": above}) for _ in range(3)]
    assert len(set(values)) == 3
    assert one({"x": 0.7}) == other({"x": 0.7})


def test_clients_and_runs_have_noise_of_their_own() -> None:
    draws = {
        float(ObservationNoise(seed, client).generator((4, 2)).random())
        for seed in range(3)
        for client in range(3)
    }
    assert len(draws) == 9


def test_a_drawn_function_is_the_same_to_nine_digits_after_other_rounding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = SyntheticTask(deviation=0.0)
    grid = np.linspace(0.0, 1.0, 1000)
    truth = task.truth(0, 1, seed=3)
    plain = [truth({"x": x}) for x in grid]
    rfft = np.fft.rfft

    def otherwise(values: np.ndarray) -> np.ndarray:
        found = rfft(values)
        rounding = np.random.default_rng(0).standard_normal(found.shape)
        return np.asarray(found + 1e-15 * np.abs(found).max() * rounding)

    monkeypatch.setattr(np.fft, "rfft", otherwise)
    truth = task.truth(0, 1, seed=3)
    rounded = [truth({"x": x}) for x in grid]
    np.testing.assert_allclose(rounded, plain, rtol=0, atol=1e-9)


def test_one_blas_thread_limits_and_gives_back() -> None:
    def threads() -> list[int]:
        return [p["num_threads"] for p in threadpool_info() if p["user_api"] == "blas"]

    with threadpool_limits(2):  # whatever the tests run with
        assert set(threads()) == {2}
        assert set(one_blas_thread(threads)()) == {1}
        assert set(threads()) == {2}

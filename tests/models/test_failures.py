"""Failed trials are bad ones to the model, and no penalty makes the others alike."""

import math
from typing import Any

import numpy as np
import pytest

from flwr_fbo.models.failures import winsorised, with_failures

GOOD = np.array([0.3, 0.9, 0.1, 0.5, 0.7])


@pytest.mark.parametrize("penalty", [-1e12, -1e99, -1e4])
@pytest.mark.parametrize("num", [1, 4, 20])
def test_the_others_differ_whatever_the_penalty(penalty: float, num: int) -> None:
    rng = np.random.default_rng(num)
    y = np.append(GOOD, penalty * rng.uniform(0.5, 1.5, num))
    bounded = winsorised(y)
    np.testing.assert_array_equal(bounded[:5], GOOD)
    assert np.all(bounded[5:] == GOOD.min())


def test_two_are_enough_for_a_penalty_that_is_worse_by_far() -> None:
    y = np.array([0.4, -1e12, 0.5])
    np.testing.assert_array_equal(winsorised(y), [0.4, 0.4, 0.5])


def test_units_and_offsets_change_nothing() -> None:
    y = np.append(GOOD, [-1e7, -3e8])
    scaled = winsorised(3.0 + 1e-3 * y)
    np.testing.assert_allclose(scaled, 3.0 + 1e-3 * winsorised(y), rtol=1e-9)


@pytest.mark.parametrize(
    "y",
    [
        [],
        [0.2],
        [0.2, -1e12],
        [0.9, 0.9001, -10.0],  # near each other by chance
        [0.9, 0.9, 0.9, 0.5],  # equal ones are no scale
        [-(2.0**k) for k in range(30)],  # each far from the last, none from all
        list(np.random.default_rng(1).standard_cauchy(50)),
        list(np.random.default_rng(2).standard_normal(50)),
    ],
)
def test_values_that_only_spread_widely_stay(y: Any) -> None:
    y = np.array(y)
    assert winsorised(y) is y


def test_a_failed_trial_has_the_worst_value() -> None:
    x = np.arange(12.0).reshape(6, 2)
    y = np.array([0.5, -2.0, 0.1, 0.2, 0.3, math.nan])
    trials = with_failures(x, y)
    np.testing.assert_array_equal(trials.x, x)
    np.testing.assert_array_equal(trials.y, [*y[:5], -2.0])
    np.testing.assert_array_equal(trials.failed, [False] * 5 + [True])
    assert not trials.fail_often


def test_failures_that_are_many_are_worse_than_that() -> None:
    y = np.array([0.5, -1.5, 0.1, 0.2, math.nan])
    trials = with_failures(np.zeros((5, 1)), y)
    np.testing.assert_array_equal(trials.y, [*y[:4], -2.5])
    assert trials.fail_often


def test_a_penalty_out_of_all_bounds_is_a_failure() -> None:
    y = np.array([0.5, -1e12, 0.2, 0.4, 0.3, 0.3])
    trials = with_failures(np.zeros((6, 1)), y)
    np.testing.assert_array_equal(trials.y, [0.5, 0.2, 0.2, 0.4, 0.3, 0.3])
    np.testing.assert_array_equal(trials.failed, np.arange(6) == 1)


@pytest.mark.parametrize("num", [0, 3])
def test_where_all_have_failed_nothing_is_known(num: int) -> None:
    trials = with_failures(np.zeros((num, 2)), np.full(num, math.nan))
    assert trials.x.shape == (0, 2)
    assert len(trials.y) == len(trials.failed) == 0

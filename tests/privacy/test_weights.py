"""Weights of sub-regions: the schedule of the paper, and what is refused."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from flwr_fbo.privacy.weights import WeightSchedule


def test_weight_schedule_of_the_paper() -> None:
    synthetic = WeightSchedule(num_constant_rounds=5, num_decay_rounds=5)
    values = [synthetic.concentration(t) for t in range(11)]
    assert values == [16.0] * 6 + [12.25, 8.5, 4.75, 1.0, 1.0]
    real = WeightSchedule()
    assert [real.concentration(t) for t in (0, 9, 10, 39, 40)] == [16, 16, 16, 1, 1]
    weights = real.weights(0, 29, 4)
    np.testing.assert_allclose(weights.sum(axis=0), 1.0)
    assert weights[0, 0] == pytest.approx(1 / 8, abs=1e-5)
    assert weights[1, 1] == pytest.approx(1 / 7, abs=1e-5)
    np.testing.assert_allclose(real.weights(60, 29, 4), 1 / 29)


PUBLISHED_WEIGHTS: dict[str, tuple[WeightSchedule, Callable[[float], float], float]] = {
    "weights 1": (WeightSchedule(peak=9.0), lambda a: math.exp(a - 1), 10.0),
    "weights 2": (WeightSchedule(peak=1000.0, form="linear"), lambda a: a, 1000.0),
    "weights 3": (WeightSchedule(peak=40.0, form="squared"), lambda a: a**2, 40.0),
}


@pytest.mark.parametrize("name", PUBLISHED_WEIGHTS)
def test_weights_are_those_of_appendix_b23(name: str) -> None:
    """Agent by agent: its ratio to the others, from the first a_t to the last, 1."""
    schedule, ratio, first = PUBLISHED_WEIGHTS[name]
    num_sub_regions = 3
    for t in (0, 9, 10, 17, 25, 38, 39, 60):
        done = min(max(t - 10, 0), 29) / 29
        a = first + (1 - first) * done
        weights = schedule.weights(t, 7, num_sub_regions)
        for region in range(num_sub_regions):
            raw = [ratio(a) if n % num_sub_regions == region else 1.0 for n in range(7)]
            expected = np.array(raw) / sum(raw)
            np.testing.assert_allclose(weights[:, region], expected, rtol=1e-9)


@pytest.mark.parametrize("num_sub_regions", [1, 3])
def test_constant_weights_are_the_softmax_of_temperature_1(
    num_sub_regions: int,
) -> None:
    """exp(a 1[n in i] + 1) over its sum, in all rounds (appendix B.2.5)."""
    adaptive, constant = WeightSchedule(), WeightSchedule(adaptive=False)
    for region in range(num_sub_regions):
        raw = [math.exp(15.0 * (n % num_sub_regions == region) + 1) for n in range(7)]
        expected = np.array(raw) / sum(raw)
        for t in (0, 25, 10_000):
            weights = constant.weights(t, 7, num_sub_regions)[:, region]
            np.testing.assert_allclose(weights, expected, rtol=1e-9)
        early = adaptive.weights(9, 7, num_sub_regions)[:, region]
        np.testing.assert_allclose(early, expected, rtol=1e-9)
        late = adaptive.weights(40, 7, num_sub_regions)[:, region]
        np.testing.assert_allclose(late, 1 / 7)


def test_equal_weights_are_a_softmax_without_a_peak() -> None:
    for schedule in (WeightSchedule(peak=0.0), WeightSchedule(1.0, form="linear")):
        np.testing.assert_allclose(schedule.weights(0, 7, 3), 1 / 7)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"peak": math.nan}, "peak=nan"),
        ({"num_constant_rounds": -1}, "num_constant_rounds=-1"),
        ({"num_decay_rounds": 1.5}, "num_decay_rounds=1.5"),
        ({"peak": 701.0}, "peak=701.0"),
        ({"peak": 0.5, "form": "linear"}, "peak=0.5"),
        ({"form": "cubic"}, "form='cubic'"),
        ({"adaptive": 1}, "adaptive=1"),
    ],
)
def test_bad_weight_schedules_are_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match="is not allowed") as error:
        WeightSchedule(**change)
    assert words in str(error.value)

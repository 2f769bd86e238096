"""Report-noisy-max: what it chooses, and what it promises."""

import math
from typing import Any

import numpy as np
import opendp.measurements
import pytest

from flwr_fbo.privacy.noise import NoisyMax

COUNTS = [0, 1, 2]


def _shares(num_draws: int, epsilon: float, seeded: bool) -> list[float]:
    wins, real = [0] * len(COUNTS), NoisyMax(epsilon)
    for seed in range(num_draws):
        mechanism = NoisyMax(epsilon, seed) if seeded else real
        wins[mechanism.choose(0, COUNTS)] += 1
    return [count / num_draws for count in wins]


def _exact(counts: list[int], epsilon: float) -> list[float]:
    """Return the chances of each: the largest of counts with exponential noise.

    By quadrature over the winner's noisy count.
    """
    x = np.linspace(0.0, 60.0 / epsilon, 200_001)
    scale = 1.0 / epsilon
    below = [np.where(x > c, 1 - np.exp(-(x - c) / scale), 0.0) for c in counts]
    chances = []
    for i, count in enumerate(counts):
        density = np.where(x >= count, np.exp(-(x - count) / scale) / scale, 0.0)
        others = [b for j, b in enumerate(below) if j != i]
        chances.append(float(np.trapezoid(density * np.prod(others, axis=0), x)))
    return chances


@pytest.mark.parametrize("seeded", [True, False])
def test_chances_are_those_of_exponential_noise(seeded: bool) -> None:
    """Real noise is further away in one of ten million runs."""
    expected, num_draws = _exact(COUNTS, 1.0), 1000
    assert sum(expected) == pytest.approx(1.0, abs=1e-3)
    for got, wanted in zip(_shares(num_draws, 1.0, seeded), expected, strict=True):
        error = math.sqrt(wanted * (1 - wanted) / num_draws)
        assert abs(got - wanted) < 5.5 * error


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_one_vote_changes_no_chance_by_more_than_epsilon(epsilon: float) -> None:
    for voted in range(3):
        with_vote = [2, 1, 1]
        without = [c - (i == voted) for i, c in enumerate(with_vote)]
        pairs = zip(_exact(with_vote, epsilon), _exact(without, epsilon), strict=True)
        for one, other in pairs:
            assert abs(math.log(one / other)) <= epsilon * (1 + 1e-3)


@pytest.mark.parametrize("epsilon", [1e-3, 0.7, 1e3])
def test_opendp_agrees_with_epsilon(epsilon: float) -> None:
    mechanism = NoisyMax(epsilon)._mechanism()
    assert epsilon * (1 - 1e-6) < mechanism.map(1) <= epsilon


def test_too_little_noise_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is no assert: it is raised by an optimised interpreter, too."""
    exact: Any = opendp.measurements.make_noisy_max

    def less_noisy(*arguments: Any, scale: float) -> Any:
        return exact(*arguments, scale=0.99 * scale)

    monkeypatch.setattr(opendp.measurements, "make_noisy_max", less_noisy)
    with pytest.raises(RuntimeError, match=r"OpenDP's noisy max has epsilon 1\.01"):
        NoisyMax(1.0)


def test_seeded_choices_repeat_and_are_not_private() -> None:
    drawn = [NoisyMax(1.0, 5).choose(rung, [1, 1, 1, 1]) for rung in range(30)]
    assert drawn == [NoisyMax(1.0, 5).choose(rung, [1, 1, 1, 1]) for rung in range(30)]
    assert len(set(drawn)) > 1
    assert not NoisyMax(1.0, 5).private
    assert NoisyMax(1.0).private


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match=r"^epsilon=0"):
        NoisyMax(0.0)
    with pytest.raises(ValueError, match=r"^noise_seed=-1"):
        NoisyMax(1.0, -1)
    with pytest.raises(ValueError, match=r"^counts=\[\]"):
        NoisyMax(1.0, 1).choose(0, [])

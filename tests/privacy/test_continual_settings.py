"""Settings of continual releases: sensitivity, budget, and what is refused."""

import math
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest

from flwr_fbo.privacy.continual_settings import replace_one_sensitivity
from flwr_fbo.privacy.factorisation import Mechanism
from flwr_fbo.privacy.gaussian import gaussian_delta
from tests.support.continual import _decoder
from tests.support.small_release import SMALL

MECHANISMS = get_args(Mechanism)


@pytest.mark.parametrize(("largest", "highest"), [(1.0, 1.0), (3.0, 0.5)])
def test_the_sensitivity_is_that_of_the_worst_pair(
    largest: float, highest: float
) -> None:
    settings = replace(SMALL, max_action_norm=largest, reward_range=(-highest, highest))
    bound = replace_one_sensitivity(largest, highest)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((400, 2))
    x *= largest / np.linalg.norm(x, axis=1, keepdims=True)
    y = highest * rng.choice([-1.0, 1.0], 400)
    matrices = settings.outer_products(x, y)
    moved = np.linalg.norm(matrices[::2] - matrices[1::2], axis=(1, 2))
    assert moved.max() <= bound * (1 + 1e-8)
    # Reached where x'x' = B^2 and y = -y'.
    cosine = (highest / largest) ** 2
    one, other = [largest, 0.0], [largest * cosine, largest * math.sqrt(1 - cosine**2)]
    first, second = settings.outer_products([one, other], [highest, -highest])
    assert np.linalg.norm(first - second) == pytest.approx(bound, rel=1e-8)
    assert bound < settings.sensitivity < bound * (1 + 1e-6)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_all_releases_together_keep_to_the_budget(mechanism: Mechanism) -> None:
    """From the covariance of the releases alone, for each trial that is replaced."""
    n = 13
    settings = replace(SMALL, num_releases=n, mechanism=mechanism)
    rows = settings.noise_std * _decoder(mechanism, n)
    whitened = np.linalg.solve(rows, np.tri(n) * settings.sensitivity)
    mus = np.linalg.norm(whitened, axis=0)
    assert mus.max() <= settings.mu * (1 + 1e-9)
    if mechanism != "tree-honaker":
        assert mus.max() == pytest.approx(settings.mu)
    assert gaussian_delta(1.0, settings.mu) == pytest.approx(0.1, rel=1e-6)
    assert gaussian_delta(1.0, settings.mu) <= 0.1


def test_the_noise_of_the_paper() -> None:
    """sigma_N^2 = 16 m (L^2 + 1)^2 log(2/delta)^2 / epsilon^2 off the diagonal."""
    paper = replace(SMALL, num_releases=16, mechanism="tree", calibration="paper")
    off_diagonal = 16 * 5 * 4 * math.log(20) ** 2
    np.testing.assert_allclose(paper.noise_std**2, 2 * off_diagonal)
    longer = replace(paper, num_releases=17, max_action_norm=2.0, epsilon=0.5)
    off_diagonal = 16 * 6 * 25 * math.log(20) ** 2 / 0.25
    np.testing.assert_allclose(longer.noise_std**2, 2 * off_diagonal)
    # More than its budget needs.
    assert paper.mu < 0.1 * replace(paper, calibration="exact").mu


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dimension": 1001}, "dimension=1001"),
        ({"epsilon": 0.0}, "epsilon=0.0"),
        ({"epsilon": math.nan}, "epsilon=nan"),
        ({"delta": 0.0}, "delta=0.0"),
        ({"delta": 1.0, "epsilon": math.inf}, "delta=1.0"),
        ({"reward_range": (0, math.inf)}, "reward_range=(0, inf)"),
        ({"reward_range": (1.0, 0.0)}, "reward_range=(1.0, 0.0)"),
        ({"reward_range": 1.0}, "reward_range=1.0"),
        ({"calibration": "less"}, "calibration='less'"),
        ({"calibration": "paper"}, "mechanism='toeplitz'"),
        (
            {"calibration": "paper", "mechanism": "tree", "reward_range": (-2.0, 2.0)},
            "reward_range=(-2.0, 2.0)",
        ),
    ],
)
def test_bad_settings_are_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match="is not allowed") as error:
        replace(SMALL, **change)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("actions", "rewards", "words"),
    [
        ([[0.0, 0.0], [0.8, 0.7]], [0.0, 0.0], "actions[1]=[0.8, 0.7]"),
        ([[math.nan, 0.0]], [0.0], "actions[0]=[nan, 0.0]"),
        ([[0.0, 0.0]], [1.1], "rewards[0]=1.1"),
        ([[0.0, 0.0]], [math.nan], "rewards[0]=nan"),
        ([[0.0]], [0.0], "actions=(1, 1)"),
        ([[0.0, 0.0]], [[0.0]], "rewards=(1, 1)"),
    ],
)
def test_trials_out_of_bounds_are_refused(
    actions: Any, rewards: Any, words: str
) -> None:
    with pytest.raises(ValueError, match="is not allowed") as error:
        SMALL.gram(actions, rewards)
    assert words in str(error.value)


def test_rewards_are_centred_in_their_range() -> None:
    """Their noise is that of half of the range, whatever its middle is."""
    centred = replace(SMALL, reward_range=(-0.5, 0.5))
    settings = replace(SMALL, reward_range=(0, 1))
    assert settings.noise_std == centred.noise_std < replace(SMALL).noise_std
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, SMALL.dimension))
    x /= np.linalg.norm(x, axis=1).max()
    y = rng.random(40)
    expected = centred.outer_products(x, y - 0.5)
    np.testing.assert_array_equal(settings.outer_products(x, y), expected)
    np.testing.assert_array_equal(settings.gram(x, y), expected.sum(axis=0))
    with pytest.raises(ValueError, match=r"numbers from 0.0 to 1.0"):
        settings.gram(x, -y)
    # What exceeds a bound by rounding is moved to it; other rewards stay as they are.
    given = np.array([1 + 1e-8, -1e-8, 0.1])
    assert settings.without_excess(given).tolist() == [1.0, 0.0, 0.1]


def test_rewards_may_be_at_both_ends_of_any_range() -> None:
    rng, x = np.random.default_rng(0), np.zeros((2, SMALL.dimension))
    for _ in range(300):
        low = rng.uniform(-1, 1) * 10 ** rng.uniform(-3, 5)
        ends = np.array([low, low + 10 ** rng.uniform(-5, 0)])
        settings = replace(SMALL, reward_range=tuple(ends.tolist()))
        assert settings.without_excess(ends).tolist() == ends.tolist()
        # However the subtraction rounds: the sensitivity rests on it.
        assert np.abs(settings.centred(ends)).max() <= settings.max_reward
        squares = settings.outer_products(x, ends)[:, -1, -1]
        assert np.abs(squares - settings.max_reward**2).max() <= settings.grid
        outside = ends + settings.max_reward * np.array([-1.0, 1.0])
        with pytest.raises(ValueError, match="rewards"):
            settings.outer_products(x, outside)

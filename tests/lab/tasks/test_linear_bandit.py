"""The environment of linear bandits: what agents meet, and what depends on what."""

import math

import numpy as np
import pytest

from flwr_fbo.lab.tasks.linear_bandit import LinearBandits, LinearBanditTask
from tests.support.linear_bandits import TASK, M


@pytest.mark.parametrize("d", [2, 10])
def test_means_are_exact_and_actions_in_the_ball(d: int) -> None:
    task = LinearBanditTask(dimension=d, num_actions=d**2)
    bandits = LinearBandits(task, 6, range(5))
    assert np.linalg.norm(bandits.theta) == pytest.approx(1.0, abs=1e-14)
    best = np.zeros(d**2)
    for t in range(200):
        actions = bandits.contexts(t)
        assert np.linalg.norm(actions, axis=-1).max() <= 1 + 1e-14
        means = np.sort(actions @ bandits.theta, axis=1)
        assert means[:, 0].min() >= 0.5 - 1e-14
        assert means[:, -2].max() <= 0.6 + 1e-14
        assert means[:, -1].min() >= 0.7 - 1e-14
        assert means[:, -1].max() <= 0.8 + 1e-14
        chosen = (actions @ bandits.theta).argmax(axis=1)
        best += np.bincount(chosen, minlength=d**2)
        assert bandits.regrets(t, chosen) == pytest.approx(np.zeros(5), abs=1e-14)
        first = bandits.regrets(t, np.zeros(5, dtype=np.intp))
        expected = means[:, -1] - actions[:, 0] @ bandits.theta
        np.testing.assert_allclose(first, expected, atol=1e-14)
    # The best action is anywhere: 1000 sets, five standard deviations.
    mean = 1000 / d**2
    assert np.abs(best - mean).max() < 5 * math.sqrt(mean)


def test_theta_is_uniform_on_the_sphere() -> None:
    thetas = np.array([LinearBandits(TASK, seed, []).theta for seed in range(2000)])
    np.testing.assert_allclose(np.linalg.norm(thetas, axis=1), 1.0)
    # A coordinate has variance 1/3; and 1/sqrt(45 n) is the error of a product's mean.
    assert np.abs(thetas.mean(axis=0)).max() < 5 / math.sqrt(3 * 2000)
    moments = thetas.T @ thetas / 2000
    assert np.abs(moments - np.eye(3) / 3).max() < 10 / math.sqrt(45 * 2000)


def test_actions_are_uniform_given_their_mean() -> None:
    bandits = LinearBandits(LinearBanditTask(), 7, range(4))
    actions = np.concatenate([bandits.contexts(t).reshape(-1, 10) for t in range(50)])
    means = actions @ bandits.theta
    across = actions - means[:, None] * bandits.theta
    radius = np.linalg.norm(across, axis=1) / np.sqrt(1 - means**2)
    # Uniform in a ball of 9 dimensions: radius^9 is uniform on [0, 1].
    uniform = np.sort(radius**9)
    even = (np.arange(len(uniform)) + 0.5) / len(uniform)
    assert np.abs(uniform - even).max() < 2 / math.sqrt(len(uniform))  # p < 1e-3
    covariance = across.T @ across / len(across)
    scale = np.mean(1 - means**2) / 11
    expected = scale * (np.eye(10) - np.outer(bandits.theta, bandits.theta))
    np.testing.assert_allclose(covariance, expected, atol=0.05 * float(scale))


def test_rewards_are_beta_with_the_actions_mean() -> None:
    task = LinearBanditTask(dimension=2, num_actions=2, concentration=4.0)
    bandits = LinearBandits(task, 8, range(100))
    residuals, variances = [], []
    for t in range(200):
        chosen = np.full(100, t % 2)
        mean = (bandits.contexts(t)[:, t % 2]) @ bandits.theta
        rewards = bandits.rewards(t, chosen)
        assert rewards.min() >= 0
        assert rewards.max() <= 1
        residuals.append(rewards - mean)
        variances.append(mean * (1 - mean) / 5)
    residual, variance = np.concatenate(residuals), np.concatenate(variances)
    assert abs(residual.mean()) < 5 * math.sqrt(variance.mean() / len(residual))
    assert np.mean(residual**2) == pytest.approx(variance.mean(), rel=0.03)


def test_what_an_agent_meets_depends_on_seed_slot_and_trial_only() -> None:
    everyone, alone = LinearBandits(TASK, 9, range(5)), LinearBandits(TASK, 9, [3])
    chosen = np.array([1, 2, 3, 4, 5])
    for t in (70, 2, 40, 41, 0):
        np.testing.assert_array_equal(everyone.contexts(t)[3], alone.contexts(t)[0])
        expected = everyone.rewards(t, chosen)[3]
        assert alone.rewards(t, chosen[3:4])[0] == expected
        assert everyone.regrets(t, chosen)[3] == alone.regrets(t, chosen[3:4])[0]
    other = LinearBandits(TASK, 10, [3])
    assert not np.array_equal(other.contexts(0), alone.contexts(0))
    assert not np.array_equal(everyone.contexts(0)[0], everyone.contexts(0)[1])
    assert not np.array_equal(everyone.contexts(0), everyone.contexts(1))


def test_actions_handed_out_are_the_callers() -> None:
    bandits = LinearBandits(TASK, 11, [0])
    actions = bandits.contexts(0)
    before = actions.copy()
    bandits.contexts(1000)
    assert np.array_equal(actions, before)
    actions[:] = 0
    assert np.array_equal(bandits.contexts(0), before)


def test_a_reward_does_not_depend_on_who_asked_before() -> None:
    asked, fresh = (LinearBandits(TASK, 12, range(M)) for _ in range(2))
    first, second = np.array([0, 1, 2, 3]), np.array([0, 4, 2, 5])
    before = asked.rewards(35, first)
    assert np.array_equal(asked.rewards(35, second), fresh.rewards(35, second))
    assert np.array_equal(asked.rewards(35, first), before)
    asked.contexts(99)
    assert np.array_equal(asked.rewards(35, first), before)


def test_a_peek_is_to_read() -> None:
    bandits = LinearBandits(TASK, 12, range(M))
    actions = bandits.peek(35)
    assert np.array_equal(actions, bandits.contexts(35))
    with pytest.raises(ValueError, match="read-only"):
        actions[0] = 0


def test_there_is_no_trial_before_the_first() -> None:
    with pytest.raises(ValueError, match="t=-1 is not allowed"):
        LinearBandits(TASK, 1, [0]).contexts(-1)


def test_the_gap_between_arms() -> None:
    """At its default, to the bit, what it was before it could be set."""
    assert LinearBanditTask().gap == 0.1
    assert LinearBanditTask().best == (0.7, 0.8)
    assert LinearBanditTask(gap=0.3).best == pytest.approx((0.9, 1.0))
    assert LinearBanditTask(gap=0.3).best[1] <= 1
    for gap in (0.02, 0.3):
        bandits = LinearBandits(LinearBanditTask(gap=gap), 3, range(2))
        low = bandits.regrets(0, np.zeros(2, dtype=np.intp))
        assert np.all(np.linalg.norm(bandits.contexts(0), axis=2) <= 1 + 1e-12)
        everyone = [bandits.regrets(0, np.full(2, k)) for k in range(100)]
        second = np.sort(everyone, axis=0)[1]
        assert np.all((gap <= second) & (second <= gap + 0.2))
        assert low.shape == (2,)
    for gap in (0.0, -0.1, 0.31, float("nan")):
        with pytest.raises(ValueError, match=f"gap={gap} is not allowed"):
            LinearBanditTask(gap=gap)

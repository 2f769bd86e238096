"""The posterior of a linear model, given sums with noise."""

import numpy as np
import pytest
from numpy.typing import NDArray

from flwr_fbo.bandits.linear.confidence import Confidence
from flwr_fbo.bandits.linear.settings import LinearUCBSettings
from flwr_fbo.models.noisy_sums import posterior_of_noisy_sum
from flwr_fbo.privacy.continual_settings import ContinualSettings

FloatArray = NDArray[np.float64]
D = 4
PRIOR = np.array([5.0, 0.3, 0.3, 0.3])
REWARD_VARIANCE = 0.05


def sums_of(x: FloatArray, y: FloatArray) -> FloatArray:
    z = np.column_stack([x, y])
    return np.asarray(z.T @ z)


def noise_of(rng: np.random.Generator, std: float) -> FloatArray:
    """Return symmetric noise as that of a release."""
    draw = rng.standard_normal((D + 1, D + 1)) * std / np.sqrt(2)
    return np.asarray((draw + draw.T) / np.sqrt(2))


def problem(
    rng: np.random.Generator, num_trials: int
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return theta, actions of norm 1, and rewards."""
    theta = np.sqrt(PRIOR) * rng.standard_normal(D)
    x = rng.standard_normal((num_trials, D))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    noise = np.sqrt(REWARD_VARIANCE) * rng.standard_normal(num_trials)
    return theta, x, x @ theta + noise


@pytest.mark.parametrize("num_trials", [0, 2, 30])
def test_without_noise_it_is_bayesian_regression(num_trials: int) -> None:
    _, x, y = problem(np.random.default_rng(0), num_trials)
    believed = posterior_of_noisy_sum(sums_of(x, y), 0.0, PRIOR, REWARD_VARIANCE)
    precision = x.T @ x / REWARD_VARIANCE + np.diag(1 / PRIOR)
    np.testing.assert_allclose(believed.factor @ believed.factor.T, precision)
    expected = np.linalg.solve(precision, x.T @ y / REWARD_VARIANCE)
    np.testing.assert_allclose(believed.estimate, expected, atol=1e-12)


def test_all_noise_says_nothing() -> None:
    _, x, y = problem(np.random.default_rng(0), 30)
    believed = posterior_of_noisy_sum(sums_of(x, y), 1e6, PRIOR, REWARD_VARIANCE)
    np.testing.assert_allclose(believed.estimate, 0.0, atol=1e-3)
    precision = believed.factor @ believed.factor.T
    np.testing.assert_allclose(precision, np.diag(1 / PRIOR), atol=1e-6)


def test_the_noise_has_the_covariances_that_are_called_exact() -> None:
    """Of u - G theta and of N theta: over many draws."""
    rng = np.random.default_rng(1)
    theta, x, _ = problem(rng, 20)
    std, size, draws = 3.0, theta @ theta, 10_000
    gram = x.T @ x
    differences, products = np.empty((2, draws, D))
    for i in range(draws):
        noise = noise_of(rng, std)
        rewards = x @ theta + np.sqrt(REWARD_VARIANCE) * rng.standard_normal(20)
        differences[i] = x.T @ rewards + noise[:D, D] - gram @ theta
        products[i] = noise[:D, :D] @ theta
    half = std**2 / 2
    expected = half * np.eye(D) + REWARD_VARIANCE * gram
    np.testing.assert_allclose(np.cov(differences.T), expected, atol=0.15)
    expected = half * (size * np.eye(D) + np.outer(theta, theta))
    np.testing.assert_allclose(
        np.cov(products.T), expected, atol=float(0.05 * half * size)
    )


def test_it_tells_more_than_a_sum_that_is_shifted() -> None:
    """Mean squared error of theta, against FedUCB's estimate and the prior's mean."""
    releases = ContinualSettings(10, D, epsilon=1.0, delta=1e-4, max_action_norm=1.0)
    confidence = Confidence.of(LinearUCBSettings(releases, local_data="released"), 1)
    std = releases.largest_std(1)
    errors = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        theta, x, y = problem(rng, 400)
        total = sums_of(x, y) + noise_of(rng, std)
        ours = posterior_of_noisy_sum(total, std, PRIOR, REWARD_VARIANCE).estimate
        shifted = confidence.ellipsoid(total).estimate
        each = [np.square(theta - e).sum() for e in (ours, shifted, 0 * theta)]
        errors.append(each)
    ours, shifted, prior = np.mean(errors, axis=0)
    assert ours < 0.6 * shifted
    assert ours < 0.5 * prior

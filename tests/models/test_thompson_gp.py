import numpy as np
import pytest
from scipy.optimize import approx_fprime, minimize
from scipy.stats import multivariate_normal

from flwr_fbo.models.thompson_gp import (
    Hyperparameters,
    fit_hyperparameters,
    log_bounds,
    negative_log_likelihood,
    sample_function,
    sample_weights,
)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.mark.parametrize("num_observations", [3, 12])
def test_weight_samples_follow_the_posterior(
    rng: np.random.Generator, num_observations: int
) -> None:
    """Both forms, t < M and t >= M, against mean and covariance in closed form."""
    num_features, regularization = 6, 0.3
    features = rng.standard_normal((num_observations, num_features))
    y = rng.standard_normal(num_observations)
    draws = np.array(
        [sample_weights(features, y, regularization, rng) for _ in range(10_000)]
    )
    sigma = features.T @ features + regularization * np.eye(num_features)
    mean = np.linalg.solve(sigma, features.T @ y)
    covariance = regularization * np.linalg.inv(sigma)
    np.testing.assert_allclose(draws.mean(axis=0), mean, atol=0.03)
    np.testing.assert_allclose(np.cov(draws.T), covariance, atol=0.04)


def test_weights_without_data_follow_the_prior(rng: np.random.Generator) -> None:
    draws = [sample_weights(np.empty((0, 4)), np.empty(0), 1e-6, rng) for _ in "x" * 9]
    assert np.array(draws).shape == (9, 4)


def _data(rng: np.random.Generator, num: int) -> tuple[np.ndarray, np.ndarray]:
    x = rng.random((num, 2))
    return x, 0.7 + 0.1 * np.sin(6 * x[:, 0]) + 0.02 * rng.standard_normal(num)


def test_likelihood_is_the_normal_density(rng: np.random.Generator) -> None:
    x, y = _data(rng, 15)
    distances = np.sum((x[:, None] - x[None]) ** 2, axis=-1)
    settings = np.log([[0.5, 0.3, 1e-2], [2.0, 1.0, 1e-3]])
    for log_setting in settings:
        value, gradient = negative_log_likelihood(log_setting, distances, y)
        variance, lengthscale, noise = np.exp(log_setting)
        covariance = variance * np.exp(-distances / (2 * lengthscale**2))
        covariance += noise * np.eye(15)
        density = multivariate_normal(np.zeros(15), covariance).logpdf(y)
        assert value == pytest.approx(-density)

        def single(theta: np.ndarray) -> float:
            return negative_log_likelihood(theta, distances, y)[0]

        numeric = approx_fprime(log_setting, single, 1e-6)
        np.testing.assert_allclose(gradient, numeric, rtol=1e-3, atol=1e-4)


def test_equal_points_without_noise_are_no_error() -> None:
    """To the last bit: an error would tell a server of a site's points."""
    about = np.array([0.0, 0.0, -99.0]), np.zeros((3, 3)), np.array([1.0, 0.0, 1.0])
    value, gradient = negative_log_likelihood(*about)
    assert np.isfinite([value, *gradient]).all()


@pytest.mark.parametrize("num_features", [3, 50])
def test_equal_points_have_a_message_whatever_lambda_is(num_features: int) -> None:
    phi = np.full((20, num_features), num_features**-0.5)
    rng = np.random.default_rng(0)
    sample = sample_weights(phi, np.arange(20.0), 1e-20, rng)
    assert np.isfinite(sample).all()


def test_fit_finds_the_best_of_many_searches(rng: np.random.Generator) -> None:
    x, y = _data(rng, 25)
    distances = np.sum((x[:, None] - x[None]) ** 2, axis=-1)
    fitted = fit_hyperparameters(x, y, rng, 1e-5, num_restarts=8)
    lower, upper = log_bounds(y, 1e-5)
    best = min(
        minimize(
            negative_log_likelihood,
            rng.uniform(lower, upper),
            args=(distances, y),
            jac=True,
            method="L-BFGS-B",
            bounds=list(zip(lower, upper, strict=True)),
        ).fun
        for _ in range(20)
    )
    assert negative_log_likelihood(fitted.log(), distances, y)[0] <= best + 0.01
    assert np.all(fitted.log() >= lower - 1e-9)
    assert np.all(fitted.log() <= upper + 1e-9)


@pytest.mark.parametrize(("scale", "num"), [(0.0, 1), (1e-6, 2), (1e6, 30)])
def test_fit_survives_any_scale_and_repeated_points(
    rng: np.random.Generator, scale: float, num: int
) -> None:
    x = np.repeat(rng.random((num, 2)), 2, axis=0)
    y = scale * np.ones(2 * num)
    fitted = fit_hyperparameters(x, y, rng, 1e-5, 4)
    again = fit_hyperparameters(x, y, rng, 1e-5, 2, fitted)
    features, weights = sample_function(x, y, again, 100, rng, rng)
    assert np.all(np.isfinite(features.function(x, weights)))


def test_posterior_functions_pass_near_the_data(rng: np.random.Generator) -> None:
    x, y = _data(rng, 20)
    h = Hyperparameters(variance=0.5, lengthscale=0.5, noise=1e-4)
    draws = []
    for _ in range(50):
        features, weights = sample_function(x, y, h, 200, rng, rng)
        draws.append(features.function(x, weights))
    np.testing.assert_allclose(np.mean(draws, axis=0), y, atol=0.06)

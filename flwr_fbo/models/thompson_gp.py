"""The models behind Thompson sampling: a Gaussian process, and its features' weights.

*Squared exponential Gaussian process.*

k(x, x') = variance exp(-||x - x'||^2 / (2 lengthscale^2)), Gaussian noise. The
hyperparameters maximise the log marginal likelihood (Rasmussen & Williams, 2006,
equations 5.8 and 5.9) within bounds, by L-BFGS-B from several starts.

*Bayesian linear regression on features.* y = Phi w + e with w ~ N(0, I) and
e ~ N(0, lambda I). The posterior is N(nu, lambda Sigma^-1) with
Sigma = Phi'Phi + lambda I and nu = Sigma^-1 Phi'y (DP-FTS-DE, equation 2 and Algorithm
2, line 10). Sigma is never inverted to draw from it: a Cholesky factor does.

A server chooses the smallest noise variance and lambda. Where these are so small that
rounding makes a matrix of a site's points indefinite, it is `raised`: an error would
tell of the points.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.linalg.lapack import dpotrf, dpotri, dpotrs
from scipy.optimize import minimize

from flwr_fbo._common.arrays import FloatArray, first_best
from flwr_fbo.models.features import RandomFeatures
from flwr_fbo.models.rounding import raised

_MAX_STEPS = 60


@dataclass(frozen=True)
class Hyperparameters:
    """Hyperparameters of kernel and noise, all > 0.

    The variances are in units of y^2, the lengthscale in units of the cube's side.
    """

    variance: float
    lengthscale: float
    noise: float

    def log(self) -> FloatArray:
        """Return the logarithms, shape (3,)."""
        return np.log([self.variance, self.lengthscale, self.noise])


def log_bounds(y: FloatArray, noise_floor: float) -> tuple[FloatArray, FloatArray]:
    """Return lower and upper bounds of the log hyperparameters, shape (3,) each.

    The variances scale with the mean square of ``y``; the noise never falls below
    ``noise_floor``, nor below what keeps the Cholesky factor accurate.
    """
    scale = max(float(np.mean(y * y)), noise_floor)
    noise_low = max(noise_floor, 1e-8 * scale)
    lower = [1e-3 * scale, 1e-2, noise_low]
    upper = [1e2 * scale, 1e1, max(scale, 2.0 * noise_low)]
    return np.log(lower), np.log(upper)


def negative_log_likelihood(
    log_hyperparameters: FloatArray, squared_distances: FloatArray, y: FloatArray
) -> tuple[float, FloatArray]:
    """Return the negative log marginal likelihood and its gradient of shape (3,).

    Parameters
    ----------
    log_hyperparameters : ndarray of shape (3,)
        Log of variance, lengthscale and noise.
    squared_distances : ndarray of shape (t, t)
        Squared distances between all pairs of points.
    y : ndarray of shape (t,)
        Values at the points.
    """
    variance, lengthscale, noise = np.exp(log_hyperparameters)
    num = len(y)
    scaled = squared_distances / lengthscale**2
    signal = variance * np.exp(-0.5 * scaled)
    covariance = signal.copy()
    covariance.flat[:: num + 1] += noise
    # LAPACK overwrites the transpose, which is the same matrix, without a copy.
    factor, failed = dpotrf(covariance.T, lower=1, overwrite_a=1)
    if failed:
        covariance = signal + noise * np.eye(num)
        factor, _ = dpotrf(raised(covariance), lower=1)
    half_log_det = np.sum(np.log(np.diagonal(factor)))
    alpha, _ = dpotrs(factor, y, lower=1)
    triangle, _ = dpotri(factor, lower=1, overwrite_c=1)  # of K^-1, zeros elsewhere
    fit = y @ alpha
    value = 0.5 * fit + half_log_det + 0.5 * num * np.log(2.0 * np.pi)
    # gradient = tr((K^-1 - alpha alpha') dK) / 2, dK of log variance, length, noise;
    # dK of the log variance is the signal, which is K less the noise.
    by_noise = 0.5 * noise * (np.trace(triangle) - alpha @ alpha)
    by_variance = 0.5 * (num - fit) - by_noise
    signal *= scaled  # dK of the log lengthscale, zero on the diagonal
    by_lengthscale = np.sum(triangle.T * signal) - 0.5 * alpha @ signal @ alpha
    return float(value), np.array([by_variance, by_lengthscale, by_noise])


def fit_hyperparameters(
    x: FloatArray,
    y: FloatArray,
    rng: np.random.Generator,
    noise_floor: float,
    num_restarts: int,
    previous: Hyperparameters | None = None,
) -> Hyperparameters:
    """Maximise the marginal likelihood from several starts.

    Parameters
    ----------
    x : ndarray of shape (t, D)
        t >= 1 points.
    y : ndarray of shape (t,)
        Values at the points.
    noise_floor : float
        Smallest noise variance, > 0.
    num_restarts : int
        Random starts, >= 1; one more from ``previous`` where it is given.
    """
    lower, upper = log_bounds(y, noise_floor)
    starts = rng.uniform(lower, upper, (num_restarts, 3))
    if previous is not None:
        starts = np.vstack([np.clip(previous.log(), lower, upper), starts])
    distances = squared_distances(x, x)
    ends = [
        minimize(
            negative_log_likelihood,
            start,
            args=(distances, y),
            jac=True,
            method="L-BFGS-B",
            bounds=np.column_stack([lower, upper]),
            options={"maxiter": _MAX_STEPS},
        )
        for start in starts
    ]
    best = ends[first_best(np.array([-end.fun for end in ends]))]
    return Hyperparameters(*(float(v) for v in np.exp(best.x)))


def squared_distances(x: FloatArray, other: FloatArray) -> FloatArray:
    """Return ||x_i - x'_j||^2 of points of shapes (t, D) and (k, D), shape (t, k)."""
    return np.asarray(np.sum((x[:, None, :] - other[None, :, :]) ** 2, axis=-1))


def sample_function(
    x: FloatArray,
    y: FloatArray,
    hyperparameters: Hyperparameters,
    num_features: int,
    feature_rng: np.random.Generator,
    sample_rng: np.random.Generator,
) -> tuple[RandomFeatures, FloatArray]:
    """Draw a function from the posterior, as fresh features and their weights.

    The function is ``features.function(., weights)``.
    """
    features = RandomFeatures.draw(
        feature_rng,
        num_features,
        x.shape[1],
        hyperparameters.lengthscale,
        hyperparameters.variance,
    )
    weights = sample_weights(features(x), y, hyperparameters.noise, sample_rng)
    return features, weights


def sample_weights(
    features: FloatArray,
    y: FloatArray,
    regularization: float,
    rng: np.random.Generator,
) -> FloatArray:
    """Draw one weight vector from the posterior, shape (M,).

    With t < M observations the t x t form is used: a draw from the prior, corrected
    by what it gets wrong about the data (Matheron's rule).

    Parameters
    ----------
    features : ndarray of shape (t, M)
        t >= 0 observations.
    y : ndarray of shape (t,)
        Values of the observations.
    regularization : float
        lambda, the noise variance, > 0.
    """
    num_observations, num_features = features.shape
    z = rng.standard_normal(num_features)
    if num_observations == 0:
        return np.asarray(z)
    if num_observations < num_features:
        noise = np.sqrt(regularization) * rng.standard_normal(num_observations)
        gram = features @ features.T
        gram.flat[:: num_observations + 1] += regularization
        residual = y - features @ z - noise
        solved = cho_solve(_factor_of(gram), residual)
        return np.asarray(z + features.T @ solved)
    sigma = features.T @ features
    sigma.flat[:: num_features + 1] += regularization
    factor = _factor_of(sigma)
    mean = cho_solve(factor, features.T @ y)
    spread = solve_triangular(factor[0], z, lower=True, trans="T")
    return np.asarray(mean + np.sqrt(regularization) * spread)


def posterior_weights(
    features: FloatArray, y: FloatArray, regularization: float
) -> tuple[FloatArray, FloatArray]:
    """Return nu and Sigma^-1, shapes (M,) and (M, M), for who has to send them.

    Parameters
    ----------
    features : ndarray of shape (t, M)
        Features of t >= 0 observations.
    y : ndarray of shape (t,)
        Values of the observations.
    regularization : float
        lambda, > 0.
    """
    sigma = features.T @ features
    sigma.flat[:: len(sigma) + 1] += regularization
    factor = _factor_of(sigma)
    inverse = cho_solve(factor, np.eye(len(sigma)))
    return np.asarray(cho_solve(factor, features.T @ y)), np.asarray(inverse)


def _factor_of(matrix: FloatArray) -> tuple[FloatArray, bool]:
    """Return the factor of a matrix, for `cho_solve`."""
    try:
        factor, is_lower = cho_factor(matrix, lower=True)
    except np.linalg.LinAlgError:
        factor, is_lower = cho_factor(raised(matrix), lower=True)
    return factor, bool(is_lower)

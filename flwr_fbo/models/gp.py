"""Gaussian process with an isotropic squared exponential kernel.

k(x, x') = variance exp(-|x - x'|^2 / (2 lengthscale^2)), Gaussian noise. The
hyperparameters maximise the log marginal likelihood (Rasmussen & Williams, 2006,
equations 5.8 and 5.9) within bounds; all restarts run as one L-BFGS-B problem whose
objective is the sum of theirs, so that each step is one batch of matrices.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from flwr_fbo.models.features import RandomFeatures
from flwr_fbo.models.linear import sample_weights

FloatArray = NDArray[np.float64]

_MAX_STEPS = 60


@dataclass(frozen=True)
class Hyperparameters:
    """Of kernel and noise: all > 0, in units of y^2 (variances) and of the cube."""

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
) -> tuple[FloatArray, FloatArray]:
    """Return the negative log marginal likelihood and its gradient, batched.

    Parameters
    ----------
    log_hyperparameters : ndarray of shape (R, 3)
        Log of variance, lengthscale and noise of R restarts.
    squared_distances : ndarray of shape (t, t)
    y : ndarray of shape (t,)

    Returns
    -------
    tuple of ndarray of shape (R,) and ndarray of shape (R, 3)
    """
    variance, lengthscale, noise = np.exp(log_hyperparameters.T)
    num = len(y)
    scaled = squared_distances / (lengthscale**2)[:, None, None]
    signal = variance[:, None, None] * np.exp(-0.5 * scaled)
    covariance = signal + noise[:, None, None] * np.eye(num)
    factor = np.linalg.cholesky(covariance)
    inverse_factor = np.linalg.inv(factor)
    inverse = np.swapaxes(inverse_factor, -1, -2) @ inverse_factor
    alpha = inverse @ y
    half_log_det = np.sum(np.log(np.diagonal(factor, axis1=-2, axis2=-1)), axis=-1)
    value = 0.5 * alpha @ y + half_log_det + 0.5 * num * np.log(2.0 * np.pi)
    # gradient = tr((K^-1 - alpha alpha') dK) / 2, dK of log variance, length, noise
    pull = inverse - alpha[:, :, None] * alpha[:, None, :]
    pulled = pull * signal
    by_variance = 0.5 * np.sum(pulled, axis=(-2, -1))
    by_lengthscale = 0.5 * np.sum(pulled * scaled, axis=(-2, -1))
    by_noise = 0.5 * noise * np.trace(pull, axis1=-2, axis2=-1)
    return value, np.stack([by_variance, by_lengthscale, by_noise], axis=-1)


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
    noise_floor : float
        Smallest noise variance, > 0.
    num_restarts : int
        Random starts, >= 1; one more from ``previous`` where it is given.
    """
    lower, upper = log_bounds(y, noise_floor)
    starts = rng.uniform(lower, upper, (num_restarts, 3))
    if previous is not None:
        starts = np.vstack([np.clip(previous.log(), lower, upper), starts])
    distances = np.sum((x[:, None, :] - x[None, :, :]) ** 2, axis=-1)

    def total(flat: FloatArray) -> tuple[float, FloatArray]:
        value, gradient = negative_log_likelihood(flat.reshape(-1, 3), distances, y)
        return float(np.sum(value)), gradient.ravel()

    bounds = np.tile(np.column_stack([lower, upper]), (len(starts), 1))
    options = {"maxiter": _MAX_STEPS}
    end = minimize(
        total,
        starts.ravel(),
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options=options,
    )
    ends = end.x.reshape(-1, 3)
    value, _gradient = negative_log_likelihood(ends, distances, y)
    return Hyperparameters(*(float(v) for v in np.exp(ends[np.argmin(value)])))


def sample_function(
    x: FloatArray,
    y: FloatArray,
    hyperparameters: Hyperparameters,
    num_features: int,
    feature_rng: np.random.Generator,
    sample_rng: np.random.Generator,
) -> tuple[RandomFeatures, FloatArray]:
    """Draw a function from the posterior, as fresh features and their weights.

    Returns
    -------
    tuple of RandomFeatures and ndarray of shape (num_features,)
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

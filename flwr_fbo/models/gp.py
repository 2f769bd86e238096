"""Squared exponential Gaussian process: the model behind Thompson sampling.

k(x, x') = variance exp(-||x - x'||^2 / (2 lengthscale^2)), Gaussian noise. The
hyperparameters maximise the log marginal likelihood (Rasmussen & Williams, 2006,
equations 5.8 and 5.9) within bounds, by L-BFGS-B from several starts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.linalg.lapack import dpotrf, dpotri, dpotrs
from scipy.optimize import minimize

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.models.features import RandomFeatures
from flwr_fbo.models.linear import sample_weights
from flwr_fbo.models.near_ties import first_best

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
) -> tuple[float, FloatArray]:
    """Return the negative log marginal likelihood and its gradient of shape (3,).

    Parameters
    ----------
    log_hyperparameters : ndarray of shape (3,)
        Log of variance, lengthscale and noise.
    squared_distances : ndarray of shape (t, t)
    y : ndarray of shape (t,)

    Raises
    ------
    numpy.linalg.LinAlgError
        If the covariance is not positive definite.
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
        raise np.linalg.LinAlgError("The covariance is not positive definite.")
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
    noise_floor : float
        Smallest noise variance, > 0.
    num_restarts : int
        Random starts, >= 1; one more from ``previous`` where it is given.
    """
    lower, upper = log_bounds(y, noise_floor)
    starts = rng.uniform(lower, upper, (num_restarts, 3))
    if previous is not None:
        starts = np.vstack([np.clip(previous.log(), lower, upper), starts])
    distances = _squared_distances(x, x)
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


class Posterior:
    """What observations say of the function (Rasmussen & Williams, algorithm 2.1).

    Parameters
    ----------
    x : ndarray of shape (t, D)
    y : ndarray of shape (t,)
    hyperparameters : Hyperparameters
    """

    def __init__(
        self, x: FloatArray, y: FloatArray, hyperparameters: Hyperparameters
    ) -> None:
        self.x, self.y = x, y
        self._hyperparameters = hyperparameters
        covariance = self._kernel(x, x)
        covariance.flat[:: len(y) + 1] += hyperparameters.noise
        self._factor = cho_factor(covariance, lower=True)
        self._alpha = cho_solve(self._factor, y)

    def _kernel(self, x: FloatArray, other: FloatArray) -> FloatArray:
        h, squared = self._hyperparameters, _squared_distances(x, other)
        return np.asarray(h.variance * np.exp(-0.5 * squared / h.lengthscale**2))

    def predict(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return mean and variance of the function at k points, shape (k,) each."""
        kernel = self._kernel(x, self.x)
        explained = np.sum(kernel.T * cho_solve(self._factor, kernel.T), axis=0)
        variance = np.maximum(self._hyperparameters.variance - explained, 0.0)
        return np.asarray(kernel @ self._alpha), np.asarray(variance)

    def samples(self, x: FloatArray, num: int, rng: np.random.Generator) -> FloatArray:
        """Return joint samples of the function at k points, shape (num, k)."""
        kernel = self._kernel(x, self.x)
        explained = kernel @ cho_solve(self._factor, kernel.T)
        covariance = self._kernel(x, x) - explained
        draws = rng.standard_normal((num, len(x)))
        return np.asarray(kernel @ self._alpha + draws @ root(covariance).T)

    def leave_one_out(self, num: int, rng: np.random.Generator) -> FloatArray:
        """Return joint samples at all t points, shape (t, num, t).

        Row j is of the model that has not seen observation j; the hyperparameters stay.
        """
        rest = ~np.eye(len(self.y), dtype=bool)
        models = (
            Posterior(self.x[others], self.y[others], self._hyperparameters)
            for others in rest
        )
        return np.array([model.samples(self.x, num, rng) for model in models])


def _squared_distances(x: FloatArray, other: FloatArray) -> FloatArray:
    return np.asarray(np.sum((x[:, None, :] - other[None, :, :]) ** 2, axis=-1))


def root(covariance: FloatArray) -> FloatArray:
    """Return A with A A' = the covariance, shape (k, k), as near as rounding allows.

    The symmetric root, which does not depend on the signs of eigenvectors: each BLAS
    has others. Eigenvalues below 0 are taken for 0: a covariance of a posterior may
    well be singular.
    """
    values, vectors = np.linalg.eigh(0.5 * (covariance + covariance.T))
    return np.asarray((vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T)


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

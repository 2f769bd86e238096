"""Matern 5/2 Gaussian process, a lengthscale an axis: behind expected improvement.

k(x, x') = variance (1 + r + r^2 / 3) exp(-r), r^2 = 5 sum_d (x_d - x'_d)^2 / l_d^2
(Rasmussen & Williams, 2006, equation 4.17). The values are taken to be standardised.
With few points and a lengthscale an axis the marginal likelihood alone often says that
all is noise, so the hyperparameters maximise it times log-normal priors: lengthscales
near 0.8 of the cube's side, and little noise. They were chosen on the landmine fields
of odd numbers, and on seeds of Branin's and Hartmann's functions that no table has.
Wider priors of lengthscales, and means that grow as the cube's diagonal does (Hvarfner,
Hellsten & Nardi, Vanilla Bayesian optimization performs great in high dimensions,
2024), found less there; wider ones found more where there are many narrow maxima.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotri, dpotrs
from scipy.optimize import minimize

from flwr_fbo._arrays import FloatArray
from flwr_fbo.models.near_ties import first_best

_MAX_STEPS = 60
# Where a step changes the negative log posterior by less, relatively, it is the last.
_TOLERANCE = 1e-4
# Mean and variance of the prior of a logarithm: a lengthscale's, noise's, variance's.
_PRIOR_MEAN, _PRIOR_VARIANCE = (-0.2, -10.0, 0.0), (0.12, 2.0, 1.0)
_LOWEST, _HIGHEST = (tuple(np.log(v)) for v in ((1e-2, 1e-6, 1e-2), (1e2, 1.0, 1e2)))
# Of the kernel's variance: what is left of it at a point that was evaluated.
_LEAST_VARIANCE = 1e-9


@lru_cache(maxsize=32)
def _each_axis(values: tuple[float, ...], dim: int) -> FloatArray:
    """Return three numbers, of lengthscale, noise and variance, as D + 2."""
    return np.concatenate([np.full(dim, values[0]), values[1:]])


def _correlation(squared: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return k / variance, and -2 times its derivative by sum_d (x_d - x'_d)^2 / l_d^2.

    ``squared`` is that sum.
    """
    r = np.sqrt(5.0 * squared)
    decay = np.exp(-r)
    # In place: of a thousand candidates this is most of what their values cost.
    slope = r
    slope += 1.0
    slope *= decay
    correlation = decay
    correlation *= squared
    correlation *= 5.0 / 3.0
    correlation += slope
    slope *= 5.0 / 3.0
    return correlation, slope


def _factor(covariance: FloatArray) -> FloatArray:
    """Return the lower Cholesky factor, zeros above.

    Raises
    ------
    numpy.linalg.LinAlgError
        If the covariance is not positive definite.
    """
    factor, failed = dpotrf(covariance, lower=1)
    if failed:
        raise np.linalg.LinAlgError("The covariance is not positive definite.")
    return np.asarray(factor)


def _inverse(factor: FloatArray) -> FloatArray:
    """Return the inverse of a matrix, given its lower Cholesky factor."""
    triangle, _ = dpotri(factor, lower=1)  # zeros above
    inverse = triangle + triangle.T
    inverse.flat[:: len(inverse) + 1] *= 0.5
    return np.asarray(inverse)


def negative_log_posterior(
    logs: FloatArray, squares: FloatArray, y: FloatArray
) -> tuple[float, FloatArray]:
    """Return the negative log posterior of hyperparameters, and its gradient.

    Up to a constant; the gradient has shape (D + 2,).

    Parameters
    ----------
    logs : ndarray of shape (D + 2,)
        Logarithms of D lengthscales, the noise's variance, and the kernel's.
    squares : ndarray of shape (D, t, t)
        (x_d - x'_d)^2 of all pairs of points.
    y : ndarray of shape (t,)

    Raises
    ------
    numpy.linalg.LinAlgError
        If the covariance is not positive definite.
    """
    dim, num = len(squares), len(y)
    noise, variance = np.exp(logs[dim:])
    precision = np.exp(-2.0 * logs[:dim])
    flat = squares.reshape(dim, -1)
    correlation, slope = _correlation((precision @ flat).reshape(num, num))
    covariance = variance * correlation
    covariance.flat[:: num + 1] += noise
    factor = _factor(covariance)
    alpha, _ = dpotrs(factor, y, lower=1)
    # The gradient is tr(pull dK), with dK of each hyperparameter.
    pull = 0.5 * (_inverse(factor) - np.outer(alpha, alpha))
    by_lengthscales = variance * precision * (flat @ (pull * slope).ravel())
    by_noise = noise * np.trace(pull)
    by_variance = variance * np.sum(pull * correlation)
    centre = _each_axis(_PRIOR_MEAN, dim)
    away = (logs - centre) / _each_axis(_PRIOR_VARIANCE, dim)
    value = 0.5 * (y @ alpha) + np.sum(np.log(np.diagonal(factor)))
    gradient = np.concatenate([by_lengthscales, [by_noise, by_variance]])
    return float(value + 0.5 * away @ (logs - centre)), gradient + away


def fit(x: FloatArray, y: FloatArray, previous: FloatArray | None = None) -> FloatArray:
    """Return the logarithms of the most probable hyperparameters, shape (D + 2,).

    Parameters
    ----------
    x : ndarray of shape (t, D)
        t >= 1 points of the unit cube.
    y : ndarray of shape (t,)
        Standardised values.
    previous : ndarray of shape (D + 2,), optional
        A start, where it is more probable than the mode of the prior.
    """
    dim = x.shape[1]
    squares = np.square(x.T[:, :, None] - x.T[:, None, :])
    mode = _each_axis(_PRIOR_MEAN, dim)
    starts = [mode] if previous is None else [mode, previous]
    likely = np.array([-negative_log_posterior(s, squares, y)[0] for s in starts])
    end = minimize(
        negative_log_posterior,
        starts[first_best(likely)],
        args=(squares, y),
        jac=True,
        method="L-BFGS-B",
        bounds=np.column_stack([_each_axis(v, dim) for v in (_LOWEST, _HIGHEST)]),
        options={"maxiter": _MAX_STEPS, "ftol": _TOLERANCE},
    )
    return np.asarray(end.x)


class MaternPosterior:
    """What observations say of the function (Rasmussen & Williams, algorithm 2.1).

    Parameters
    ----------
    x : ndarray of shape (t, D)
    y : ndarray of shape (t,)
        Standardised values.
    logs : ndarray of shape (D + 2,)
        Of `fit`.
    """

    def __init__(self, x: FloatArray, y: FloatArray, logs: FloatArray) -> None:
        dim = x.shape[1]
        noise, self._variance = (float(v) for v in np.exp(logs[dim:]))
        self._scale = np.exp(-logs[:dim])
        self._x = x * self._scale
        covariance = self._kernel(self._x)
        covariance.flat[:: len(y) + 1] += noise
        factor = _factor(covariance)
        self._alpha, _ = dpotrs(factor, y, lower=1)
        self._inverse = _inverse(factor)
        self.best = float(np.max(y - noise * self._alpha))
        """The largest mean among the points: what was seen, without its noise."""

    def _kernel(self, points: FloatArray) -> FloatArray:
        """Return k of scaled points and those of the data, shape (k, t)."""
        norms = np.sum(points * points, axis=1)[:, None] + np.sum(self._x**2, axis=1)
        squared = np.maximum(norms - 2.0 * (points @ self._x.T), 0.0)
        return self._variance * _correlation(squared)[0]

    def predict(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return mean and standard deviation at k points, shape (k,) each."""
        kernel = self._kernel(x * self._scale)
        explained = np.einsum("ij,ij->i", kernel @ self._inverse, kernel)
        return kernel @ self._alpha, self._deviation(explained)

    def predict_with_gradients(
        self, x: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Return mean, standard deviation and their gradients, (k,) and (k, D) each."""
        differences = (x * self._scale)[:, None, :] - self._x
        squared = np.einsum("ijd,ijd->ij", differences, differences)
        correlation, slope = _correlation(squared)
        kernel = self._variance * correlation
        gain = kernel @ self._inverse
        deviation = self._deviation(np.einsum("ij,ij->i", gain, kernel))
        # dk = -variance slope (x - x_i) / l^2, and d(deviation) = -gain'dk / deviation.
        pull = -self._variance * slope[:, :, None] * differences * self._scale
        by_mean = np.einsum("ijd,j->id", pull, self._alpha)
        by_deviation = -np.einsum("ijd,ij->id", pull, gain) / deviation[:, None]
        return kernel @ self._alpha, deviation, by_mean, by_deviation

    def _deviation(self, explained: FloatArray) -> FloatArray:
        least = _LEAST_VARIANCE * self._variance
        return np.sqrt(np.maximum(self._variance - explained, least))

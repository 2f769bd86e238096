"""Matern 5/2 Gaussian process, one lengthscale per axis: behind expected improvement.

All of B agents with t observations each is computed as arrays: one agent is a block of
one, and gets the same numbers as in a larger block.

k(x, x') = variance (1 + r + r^2 / 3) exp(-r), r^2 = 5 sum_d (x_d - x'_d)^2 / l_d^2
(Rasmussen & Williams, 2006, equation 4.17). The values are taken to be standardised.
With few points and one lengthscale per axis the marginal likelihood alone often says
that all is noise, so the hyperparameters maximise it times log-normal priors:
lengthscales near 0.8 of the cube's side, and little noise. They were chosen on the
landmine fields of odd numbers, and on seeds of Branin's and Hartmann's functions that
no table has. Wider priors of lengthscales, and means that grow as the cube's diagonal
does (Hvarfner, Hellsten & Nardi, Vanilla Bayesian optimization performs great in high
dimensions, 2024), found less there; wider ones found more where there are many narrow
maxima.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrf, dpotrs, dtrtri

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.models.quasi_newton import minimize_all

_MAX_STEPS = 60
# Where a step changes the negative log posterior by less, relatively, it is the last.
_TOLERANCE = 1e-3
# Mean and variance of the prior of a logarithm: a lengthscale's, noise's, variance's.
_PRIOR_MEAN, _PRIOR_VARIANCE = (-0.2, -10.0, 0.0), (0.12, 2.0, 1.0)
_LOWEST, _HIGHEST = (tuple(np.log(v)) for v in ((1e-2, 1e-6, 1e-2), (1e2, 1.0, 1e2)))
# How far the first step of a fit may go.
_FIRST_STEP = (0.3, 1.0, 0.5)
# Smallest variance at a point, as a share of the kernel's: in double precision, and in
# single precision.
_LEAST_VARIANCE, _LEAST_ROUGH_VARIANCE = 1e-9, 1e-5


@lru_cache(maxsize=32)
def _each_axis(values: tuple[float, ...], dim: int) -> FloatArray:
    """Return three numbers, of lengthscale, noise and variance, as D + 2."""
    return np.concatenate([np.full(dim, values[0]), values[1:]])


def _correlation(
    squared: NDArray[Any],
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return k / variance of r^2, and -6 times its derivative by r^2.

    The array is overwritten.
    """
    # In place: of a thousand candidates this is most of what their values cost.
    correlation, r = squared, np.sqrt(squared)
    decay = np.exp(-r)
    r += 1.0
    r *= decay
    decay /= 3.0
    correlation *= decay
    correlation += r
    return correlation, r


def _solved(
    covariance: FloatArray, y: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return L^-1 of covariances L L', their solutions for ``y``, and log det L.

    Their shapes are (B, t, t), (B, t) and (B,); NaN where a covariance is not positive
    definite. By LAPACK one by one, which takes half of the time of NumPy's inverses.
    """
    whitening, alpha = np.empty_like(covariance), np.empty_like(y)
    half_log_det = np.empty(len(y))
    for i, (matrix, values) in enumerate(zip(covariance, y, strict=True)):
        factor, failed = dpotrf(matrix.T, lower=1)
        if failed:
            whitening[i], alpha[i], half_log_det[i] = np.nan, np.nan, np.nan
            continue
        half_log_det[i] = np.log(factor.diagonal()).sum()
        alpha[i], _ = dpotrs(factor, values, lower=1)
        whitening[i], _ = dtrtri(factor, lower=1, overwrite_c=1)
    return whitening, alpha, half_log_det


def negative_log_posterior(
    logs: FloatArray, squares: FloatArray, y: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return negative log posteriors of hyperparameters, (B,), and gradients.

    Up to a constant; NaN where the covariance is not positive definite.

    Parameters
    ----------
    logs : ndarray of shape (B, D + 2)
        Logarithms of D lengthscales, the noise's variance, and the kernel's.
    squares : ndarray of shape (B, D, t, t)
        (x_d - x'_d)^2 of all pairs of points.
    y : ndarray of shape (B, t)
        Standardised values at the points.
    """
    num_agents, dim, num, _ = squares.shape
    precision = 5.0 * np.exp(-2.0 * logs[:, :dim])
    noise, variance = np.exp(logs[:, dim:]).T
    flat = squares.reshape(num_agents, dim, num * num)
    squared = (precision[:, None, :] @ flat).reshape(num_agents, num, num)
    correlation, slope = _correlation(squared)
    covariance = variance[:, None, None] * correlation
    covariance.reshape(num_agents, -1)[:, :: num + 1] += noise[:, None]
    whitening, alpha, half_log_det = _solved(covariance, y)
    # The gradient is tr(pull dK) / 2, with dK of each hyperparameter.
    pull = whitening.transpose(0, 2, 1) @ whitening
    pull -= alpha[:, :, None] * alpha[:, None, :]
    trace = pull.reshape(num_agents, -1)[:, :: num + 1].sum(axis=1)
    slope *= pull
    pull *= correlation
    gradient = np.empty_like(logs)
    sums = flat @ slope.reshape(num_agents, -1, 1)
    gradient[:, :dim] = sums[:, :, 0] * precision * (variance[:, None] / 6.0)
    gradient[:, dim] = 0.5 * noise * trace
    gradient[:, dim + 1] = 0.5 * variance * pull.reshape(num_agents, -1).sum(axis=1)
    away = logs - _each_axis(_PRIOR_MEAN, dim)
    pulled = away / _each_axis(_PRIOR_VARIANCE, dim)
    gradient += pulled
    value = half_log_det + 0.5 * (np.vecdot(y, alpha) + np.vecdot(pulled, away))
    return value, gradient


def _squared_differences(x: FloatArray) -> FloatArray:
    """Return (x_d - x'_d)^2, shape (B, D, t, t), of points of shape (B, t, D)."""
    axes = np.ascontiguousarray(x.transpose(0, 2, 1))
    squares = axes[:, :, :, None] - axes[:, :, None, :]
    return np.square(squares, out=squares)


def fit(x: FloatArray, y: FloatArray, previous: FloatArray) -> FloatArray:
    """Return the logarithms of the most probable hyperparameters, shape (B, D + 2).

    Parameters
    ----------
    x : ndarray of shape (B, t, D)
        t >= 1 points of the unit cube.
    y : ndarray of shape (B, t)
        Standardised values.
    previous : ndarray of shape (B, D + 2)
        Start of the search; NaN for the mode of the prior.
    """
    num_agents, _, dim = x.shape
    squares = _squared_differences(x)
    mode = _each_axis(_PRIOR_MEAN, dim)
    starts = np.where(np.isnan(previous), mode, previous)

    def posterior(
        logs: FloatArray, index: NDArray[np.intp]
    ) -> tuple[FloatArray, FloatArray]:
        if len(index) == num_agents:
            return negative_log_posterior(logs, squares, y)
        return negative_log_posterior(logs, squares[index], y[index])

    lower, upper, steps = (
        np.tile(_each_axis(v, dim), (num_agents, 1))
        for v in (_LOWEST, _HIGHEST, _FIRST_STEP)
    )
    values, gradients = negative_log_posterior(starts, squares, y)
    fitted, _ = minimize_all(
        posterior,
        (starts, values, gradients),
        lower,
        upper,
        steps,
        tolerance=_TOLERANCE,
        max_steps=_MAX_STEPS,
    )
    return fitted


class MaternPosterior:
    """Posteriors of functions (Rasmussen & Williams, algorithm 2.1), one per agent.

    Parameters
    ----------
    x : ndarray of shape (B, t, D)
        Points of the observations on the unit cube.
    y : ndarray of shape (B, t)
        Standardised values.
    logs : ndarray of shape (B, D + 2)
        Logarithms of hyperparameters, as `fit` returned them.

    Attributes
    ----------
    best : ndarray of shape (B,)
        The largest mean among the points: what was seen, without its noise.
    lengthscales : ndarray of shape (B, D)
        Lengthscale per agent and coordinate, > 0.
    """

    def __init__(self, x: FloatArray, y: FloatArray, logs: FloatArray) -> None:
        num_agents, num, dim = x.shape
        noise, self._variance = np.exp(logs[:, dim:]).T
        self.lengthscales = np.exp(logs[:, :dim])
        # All that follows is in units of the kernel's variance.
        noise = (noise / self._variance)[:, None]
        self._scale = (math.sqrt(5.0) / self.lengthscales)[:, None, :]
        self._x = x * self._scale
        squares = _squared_differences(x).reshape(num_agents, dim, -1)
        squared = np.square(self._scale) @ squares
        covariance, _ = _correlation(squared)
        covariance[:, 0, :: num + 1] += noise
        covariance = covariance.reshape(num_agents, num, num)
        self._whitening, alpha, _ = _solved(covariance, y)
        self._inverse = self._whitening.transpose(0, 2, 1) @ self._whitening
        self._alpha = alpha[:, None, :]
        self.best = (y - noise * alpha).max(axis=1)

    def take(self, index: NDArray[np.intp]) -> MaternPosterior:
        """Return what predicts for some agents, which may be repeated."""
        taken = object.__new__(MaternPosterior)
        for name in ("_x", "_scale", "_variance", "_alpha", "_inverse", "best"):
            setattr(taken, name, getattr(self, name)[index])
        return taken

    def rough(self, x: FloatArray, agent: int) -> tuple[FloatArray, FloatArray]:
        """Return mean and deviation at k points for one agent, to screen them.

        In single precision, where an exponential costs a fifth: the variance is off by
        up to about 1e-4 of the kernel's.

        Parameters
        ----------
        x : ndarray of shape (k, D)
            Points of the unit cube.
        agent : int
            Number of the agent, from 0 to B - 1.

        Returns
        -------
        tuple of two ndarrays of shape (k,)
            In single precision.
        """
        single = np.float32
        centre = self._x[agent].mean(axis=0)
        points, seen = x * self._scale[agent] - centre, self._x[agent] - centre
        # |p - s|^2 = (|p|^2, 1, p)'(1, |s|^2, -2 s), as one product.
        left = np.ones((len(x), 2 + x.shape[1]), single)
        right = np.ones((2 + x.shape[1], len(seen)), single)
        left[:, 0], left[:, 2:] = np.einsum("ij,ij->i", points, points), points
        right[1], right[2:] = np.einsum("ij,ij->i", seen, seen), -2.0 * seen.T
        squared = left @ right
        correlation, spare = _correlation(np.maximum(squared, 0.0, out=squared))
        mean = correlation @ self._alpha[agent, 0].astype(single)
        whitened = np.matmul(
            correlation, self._whitening[agent].T.astype(single), out=spare
        )
        explained = np.square(whitened, out=whitened) @ np.ones(len(seen), single)
        left_over = np.maximum(1.0 - explained, _LEAST_ROUGH_VARIANCE)
        return mean, np.sqrt(single(self._variance[agent]) * left_over)

    def predict(
        self, x: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Return means, standard deviations and their gradients, at k points an agent.

        Parameters
        ----------
        x : ndarray of shape (B, k, D)
            Points of each agent.

        Returns
        -------
        tuple of ndarrays of shapes (B, k), (B, k), (B, k, D) and (B, k, D)
            Means, standard deviations, and the gradients of both by x.
        """
        num_agents, num_points, _ = x.shape
        scaled = x * self._scale
        away = scaled[:, :, None, :] - self._x[:, None, :, :]
        correlation, slope = _correlation(np.vecdot(away, away))
        mean = np.vecdot(correlation, self._alpha)
        gain = correlation @ self._inverse
        left_over = np.maximum(1.0 - np.vecdot(correlation, gain), _LEAST_VARIANCE)
        variance = self._variance[:, None]
        deviation = np.sqrt(variance * left_over)
        # dk = -slope (x - x_i) / 3 in scaled units; of the deviation it is
        # -variance gain'dk / deviation.
        slope /= -3.0
        pulls = np.empty((num_agents, num_points, 2, self._x.shape[1]))
        np.multiply(slope, self._alpha, out=pulls[:, :, 0])
        np.multiply(slope, gain, out=pulls[:, :, 1])
        slopes = pulls @ away
        slopes *= self._scale[:, :, None, :]
        by_deviation = slopes[:, :, 1] * (-variance / deviation)[:, :, None]
        return mean, deviation, slopes[:, :, 0], by_deviation

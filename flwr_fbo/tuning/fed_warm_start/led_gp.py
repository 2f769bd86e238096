"""A site's own model while a function that others share leads it.

    y / a = c + h(x) + r(x) + noise,   r ~ GP(0, v Matern 5/2)

with h given, c flat, and a > 0 the scale of the site's own values, with one pseudo
observation that they have variance 1 (they are standardised first). All but the
lengthscales, the noise and v is integrated or maximised in closed form: with S the
sums of products after c, k = t - 1 + 1 and b = 1 / a,

    b = (S_yh + sqrt(S_yh^2 + 4 S_yy k)) / (2 S_yy).

v has a log-normal prior with median 3: h leads where a site has seen little, and a few
observations that contradict it are enough.
"""

from __future__ import annotations

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.tuning.fed_warm_start.shared_function import matern

# Mean and deviation of the prior of a logarithm: a lengthscale's, the noise's variance
# in units of v, and v's. The first two are those of a site that searches alone.
_MEANS = (-0.2, -9.0, float(np.log(3.0)))
_DEVIATIONS = (0.35, 1.41, 0.7)
_LOWEST_NOISE, _JITTER = 1e-6, 1e-7
_PSEUDO_OBSERVATIONS = 1.0
# Hyperparameters tried: of the prior, then around the best ones so far.
_NUM_PRIOR, _NUM_NEAR, _NEAR = 24, 8, (0.6, 0.3, 0.15)
_LEAST_DEVIATION = 1e-4


class LedPosterior:
    """Posterior of a site's own function, by t observations and a leading function.

    In units of h: of y / a.

    Parameters
    ----------
    x : ndarray of shape (t, D)
        t >= 1.
    y : ndarray of shape (t,)
        Standardised values.
    h : ndarray of shape (t,)
        The leading function at ``x``.
    rng : numpy.random.Generator
        Draws hyperparameters to compare.

    Attributes
    ----------
    best : float
        The largest mean among the points.
    """

    def __init__(
        self, x: FloatArray, y: FloatArray, h: FloatArray, rng: np.random.Generator
    ) -> None:
        self._x = x
        logs = _most_probable(x, y, h, rng)
        dim = x.shape[1]
        self._lengthscales = np.exp(logs[:dim])
        self._variance = float(np.exp(logs[dim + 1]))
        factor, noise = _factor(x, logs)
        b, _ = _scale(factor, y, h)
        self._inverse = np.linalg.inv(factor @ factor.T)
        self._one = self._inverse.sum(axis=1)
        self._total = float(self._one.sum())
        left = b * y - h
        self._c = float(self._one @ left) / self._total
        self._alpha = self._inverse @ (left - self._c)
        self.best = float((b * y - noise * self._alpha).max())

    def predict(self, x: FloatArray, h: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return mean and deviation at points (n, D), h given there, each (n,)."""
        k = self._variance * matern(x, self._x, self._lengthscales)
        mean = h + self._c + k @ self._alpha
        explained = np.einsum("ij,jk,ik->i", k, self._inverse, k)
        # That c is not known is left, however far x is.
        flat = (1.0 - k @ self._one) ** 2 / self._total
        least = _LEAST_DEVIATION**2 * self._variance
        variance = np.maximum(self._variance - explained + flat, least)
        return mean, np.sqrt(variance)


def _most_probable(
    x: FloatArray, y: FloatArray, h: FloatArray, rng: np.random.Generator
) -> FloatArray:
    """Return logarithms of D lengthscales, the noise and v: the best of those tried."""
    dim = x.shape[1]
    means, deviations = (
        np.concatenate([np.full(dim, p[0]), p[1:]]) for p in (_MEANS, _DEVIATIONS)
    )

    def posterior(logs: FloatArray) -> float:
        factor, _ = _factor(x, logs)
        away = (logs - means) / deviations
        return _scale(factor, y, h)[1] - 0.5 * float(away @ away)

    best, value = means, posterior(means)
    steps = rng.standard_normal((_NUM_PRIOR + len(_NEAR) * _NUM_NEAR, dim + 2))
    for i, step in enumerate(deviations * steps):
        near = (i - _NUM_PRIOR) // _NUM_NEAR
        tried = means + step if i < _NUM_PRIOR else best + _NEAR[near] * step
        of_tried = posterior(tried)
        if of_tried > value:
            best, value = tried, of_tried
    return best


def _factor(x: FloatArray, logs: FloatArray) -> tuple[FloatArray, float]:
    """Return the Cholesky factor of r's covariance with noise, and the noise."""
    dim = x.shape[1]
    variance = float(np.exp(logs[dim + 1]))
    noise = variance * max(float(np.exp(logs[dim])), _LOWEST_NOISE)
    covariance = variance * matern(x, x, np.exp(logs[:dim]))
    covariance[np.diag_indices(len(x))] += noise + variance * _JITTER
    return np.asarray(np.linalg.cholesky(covariance)), noise


def _scale(factor: FloatArray, y: FloatArray, h: FloatArray) -> tuple[float, float]:
    """Return the most probable b = 1 / a, and the log density there."""
    whitened = np.linalg.solve(factor, np.column_stack([y, h, np.ones(len(y))]))
    s = whitened.T @ whitened
    after_c = s[:2, :2] - np.outer(s[:2, 2], s[:2, 2]) / s[2, 2]
    yy, yh, hh = after_c[0, 0] + _PSEUDO_OBSERVATIONS, after_c[0, 1], after_c[1, 1]
    k = len(y) - 1 + _PSEUDO_OBSERVATIONS
    # The positive root of yy b^2 - yh b - k = 0: there the log density is largest.
    b = (yh + np.sqrt(yh**2 + 4.0 * yy * k)) / (2.0 * yy)
    density = k * np.log(b) - 0.5 * (yy * b * b - 2.0 * b * yh + hh)
    density -= np.log(np.diag(factor)).sum() + 0.5 * np.log(s[2, 2])
    return float(b), float(density)

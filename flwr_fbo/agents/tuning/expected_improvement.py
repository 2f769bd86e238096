"""Expected improvement: how much better than the best a place is hoped to be.

The logarithm is what is maximised (Ament, Daulton, Eriksson, Balandat & Bakshy,
Unexpected improvements to expected improvement, 2023): improvement itself is zero, to
the last bit, over most of the space, and has no gradient there.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx
from scipy.stats import norm

from flwr_fbo.agents.tuning.acquisition import maximize_function
from flwr_fbo.models.matern import MaternPosterior
from flwr_fbo.space.search_space import SearchSpace

FloatArray = NDArray[np.float64]

# Beyond, improvement is its limit, pdf(z) / z^2 or z, to seven digits or all.
_FAR, _LARGE = -1e4, 30.0


def expected_improvement(
    mean: FloatArray, deviation: FloatArray, best: float
) -> FloatArray:
    """Return E max(0, f - best) for f ~ N(mean, deviation^2), shape as ``mean``."""
    deviation = np.maximum(deviation, 1e-12)
    z = (mean - best) / deviation
    return np.asarray((mean - best) * norm.cdf(z) + deviation * norm.pdf(z))


def _log_pdf(z: FloatArray) -> FloatArray:
    return -0.5 * z * z - 0.5 * math.log(2.0 * math.pi)


def log_unit_improvement(z: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return log E max(0, z + e) for e ~ N(0, 1), and its derivative.

    Parameters
    ----------
    z : ndarray of shape (k,)
        Numbers of less than 1e150 in size.

    Returns
    -------
    tuple of two ndarrays of shape (k,)
    """
    # h(z) = pdf(z) + z cdf(z) = pdf(z) (1 + z ratio(z)), of Mills' ratio, and h' = cdf.
    inside = np.clip(z, _FAR, _LARGE)
    ratio = math.sqrt(math.pi / 2.0) * erfcx(inside / -math.sqrt(2.0))
    share = 1.0 + inside * ratio
    value = _log_pdf(inside) + np.log(share)
    slope = ratio / share
    if np.any(inside != z):
        far, large = z < _FAR, z > _LARGE
        value[far] = _log_pdf(z[far]) - 2.0 * np.log(-z[far])
        slope[far] = -z[far]
        value[large], slope[large] = np.log(z[large]), 1.0 / z[large]
    return value, slope


def standardised(y: FloatArray) -> FloatArray:
    """Return values with mean 0 and deviation 1, or zeros where all are equal."""
    tiny = np.finfo(np.float64).tiny
    # Exactly zero, where they are equal; and no square that vanishes.
    y = y - y[0]
    y = y / max(float(np.max(np.abs(y))), tiny)
    return np.asarray((y - np.mean(y)) / max(float(np.std(y)), tiny))


def suggest(
    model: MaternPosterior,
    space: SearchSpace,
    rng: np.random.Generator,
    num_candidates: int,
    num_starts: int,
) -> FloatArray:
    """Return the place with the largest log expected improvement found, shape (D,).

    Parameters
    ----------
    model : MaternPosterior
    space, num_candidates, num_starts
        As for `flwr_fbo.agents.tuning.acquisition.maximize`.
    """

    def value(x: FloatArray) -> FloatArray:
        mean, deviation = model.predict(x)
        z = (mean - model.best) / deviation
        return log_unit_improvement(z)[0] + np.log(deviation)

    def value_and_gradient(x: FloatArray) -> tuple[FloatArray, FloatArray]:
        mean, deviation, by_mean, by_deviation = model.predict_with_gradients(x)
        z = (mean - model.best) / deviation
        log_h, slope = log_unit_improvement(z)
        by_z = (by_mean - z[:, None] * by_deviation) / deviation[:, None]
        gradient = slope[:, None] * by_z + by_deviation / deviation[:, None]
        return log_h + np.log(deviation), gradient

    return maximize_function(
        value, space, rng, num_candidates, num_starts, value_and_gradient
    )

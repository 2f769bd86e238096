"""Expected improvement, and the maximum of any function, by numerical gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
from scipy.special import ndtr

from flwr_fbo._common.arrays import FloatArray, first_best
from flwr_fbo.models.features import ascend
from flwr_fbo.space.search_space import SearchSpace

# Of numerical gradients, in units of the cube.
_STEP = 1e-6


def expected_improvement(
    mean: FloatArray, deviation: FloatArray, best: float
) -> FloatArray:
    """Return E max(0, f - best) for f ~ N(mean, deviation^2), shape as ``mean``."""
    deviation = np.maximum(deviation, 1e-12)
    z = (mean - best) / deviation
    density = np.exp(-(z**2) / 2.0) / math.sqrt(2.0 * math.pi)
    return np.asarray((mean - best) * ndtr(z) + deviation * density)


def maximize_function(
    function: Callable[[FloatArray], FloatArray],
    space: SearchSpace,
    rng: np.random.Generator,
    num_candidates: int,
    num_starts: int,
) -> FloatArray:
    """Return the maximiser of any function, by numerical gradients.

    Parameters
    ----------
    function : callable
        Takes points of shape (n, D), returns values of shape (n,).
    space : SearchSpace
        Discrete axes take the values of the candidates; the ascent moves the others.
    num_candidates, num_starts : int
        Uniform points, and how many of the best are refined; both >= 1.

    Returns
    -------
    ndarray of shape (D,)
    """
    candidates = space.snap_discrete(rng.random((num_candidates, space.dim)))
    values = function(candidates)
    # L-BFGS stops at an absolute gradient, as above.
    scale = max(float(np.max(np.abs(values))), np.finfo(np.float64).tiny)
    slope = partial(_with_differences, lambda x: function(x) / scale)
    starts = candidates[np.argsort(-values, kind="stable")[:num_starts]]
    lower = np.where(space.continuous, 0.0, starts)
    upper = np.where(space.continuous, 1.0, starts)
    points = np.vstack([ascend(slope, starts, lower, upper), starts])
    return np.asarray(points[first_best(function(points))])


def _with_differences(
    function: Callable[[FloatArray], FloatArray], x: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return values (n,) and central differences (n, D), in one call."""
    num, dim = x.shape
    steps = _STEP * np.vstack([np.zeros(dim), np.eye(dim), -np.eye(dim)])
    values = function((x[None] + steps[:, None]).reshape(-1, dim)).reshape(-1, num)
    gradient = (values[1 : dim + 1] - values[dim + 1 :]) / (2.0 * _STEP)
    return values[0], gradient.T

"""Maximise a function drawn as random features over the unit cube.

Uniform candidates, screened in single precision, then gradient ascent from the best of
them, or from other uniform points; what is returned is the best of ends and candidates
in double precision. All starts run as one L-BFGS-B problem (the sum of their values),
each within its own sub-region's box: with sub-regions the surface jumps at their
borders, and many optima lie on a border.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from flwr_fbo._common.arrays import FloatArray, first_best
from flwr_fbo.models.features import RandomFeatures, ascend
from flwr_fbo.space.search_space import SearchSpace, SubRegions

# Of numerical gradients, in units of the cube.
_STEP = 1e-6


def maximize(
    features: RandomFeatures,
    weights: FloatArray,
    space: SearchSpace,
    sub_regions: SubRegions,
    rng: np.random.Generator,
    num_candidates: int,
    num_starts: int,
    random_starts: bool = False,
) -> FloatArray:
    """Return the maximiser of phi(x)'w^(i(x)), where i(x) is the sub-region of x.

    Discrete axes take the values of the candidates; the ascent moves the others.

    Parameters
    ----------
    features : RandomFeatures
    weights : ndarray of shape (P, M)
        One function a sub-region.
    space : SearchSpace
        D axes.
    sub_regions : SubRegions
        P boxes.
    num_candidates, num_starts : int
        Uniform points, and how many of the best are refined; both >= 1.
    random_starts : bool
        Whether as many other uniform points are refined in place of the best.

    Returns
    -------
    ndarray of shape (D,)
    """
    # L-BFGS stops at an absolute gradient: the surface must not be tiny, or huge.
    weights = weights / max(float(np.max(np.abs(weights))), np.finfo(np.float64).tiny)
    candidates = space.snap_discrete(rng.random((num_candidates, space.dim)))
    regions = sub_regions.index(candidates)
    rough = features.rough_values(candidates, weights, regions)
    best = features.largest(candidates, weights, regions, rough, num_starts)
    best_candidates = starts = candidates[best]
    if random_starts:
        starts = space.snap_discrete(rng.random((num_starts, space.dim)))
    regions = sub_regions.index(starts)
    # The upper border belongs to the next box; the last float below it is ours.
    upper = sub_regions.upper[regions]
    upper = np.where(upper < 1.0, np.nextafter(upper, 0.0), upper)
    bounds = (
        np.where(space.continuous, sub_regions.lower[regions], starts),
        np.where(space.continuous, upper, starts),
    )
    slope = partial(features.function_and_gradient, weights=weights[regions])
    ends = ascend(slope, starts, *bounds)
    points = np.vstack([ends, best_candidates])
    of_points = np.concatenate([regions, sub_regions.index(best_candidates)])
    values = features.function(points, weights[of_points])
    return np.asarray(points[first_best(values)])


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
    space, num_candidates, num_starts
        As for `maximize`.

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

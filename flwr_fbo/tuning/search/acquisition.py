"""Maximise a function drawn as random features over the unit cube.

Uniform candidates, screened in single precision, then gradient ascent from the best of
them, or from other uniform points; what is returned is the best of ends and candidates
in double precision. All starts run as one L-BFGS-B problem (the sum of their values),
each within its own sub-region's box: with sub-regions the surface jumps at their
borders, and many optima lie on a border.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from flwr_fbo._common.arrays import FloatArray, first_best
from flwr_fbo.models.features import RandomFeatures, ascend
from flwr_fbo.space.search_space import SearchSpace, SubRegions


def maximize(
    features: RandomFeatures,
    weights: FloatArray,
    space: SearchSpace,
    sub_regions: SubRegions,
    rng: np.random.Generator,
    *,
    num_candidates: int,
    num_starts: int,
    random_starts: bool = False,
) -> FloatArray:
    """Return the maximiser of phi(x)'w^(i(x)), where i(x) is the sub-region of x.

    Discrete axes take the values of the candidates; the ascent moves the others.

    Parameters
    ----------
    features : RandomFeatures
        Features phi of the functions.
    weights : ndarray of shape (P, M)
        One function per sub-region.
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
        Maximiser on the unit cube.
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

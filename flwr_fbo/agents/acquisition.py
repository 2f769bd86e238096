"""Maximise a function drawn as random features over the unit cube.

Uniform candidates, roughly evaluated, then gradient ascent from the best of them; what
is returned is the best of starts and ends in double precision. All starts run as one
L-BFGS-B problem (the sum of their values), each within its own sub-region's box: with
sub-regions the surface jumps at their borders, and many optima lie on a border.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from flwr_fbo.models.features import RandomFeatures
from flwr_fbo.space import SearchSpace, SubRegions

FloatArray = NDArray[np.float64]

_MAX_STEPS = 50


def maximize(
    features: RandomFeatures,
    weights: FloatArray,
    space: SearchSpace,
    sub_regions: SubRegions,
    rng: np.random.Generator,
    num_candidates: int,
    num_starts: int,
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

    Returns
    -------
    ndarray of shape (D,)
    """
    # L-BFGS stops at an absolute gradient: the surface must not be tiny, or huge.
    weights = weights / max(float(np.max(np.abs(weights))), np.finfo(np.float64).tiny)
    candidates = space.snap_discrete(rng.random((num_candidates, space.dim)))
    regions = sub_regions.index(candidates)
    values = features.rough_values(candidates, weights, regions)
    best = np.argsort(-values, kind="stable")[:num_starts]
    starts, regions = candidates[best], regions[best]
    # The upper border belongs to the next box; the last float below it is ours.
    upper = sub_regions.upper[regions]
    upper = np.where(upper < 1.0, np.nextafter(upper, 0.0), upper)
    bounds = (
        np.where(space.continuous, sub_regions.lower[regions], starts),
        np.where(space.continuous, upper, starts),
    )
    ends = _ascend(features, weights[regions], starts, *bounds)
    points = np.vstack([starts, ends])
    values = features.function(points, weights[np.tile(regions, 2)])
    return np.asarray(points[np.argmax(values)])


def _ascend(
    features: RandomFeatures,
    weights: FloatArray,
    starts: FloatArray,
    lower: FloatArray,
    upper: FloatArray,
) -> FloatArray:
    """Refine every start within its bounds; all (k, D), the weights (k, M)."""

    def negative_sum(flat: FloatArray) -> tuple[float, FloatArray]:
        values, gradient = features.function_and_gradient(
            flat.reshape(starts.shape), weights
        )
        return -float(np.sum(values)), -gradient.ravel()

    bounds = np.column_stack([lower.ravel(), upper.ravel()])
    end = minimize(
        negative_sum,
        starts.ravel(),
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": _MAX_STEPS},
    )
    return np.asarray(np.clip(end.x.reshape(starts.shape), lower, upper))

"""Uniform points of the unit ball."""

from __future__ import annotations

import numpy as np

from flwr_fbo._common.arrays import FloatArray


def uniform_in_ball(
    rng: np.random.Generator, out: FloatArray, norms: FloatArray
) -> FloatArray:
    """Return ``out``, filled with uniform points of the unit ball, shape (..., d).

    g / sqrt(||g||^2 + 2 E) with g normal and E exponential (Barthe, Guedon, Mendelson &
    Naor, 2005): the first coordinates of a point on the sphere of two dimensions more.
    ``norms`` of shape (...) is overwritten.
    """
    g = rng.standard_normal(out=out)
    rng.standard_exponential(out=norms)
    norms *= 2
    norms += np.einsum("...i,...i->...", g, g)
    g /= np.sqrt(norms, out=norms)[..., None]
    return g

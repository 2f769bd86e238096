"""Random generators: one per (entropy, agent or round, purpose), no global state.

Every draw in the package comes from a generator made here, keyed by what it is for. So
a run depends neither on the order in which replies arrive nor on who computed what, and
a run that was stopped goes on with the numbers it would have had.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from flwr_fbo._common.arrays import FloatArray


class Purpose(IntEnum):
    """Purpose of a generator; the last word of its key."""

    INITIAL_POINTS = 0
    FOLLOW = 1
    SEARCH = 2
    SURROGATE_FEATURES = 3
    SURROGATE_SAMPLE = 4
    MESSAGE = 5
    HYPERPARAMETERS = 6
    SHARED_FEATURES = 7
    POISSON_MASK = 8
    RELEASE_NOISE = 9
    TEST_FUNCTION = 10
    OBSERVATION = 11
    REPEATED_QUERY = 12
    SUBSET = 13
    TRAINING = 14
    LIE = 15
    CONTEXTS = 16
    GRAPH = 17
    LANGEVIN = 18
    DICTIONARY = 19
    REFERENCE_POINTS = 20
    EXPLORATION = 21


def generator(entropy: int, *key: int) -> np.random.Generator:
    """Return the generator that belongs to ``key`` under ``entropy`` (both >= 0)."""
    return np.random.default_rng(np.random.SeedSequence(entropy, spawn_key=key))


def sobol_points(
    dim: int, exponent: int, rng: np.random.Generator | None = None
) -> FloatArray:
    """Return the first 2**exponent points of a Sobol sequence, scrambled by ``rng``.

    Shape (2**exponent, dim), in [0, 1).
    """
    # Not `from scipy.stats.qmc import ...`: in a simulation another thread may be
    # importing scipy.stats for the app. Python waits for a package that is half there
    # only if it is imported by its own name, and modules of this one need each other.
    from scipy.stats import qmc

    scramble = rng is not None
    points: FloatArray = qmc.Sobol(dim, scramble=scramble, rng=rng).random_base2(
        exponent
    )
    return points


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

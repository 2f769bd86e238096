"""The two secrets of a release: its noise and who is sampled.

`OsEntropy` is for real studies. `SeededEntropy` can be predicted by whoever knows the
seed: it is for experiments, and a study that uses it is not private.
"""

from __future__ import annotations

import math
import os
import random
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.random import Purpose, generator

# OpenDP computes with multiples of a grid of 2**-61 to 2**-60 of the noise's deviation,
# and the deviation is larger by one part in 2**30 than what was asked for: more than
# what rounding to the grid adds to the sensitivity (see `OsEntropy`).
_GRID_BITS, _MARGIN = 60, 2.0**-30
# That of a float: a finer grid has nothing to hold.
_FINEST_GRID = -1074


class Entropy(Protocol):
    """Source of noise and samples."""

    @property
    def private(self) -> bool:
        """True if nobody can predict its draws."""

    def mask(self, iteration: int, num_agents: int, q: float) -> NDArray[np.bool_]:
        """Return a Poisson sample of the agents: each True with probability q."""

    def subset(
        self, iteration: int, num_agents: int, sample_size: int
    ) -> NDArray[np.bool_]:
        """Return a uniform sample without replacement: ``sample_size`` are True."""

    def add_noise(
        self, iteration: int, rows: FloatArray, std: FloatArray
    ) -> FloatArray:
        """Return ``rows`` of shape (P, M) plus noise with deviation std[i] in row i."""


def _import_opendp() -> Any:
    """Return OpenDP, or say in an ImportError how to install it."""
    try:
        # Not its prelude: that imports scikit-learn too, and Flower's simulation
        # may be importing that in another thread just now, for the ClientApp.
        import opendp.domains
        import opendp.measurements
        import opendp.measures
        import opendp.metrics
        import opendp.mod
    except ImportError as error:
        raise ImportError(
            "A private release needs floating-point-safe noise from OpenDP: "
            "pip install 'flwr-fbo[secure]' (or, in an experiment that protects "
            "nobody, give noise_seed)."
        ) from error
    opendp.mod.enable_features("contrib")
    return opendp


# To build it takes longer than a small draw.
@lru_cache(maxsize=16)
def opendp_gaussian(
    number: type[float] | type[int], length: int, scale: float, grid: int | None = None
) -> Any:
    """Return OpenDP's Gaussian mechanism for a vector; its noise is from OS entropy.

    Parameters
    ----------
    number : {float, int}
        Type of the numbers; an int gets discrete Gaussian noise.
    length : int
        Number of a vector's entries.
    scale : float
        Parameter s of the noise: the mass at k is proportional to exp(-k^2 / 2 s^2).
    grid : int, optional
        Floats are rounded to multiples of 2**grid.

    Raises
    ------
    ImportError
        If OpenDP is not installed; the message names the extra.
    """
    dp = _import_opendp()
    kind = {"T": float, "nan": False} if number is float else {"T": "i64"}
    # The length tells OpenDP what rounding adds to the sensitivity.
    domain = dp.domains.vector_domain(dp.domains.atom_domain(**kind), size=length)
    metric = dp.metrics.l2_distance(T=float)
    return dp.measurements.make_gaussian(domain, metric, scale=scale, k=grid)


class OsEntropy:
    """Samples from the operating system's entropy, noise from OpenDP.

    Formal guarantees
    -----------------
    OpenDP's Gaussian mechanism rounds its input to a grid, adds exactly sampled
    discrete Gaussian noise and is therefore free of the floating-point leaks of
    ``numpy``'s sampler (Mironov, 2012; Canonne, Kamath & Steinke, 2020). The mask is
    Bernoulli(q) to within 2**-64, a subset uniform without error. What is not covered:
    the time the sampling takes.

    Rounding costs no privacy. With deviation s and sensitivity s / z the grid g is at
    most s / 2**60. It moves each of n numbers by g / 2 at most, and so two neighbours
    apart by g sqrt(n) at most. The noise is s (1 + 2**-30), which is at least z times
    the sensitivity after rounding, s / z + g sqrt(n), while z sqrt(n) <= 2**30. That
    holds for all z that are allowed (up to 1e6) and a million numbers.

    Raises
    ------
    ImportError
        If OpenDP is not installed; the message names the extra.
    """

    private = True

    def __init__(self) -> None:
        _import_opendp()

    def mechanism(self, std: float, length: int) -> Any:
        """Return OpenDP's noise of deviation ``std`` for so many numbers."""
        finest = math.frexp(std)[1] - 1 - _GRID_BITS
        grid = max(finest, _FINEST_GRID)
        return opendp_gaussian(float, length, std * (1.0 + _MARGIN), grid)

    def mask(self, iteration: int, num_agents: int, q: float) -> NDArray[np.bool_]:
        """Draw the mask afresh; ``iteration`` plays no part."""
        if q >= 1.0:
            return np.ones(num_agents, dtype=np.bool_)
        # Integers below q 2**64: no float that is rounded, and no generator's state.
        words = np.frombuffer(os.urandom(8 * num_agents), dtype=np.uint64)
        return np.asarray(words < np.uint64(int(q * 2.0**64)))

    def subset(
        self, iteration: int, num_agents: int, sample_size: int
    ) -> NDArray[np.bool_]:
        """Draw the subset afresh; ``iteration`` plays no part."""
        # It draws anew in place of rounding: no agent is likelier than another.
        chosen = random.SystemRandom().sample(range(num_agents), sample_size)
        return np.isin(np.arange(num_agents), chosen)

    def add_noise(
        self, iteration: int, rows: FloatArray, std: FloatArray
    ) -> FloatArray:
        """Add fresh noise; ``iteration`` plays no part."""
        noised = np.empty_like(rows)
        # One draw for all rows of a deviation: OpenDP takes one scale per vector.
        for deviation in set(std.tolist()):
            alike = std == deviation
            values = rows[alike]
            drawn = self.mechanism(deviation, values.size)(values.ravel())
            noised[alike] = np.reshape(drawn, values.shape)
        return noised


class SeededEntropy:
    """Noise and mask that repeat: for experiments only, *not private*.

    Parameters
    ----------
    noise_seed : int
        Seed of all draws, >= 0; whoever knows it knows the noise.
    *owner : int
        Owner of the noise, where several draw under one seed.
    """

    private = False

    def __init__(self, noise_seed: int, *owner: int) -> None:
        self._seed = noise_seed
        self._owner = owner

    def _rng(self, iteration: int, purpose: Purpose) -> np.random.Generator:
        # By iteration: a run that goes on draws what it would have drawn.
        return generator(self._seed, *self._owner, iteration, purpose)

    def mask(self, iteration: int, num_agents: int, q: float) -> NDArray[np.bool_]:
        """Draw the mask that belongs to ``iteration``."""
        rng = self._rng(iteration, Purpose.POISSON_MASK)
        return np.asarray(rng.random(num_agents) < q)

    def subset(
        self, iteration: int, num_agents: int, sample_size: int
    ) -> NDArray[np.bool_]:
        """Draw the subset that belongs to ``iteration``."""
        rng = self._rng(iteration, Purpose.SUBSET)
        chosen = rng.choice(num_agents, size=sample_size, replace=False)
        return np.isin(np.arange(num_agents), chosen)

    def add_noise(
        self, iteration: int, rows: FloatArray, std: FloatArray
    ) -> FloatArray:
        """Add the noise that belongs to ``iteration``."""
        rng = self._rng(iteration, Purpose.RELEASE_NOISE)
        return np.asarray(rows + std[:, None] * rng.standard_normal(rows.shape))

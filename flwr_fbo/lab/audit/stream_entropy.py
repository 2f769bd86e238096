"""Seeded noise for audits: a stream, on a grid, so that rounding tells nothing."""

from __future__ import annotations

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.random import Purpose, generator
from flwr_fbo.privacy.noise import SeededEntropy

_GRID_BITS = 30


class StreamEntropy(SeededEntropy):
    """Mask and noise from seeded streams: fast, repeatable, *not private*.

    `SeededEntropy` gives the same noise again for the same round; an audit needs many
    draws of one round. Sums and noise are multiples of 2^-30 of a standard deviation,
    or finer, so that their sum is exact. Without the grid an audit would find what
    floating-point noise tells by its low bits (Mironov, 2012).

    Parameters
    ----------
    seed : int
        >= 0.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._streams = {purpose: generator(seed, purpose) for purpose in Purpose}

    def _rng(self, iteration: int, purpose: Purpose) -> np.random.Generator:
        return self._streams[purpose]

    def add_noise(
        self, iteration: int, rows: FloatArray, std: FloatArray
    ) -> FloatArray:
        """Add fresh noise; ``iteration`` plays no part."""
        rng = self._rng(iteration, Purpose.RELEASE_NOISE)
        grid = np.exp2(np.floor(np.log2(std)) - _GRID_BITS)[:, None]
        noise = std[:, None] * rng.standard_normal(rows.shape)
        return np.asarray((np.rint(rows / grid) + np.rint(noise / grid)) * grid)

"""Release of an agent's gradients in phase I of Fed-GO-UCB, step after step.

In step k the agent hands out what its trials' gradients add up to, each clipped, and
noise of its own:

    release_k = sum_i clip(grad_i, C) + N(0, sigma^2 I).

It is the local form of differentially private gradient descent (Song, Chaudhuri &
Sarwate, 2013; Abadi et al., 2016): without a server that could be trusted with sums,
and so without subsampling.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from flwr_fbo._arrays import FloatArray
from flwr_fbo._validation import is_number, require, require_int
from flwr_fbo.journal.journal import Journal
from flwr_fbo.privacy.gaussian import gaussian_mu
from flwr_fbo.privacy.noise import Entropy
from flwr_fbo.privacy.recorded_mechanism import RecordedMechanism, is_on_grid

# Sums are kept on a grid of 2^-30 of the clip norm, or finer, and the sensitivity is
# taken so much too large, which covers the rounding of 2^20 coordinates.
_GRID_BITS = 30
_ROUNDING = 2.0**-20
_LARGEST_SIZE = 2**20


def clipped(rows: ArrayLike, norm: float) -> FloatArray:
    """Return the rows, each scaled down to ``norm``; zeros for one that is not finite.

    Parameters
    ----------
    rows : array of shape (K, d)
    norm : float
        > 0.
    """
    rows = np.asarray(rows, dtype=float)
    finite = np.isfinite(rows).all(axis=1, keepdims=True)
    rows = np.where(finite, rows, 0.0)
    # In two steps, as the norm of a huge row could overflow.
    largest = np.fmax(np.abs(rows).max(axis=1, keepdims=True, initial=0.0), 1e-300)
    lengths = largest * np.linalg.norm(rows / largest, axis=1, keepdims=True)
    return np.asarray(rows * np.fmin(1.0, norm / np.fmax(lengths, 1e-300)))


@dataclass(frozen=True)
class GradientSettings:
    """What the guarantee of an agent's gradients rests on; public, fixed for a study.

    Attributes
    ----------
    num_releases : int
        n >= 1: the steps of the regression.
    size : int
        d, from 1 to 2**20, of a gradient.
    epsilon : float
        From 1e-3 to 1e3, of all steps together; inf releases without noise.
    delta : float
        From 1e-15 to below 1.
    clip_norm : float
        C, from 1e-6 to 1e6: what a trial's gradient is clipped to.
    """

    num_releases: int
    size: int
    epsilon: float
    delta: float
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        require_int("num_releases", self.num_releases, 1)
        require_int("size", self.size, 1, _LARGEST_SIZE)
        c = self.clip_norm
        ok = is_number(c) and 1e-6 <= c <= 1e6
        require(ok, "clip_norm", c, "a number from 1e-6 to 1e6")
        gaussian_mu(self.epsilon, self.delta)

    @property
    def max_releases(self) -> int:
        """As many as are planned."""
        return self.num_releases

    @property
    def sensitivity(self) -> float:
        """2 C: how far one replaced trial moves a sum; and a millionth for rounding."""
        return 2 * self.clip_norm * (1 + _ROUNDING)

    @cached_property
    def noise_std(self) -> float:
        """Sigma = sqrt(n) 2 C / mu, with the largest mu that is (epsilon, delta)-DP."""
        mu = gaussian_mu(self.epsilon, self.delta)
        return math.sqrt(self.num_releases) * self.sensitivity / mu

    @property
    def largest_entry(self) -> float:
        """What no entry of an honest release, over its number of trials, exceeds."""
        return self.sensitivity + 100 * self.noise_std

    @property
    def grid(self) -> float:
        """What coordinates of a private sum are multiples of; 0, none, without noise.

        No coarser than 2^-30 C / sqrt(d), so that a rounded gradient is off by less
        than 2^-30 C in all.
        """
        if self.noise_std == 0:
            return 0.0
        step = self.clip_norm / math.sqrt(self.size)
        return float(2.0 ** (math.floor(math.log2(step)) - _GRID_BITS))

    def clipped_sum(self, gradients: ArrayLike) -> FloatArray:
        """Return what trials' gradients, shape (K, d), add up to: shape (d,).

        Each is clipped; one that is not finite counts as zero. On the grid.
        """
        rows = np.asarray(gradients, dtype=float)
        ok = rows.ndim == 2 and rows.shape[1] == self.size
        require(ok, "gradients", rows.shape, f"an array of shape (K, {self.size})")
        rows = clipped(rows, self.clip_norm)
        if self.grid:
            rows = np.rint(rows / self.grid) * self.grid
        return np.asarray(rows.sum(axis=0))


class GradientRelease(RecordedMechanism[GradientSettings]):
    """The mechanism: sums of clipped gradients in, noisy ones out.

    Formal guarantees
    -----------------
    Adjacency: two data sets are neighbours if they differ in *one trial's* action and
    reward, replaced by others. All n releases of an agent together are mu-GDP under it,
    and (epsilon, delta)-DP by the exact curve of the Gaussian mechanism: each is a
    Gaussian mechanism of mu / sqrt(n), and adaptively composed, the next parameters
    depending on all releases so far in any way, they are GDP with the root of the sum
    of squares (Dong, Roth & Su, 2022, corollary 3.3). The server that chooses where
    gradients are taken may be an adversary: clipping holds at any parameters.

    Floating point: as for `ContinualRelease`, sums lie on a public grid, exactly, and
    the noise is rounded to it without looking at them.

    Not covered: an agent as a whole; how many trials it has, which is public; whether
    it answers. The noise that Langevin dynamics adds to its iterates, by a seed that is
    known to all, protects nobody and is not counted.

    The promise needs entropy that is private, and that no release is ever drawn twice,
    for which there is the journal. A release that is asked for again is the one on
    record, wherever the gradient is wanted then.

    What is released is what `GradientSettings.clipped_sum` returned. Steps that the
    agent has missed may be left out, for good.

    Parameters
    ----------
    settings : GradientSettings
    entropy, journal : optional
        See `RecordedMechanism`; rows after the n-th are another mechanism's.
    """

    def __init__(
        self,
        settings: GradientSettings,
        entropy: Entropy | None,
        journal: Journal | None = None,
    ) -> None:
        super().__init__(settings, entropy, journal)
        for row in self._recorded("gradients", last=settings.num_releases):
            self._released[row.iteration] = row.vectors

    def _draw_release(
        self, k: int, total: FloatArray
    ) -> tuple[FloatArray, Mapping[str, FloatArray]]:
        return total + self._noise(k, total), {}

    def _noise(self, k: int, clipped_sum: FloatArray) -> FloatArray:
        """Return the noise of release k, on the grid that the sum must be on."""
        size, grid = self.settings.size, self.settings.grid
        shape = np.shape(clipped_sum)
        # The sum is not quoted: Flower sends an exception's text to the server.
        require(shape == (size,), "clipped_sum", shape, f"an array of shape ({size},)")
        if not grid:
            return np.zeros(size)
        ok = is_on_grid(clipped_sum, grid)
        require(ok, "clipped_sum", shape, "what clipped_sum returned")
        assert self._entropy is not None
        std = np.array([self.settings.noise_std])
        noise = self._entropy.add_noise(k, np.zeros((1, size)), std)[0]
        return np.asarray(np.rint(noise / grid) * grid)

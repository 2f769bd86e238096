"""Release of an agent's running sum again and again, as FedUCB's agents need it.

A trial with action x and reward y adds [x; y][x; y]' to a symmetric matrix of d + 1
rows, the sum of Gram matrix, x y and y^2 (Dubey & Pentland, 2020, section 4; Shariff &
Sheffet, 2018). At n synchronisations the agent hands out

    release_k = sum of all trials so far + sigma sum_{j <= k} B_kj Z_j,

or, with a sliding window of W releases, of the trials since release k - W,

with Z_j independent and isotropic in the Frobenius norm: variance 1 on the diagonal and
1/2 off it, so that <Z, U> is N(0, 1) for every symmetric U of norm 1. The weights B are
those of a `flwr_fbo.privacy.factorisation`, or of `flwr_fbo.privacy.factorisation`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from flwr_fbo._common.arrays import FloatArray, one_blas_thread
from flwr_fbo._common.validation import require, require_int
from flwr_fbo._common.version import __version__
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.privacy.continual_settings import ContinualSettings
from flwr_fbo.privacy.noise import Entropy


class ContinualRelease:
    """The mechanism: running sums in, private running sums out.

    Formal guarantees
    -----------------
    Adjacency: two streams are neighbours if they differ in *one trial's* action and
    reward, replaced by others within the bounds; the trial stays in the same window
    between two releases. All releases of an agent together, n or, where their number is
    unknown, up to 2**20, are ``settings.mu``-GDP under it, and with
    ``calibration="exact"`` (epsilon, delta)-DP: the exact curve of the Gaussian
    mechanism, no composition on top. Trials of one user count as often as there are.

    Adaptive: later trials may depend on the releases in any way. *Proof.* Release k is
    a function of the first k outputs y_k = (C x)_k + sigma z_k. Given the earlier
    outputs, replacing trial t by another moves y_k by C_kt times a fixed matrix of norm
    at most Delta, so that step k is a Gaussian mechanism of mu_k = abs(C_kt) Delta /
    sigma, chosen by what is public; adaptively composed they are GDP with mu^2 the sum
    of mu_k^2 (Dong, Roth & Su, 2022, corollary 3.3), which is at most (Delta max_t
    ||C_t|| / sigma)^2. See also theorem 2.1 of Denisov et al., 2022.

    Sliding windows: A has another form, and what was said of C holds. A trial that
    leaves the window gives no epsilon back: what was released of it stays known.

    Logs: trials from before the study are trials of the stream like any other, each in
    one window, which a site adds before some release. Where one was chosen by what an
    earlier one gave, the guarantee is for one row while the other rows are as they are.

    Streams: with several running sums a trial is in one of them only, which is public,
    and the noise of each is independent. So it is the same mechanism on a longer
    stream, C being block-diagonal: the columns' norms, and mu, are those of one.

    Floating point: a sum is a multiple of a public grid, exactly; the noise is computed
    without looking at it and rounded to the same grid; their sum is then exact or, if
    it is too long for a float, a function of the exact one. So no low bit tells of the
    sum. The noise itself is a combination of OpenDP's, in floating point: its law is
    that above but for rounding errors, the same for every sum.

    The promise needs: entropy that is private; each ``total`` being a sum of what
    `ContinualSettings.gram` or ``outer_products`` returned of all trials so far, or of
    those in the sliding window, each trial in it once; and that no release is ever
    drawn twice, for which there is the journal. A journal that is lost, or is an older
    copy, shows when a release beyond its next is asked for; a request for just its next
    one cannot be told from the first.

    Not covered: an agent as a whole, all its trials at once; when it synchronises,
    which must be public, or fixed in advance, as n is; how many trials it made; whether
    it takes part; later trials that depend on *this trial* other than through releases,
    as where an agent acts on its own raw sums.

    Parameters
    ----------
    settings : ContinualSettings
        Bounds of a trial, privacy and factorisation of the releases.
    entropy : Entropy, optional
        Source of the noise; none is needed without noise. Agents with `SeededEntropy`
        need one each, or they would all add the same noise.
    journal : Journal, optional
        Journal of this agent. Each release is on disk before `release` returns, with
        its noise, and one that is there is returned as it is. Without a journal they
        are kept in memory: for experiments.

    Raises
    ------
    ValueError
        If there is noise, but no entropy.
    JournalError
        If the journal is of other settings, or damaged.
    """

    def __init__(
        self,
        settings: ContinualSettings,
        entropy: Entropy | None,
        journal: Journal | None = None,
    ) -> None:
        if settings.noise_std > 0 and entropy is None:
            raise ValueError("A release with noise needs entropy.")
        self.settings = settings
        self._entropy = entropy
        self._journal = journal
        self._released: dict[int, FloatArray] = {}
        self._triangle = np.triu_indices(settings.dimension + 1)
        draw_length = settings.num_streams * len(self._triangle[0])
        self._draws = np.empty((0, draw_length))  # a row per release, and spare rows
        if journal is None:
            return
        # Another factorisation or sigma would combine these draws into other noise, for
        # sums that are released already.
        mine = json.loads(json.dumps(asdict(settings)))
        draws = journal.load_state()
        for k, row in enumerate(journal.ledger(), 1):
            its = row.facts.get("settings")
            if its != mine:
                raise JournalError(
                    f"The journal {journal.path} holds releases with other settings "
                    f"(stored, now): {its}, {mine}."
                )
            if row.iteration != k or f"draw-{k}" not in draws:
                raise JournalError(
                    f"The journal {journal.path} is damaged: release {k}, or its "
                    "noise, is not there."
                )
            self._released[k] = row.vectors
            self._keep_draw(k, draws[f"draw-{k}"])

    @property
    def num_released(self) -> int:
        """Releases made so far, from 0 to n."""
        return len(self._released)

    @property
    def private(self) -> bool:
        """True if its releases are differentially private."""
        has_noise = self.settings.noise_std > 0
        return has_noise and self._entropy is not None and self._entropy.private

    def release(self, k: int, total: FloatArray) -> FloatArray:
        """Return release k: drawn and recorded, unless it is on record.

        Parameters
        ----------
        k : int
            From 1 to n.
        total : ndarray of shape ``settings.sum_shape``
            The sum to release; of no effect where the release is on record.

        Raises
        ------
        ValueError
            If k is not from 1 to n, or ``total`` cannot be such a sum.
        JournalError
            If the release could not be recorded, or another is missing.
        """
        require_int("k", k, 1, self.settings.max_releases)
        if k not in self._released:
            released, draws = self._draw_release(k, total)
            # On disk before anybody sees it, and sent again after a crash: the mean of
            # two draws for one sum would have less noise than was promised.
            if self._journal is not None:
                facts: dict[str, Any] = {
                    "settings": asdict(self.settings),
                    "noise_std": self.settings.noise_std,
                    "private": self.private,
                    "flwr_fbo": __version__,
                }
                self._journal.add_release(LedgerRow(k, facts, released), draws)
            self._released[k] = released
        # A copy: whoever changes it must not change what is on record.
        return self._released[k].copy()

    @one_blas_thread
    def _draw_release(
        self, k: int, total: FloatArray
    ) -> tuple[FloatArray, Mapping[str, FloatArray]]:
        """Return release k of a running sum, and its draw, by name.

        Symmetric; not positive definite where the noise is large.
        """
        if k > self.num_released + 1:
            # Whoever asks has seen releases that are not here, with their noise.
            raise JournalError(
                f"Release {k} is asked for, but the record ends with release "
                f"{self.num_released}: later rows are lost. Two noises for one sum "
                "would reveal the sum, so this agent stops. Restore its journal, or "
                "begin another study."
            )
        grid, sum_shape = self.settings.grid, self.settings.sum_shape
        shape = np.shape(total)
        is_sum = shape == sum_shape
        require(is_sum, "running_sum", shape, f"an array of shape {sum_shape}")
        is_sum = bool(np.all(np.isfinite(total))) and np.array_equal(
            total, np.swapaxes(total, -1, -2)
        )
        # The sum is not quoted: Flower sends an exception's text to the server.
        require(is_sum, "running_sum", shape, "a symmetric matrix of finite numbers")
        if grid:
            expected = "a sum of what gram returned, below 2**53 steps of the grid"
            require(is_on_grid(total, grid), "running_sum", shape, expected)
        draw = self._draw(k)
        self._keep_draw(k, draw)
        # The draw is kept: later releases have it in their noise too (row k of B).
        return total + self._noise(k), {f"draw-{k}": draw}

    def _draw(self, k: int) -> FloatArray:
        """Return the fresh noise of release k: unit normals, (d + 1)(d + 2)/2 a stream.

        In an orthonormal basis of the symmetric matrices, so isotropic.
        """
        zeros = np.zeros((1, self._draws.shape[1]))
        if self.settings.noise_std == 0:
            return zeros.ravel()
        assert self._entropy is not None
        return self._entropy.add_noise(k, zeros, np.ones(1)).ravel()

    def _keep_draw(self, k: int, draw: FloatArray) -> None:
        """Put draw k into its row; the array doubles when it is full."""
        if k > len(self._draws):
            left = self.settings.max_releases - len(self._draws)
            rows = np.empty((min(k, left), self._draws.shape[1]))
            self._draws = np.concatenate([self._draws, rows])
        self._draws[k - 1] = draw

    def _noise(self, k: int) -> FloatArray:
        """Return the noise of release k, on the grid."""
        grid = self.settings.grid
        noise = np.zeros(self.settings.sum_shape)
        if not grid:
            return noise
        # Row k of B: the noises of all releases are correlated, and together they cost
        # what one release of C x with independent noise does.
        weights = self.settings.factorisation.row(k)
        entries = self.settings.noise_std * (weights @ self._draws[:k])
        rows, columns = self._triangle
        entries = entries.reshape(*noise.shape[:-2], len(rows))
        # An entry off the diagonal is there twice, so each has half of the variance.
        entries[..., rows != columns] /= math.sqrt(2.0)
        # To the grid of the sums: in floating point low bits would tell of the sum.
        rounded = np.rint(entries / grid) * grid
        noise[..., rows, columns] = noise[..., columns, rows] = rounded
        return noise


def is_on_grid(values: FloatArray, grid: float) -> bool:
    """Return whether all values are multiples of a grid, below 2**53 steps of it."""
    # Below 2**53 steps floats add multiples of the grid exactly, in any order.
    steps = values / grid
    return bool(np.array_equal(steps, np.rint(steps)) and np.abs(steps).max() < 2**53)

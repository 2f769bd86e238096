"""Whole bandit studies with secure sums of blocks, drawn for an audit.

The adversary is the server together with the sites that collude. It knows the trials of
all sites but one, and the shares of those that collude. So what it learns of a release
is the block of one site, the *canary*, under the shares of the other honest sites. One
trial of the canary is replaced, and all that follows from it follows: see
`flwr_fbo.lab.audit.bandit_audit`. Agents act on the sum of all totals so far.

With its misfits (`flwr_fbo.bandits.linear.blocks_belief.Misfit`) the adversary learns
more than of a real site: each one with its noise, and not only whether the site leaves.
And the site never leaves, so that later blocks have its trials.

In every release sites drop out. At first so many are away that the release must wait.
In the next attempt one honest site is away, so that the sum has just the noise that is
counted on. Sums are made without masks: these cancel, and the server learns the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.fields import flag, integer
from flwr_fbo.bandits.linear.leaving_the_sums import Misfit, summed_releases
from flwr_fbo.lab.audit.bandit_audit import BanditAuditPlan
from flwr_fbo.lab.audit.secure_audit import Share, reusing_shares
from flwr_fbo.privacy.continual_settings import ContinualSettings
from flwr_fbo.privacy.noise import Entropy
from flwr_fbo.secure import BlockSums, SecureAggregation

_COLLUDING = 2
# No more trials than that are in a block of an audit.
_MOST_TRIALS = 2**16


@lru_cache(maxsize=8)  # the same for all studies of an audit
def _sums(releases: ContinualSettings, honest: int) -> BlockSums:
    num_sites = honest + 1 + _COLLUDING
    option = SecureAggregation(_COLLUDING, num_sites - 1, honest)
    return option.collector([range(num_sites)]).block_sums(releases, _MOST_TRIALS)


class BlockSites:
    """All sites of one study: the canary, other honest ones, and those that collude.

    Parameters
    ----------
    releases : ContinualSettings
        Settings of the releases.
    entropy : Entropy
        Source of the shares. If it can be predicted, a share is a rounded Gaussian draw
        in place of OpenDP's discrete one.
    honest : int
        Number H >= 2 of summed sites whose shares alone give the planned noise. There
        is one more honest site.
    """

    def __init__(
        self, releases: ContinualSettings, entropy: Entropy, honest: int
    ) -> None:
        self.releases, self.entropy, self.honest = releases, entropy, honest
        self._before = np.zeros(releases.sum_shape)
        self._learnt = np.zeros(releases.sum_shape)
        self._made: dict[int, FloatArray] = {}

    @property
    def sums(self) -> BlockSums:
        """Sums that sites and server compute from blocks."""
        return _sums(self.releases, self.honest)

    @property
    def honest_slots(self) -> range:
        """The slots that keep their shares secret; the canary has the first one."""
        return range(self.honest + 1)

    def share(self, slot: int) -> Share:
        """Return a site's share of the noise of the next release."""
        noise = self.sums.noise(0)
        if self.entropy.private:
            return noise.draw_share()
        still, unit = np.zeros((1, noise.length)), np.ones(1)
        counts, stds = zip(*noise.share_stds, strict=True)
        drawn = self.entropy.add_noise(0, still, unit)[0] * np.repeat(stds, counts)
        return np.asarray(np.rint(drawn), dtype=np.int64)

    def block(self, k: int, block: FloatArray) -> FloatArray:
        """Return what the canary adds to release k: its new trials."""
        return block

    def waits(self, num_answered: int) -> bool:
        """Return whether a release waits for more sites."""
        return num_answered < self.sums.groups[0].min_summed

    def misfit_noise(self, k: int, std: float) -> float:
        """Return the noise of the misfit of block k."""
        return float(self.entropy.add_noise(k, np.zeros((1, 1)), np.array([std]))[0, 0])

    def _answered(self) -> set[int]:
        """Return who is in the sum of a release: those of its last attempt."""
        everybody = set(self.sums.groups[0].slots)
        absent = set(self.honest_slots[-2:])
        while self.waits(len(everybody - absent)):
            absent.remove(min(absent))
        return everybody - absent

    def release(self, k: int, total: FloatArray) -> FloatArray:
        """Return what the adversary learns of the canary's running sum.

        Parameters
        ----------
        k : int
            From 1, one after another; one that was made is returned as it is.
        total : ndarray of shape (d + 1, d + 1)
            The canary's running sum.
        """
        if k not in self._made:
            noise = self.sums.noise(0)
            block = self.block(k, total - self._before)
            # Of other sites it knows the blocks, of those that collude the shares too.
            learnt = noise.wrapped(noise.encode(block))
            for slot in sorted(self._answered() & set(self.honest_slots)):
                learnt += noise.wrapped(self.share(slot))
            self._learnt = self._learnt + noise.decode(learnt)
            self._made[k], self._before = self._learnt, total
        return self._made[k]


BuildBlocks = Callable[[ContinualSettings, Entropy, int], BlockSites]


class _NoShare(BlockSites):
    """One site that is counted on adds no share."""

    def share(self, slot: int) -> Share:
        drawn = super().share(slot)
        return np.zeros_like(drawn) if slot == 1 else drawn


class _TrialInTwoBlocks(BlockSites):
    """A site that has heard of no total sends its last block again, with the next."""

    _sent: FloatArray | None = None

    def block(self, k: int, block: FloatArray) -> FloatArray:
        again = np.zeros_like(block) if self._sent is None else self._sent
        self._sent = block
        return block + again


class _DoesNotWait(BlockSites):
    """A release is made of whoever answers; nobody makes up for the missing noise."""

    def waits(self, num_answered: int) -> bool:
        return False


class _QuietMisfits(BlockSites):
    """Whether a site leaves is decided with a tenth of the noise that is charged."""

    def misfit_noise(self, k: int, std: float) -> float:
        return super().misfit_noise(k, std / 10)


BLOCK_FAULTS: dict[str, BuildBlocks] = {
    "no-share": _NoShare,
    "reused-shares": reusing_shares(BlockSites),
    "trial-in-two-blocks": _TrialInTwoBlocks,
    "does-not-wait": _DoesNotWait,
    "quiet-misfits": _QuietMisfits,
}
"""Sites of a bandit study with secure sums, with a mistake.

``reused-shares``, ``trial-in-two-blocks`` and ``quiet-misfits`` show only in a study of
several releases: before the first one nothing was promised.
"""


@dataclass(frozen=True)
class SecureBanditAuditPlan(BanditAuditPlan):
    """Plan of an audit of bandit studies with secure sums; see `BanditAuditPlan`.

    The settings' releases have ``mechanism="blocks"``.

    Attributes
    ----------
    honest : int
        Number H >= 2 of sites whose shares alone give the planned noise. A study has
        three more: an honest one, and two that collude with the server.
    has_misfits : bool
        Whether the site's misfits are audited too, which have a part of mu^2 as in a
        study; else all of it is the blocks'.
    """

    honest: int = field(default=2, kw_only=True, metadata=integer(2))
    has_misfits: bool = field(default=True, kw_only=True, metadata=flag())

    faults = BLOCK_FAULTS
    trust = "sums"

    def __post_init__(self) -> None:
        super().__post_init__()
        _sums(self.released, self.honest)  # which names what does not fit

    @property
    def released(self) -> ContinualSettings:
        """Settings of the sums of blocks."""
        whole = self.settings.releases
        return summed_releases(whole) if self.has_misfits else whole

    @property
    def misfit(self) -> Misfit | None:
        """The measure of a site's misfits, with the rest of mu^2."""
        if not self.has_misfits:
            return None
        whole, of_sums = self.settings.releases.mu, self.released.mu
        return Misfit(self.settings, math.sqrt(whole**2 - of_sums**2))

    def describe(self) -> dict[str, str]:
        """Return what is drawn, in words."""
        lines = super().describe()
        return {
            **lines,
            "Privacy": f"{lines['Privacy']}; secure sums, honest = {self.honest}, "
            f"colluding = {_COLLUDING}; misfits: {self.has_misfits}",
        }

    def _mechanism(
        self, entropy: Entropy, build: Callable[..., Any] | None
    ) -> BlockSites:
        make: BuildBlocks = build or BlockSites
        return make(self.released, entropy, self.honest)

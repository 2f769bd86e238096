"""Sites of secure studies with one mistake each, which an audit must catch.

Nothing but an audit uses them; see `planted_faults` for those of a trusted server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flwr_fbo.lab.audit.secure_sites import SecureSites, Share
from flwr_fbo.privacy.integer_noise import IntegerNoise
from flwr_fbo.privacy.noise import Entropy
from flwr_fbo.privacy.release import ReleaseSettings

BuildSites = Callable[[ReleaseSettings, Entropy, int, tuple[int, ...]], SecureSites]


class _NoShare(SecureSites):
    """One honest site adds no share."""

    def share(self, noise: IntegerNoise, slot: int) -> Share:
        drawn = super().share(noise, slot)
        return np.zeros_like(drawn) if slot == self.honest[-1] else drawn


class _HalfShares(SecureSites):
    """Shares have half the standard deviation."""

    def share(self, noise: IntegerNoise, slot: int) -> Share:
        return super().share(noise, slot) // 2


class _HonestTooHigh(SecureSites):
    """All sites are counted on, also those that tell the server their shares."""

    @property
    def num_counted(self) -> int:
        return self.release.settings.num_agents


class _ReusedShares(SecureSites):
    """A site adds its first share to every message: a difference of sums has none."""

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self._drawn: dict[int, Share] = {}

    def share(self, noise: IntegerNoise, slot: int) -> Share:
        if slot not in self._drawn:
            self._drawn[slot] = super().share(noise, slot)
        return self._drawn[slot]


class _SharesDrawnAgain(SecureSites):
    """A site draws again when it is asked again; the server averages both sums."""

    def share(self, noise: IntegerNoise, slot: int) -> Share:
        return (super().share(noise, slot) + super().share(noise, slot)) // 2


SECURE_FAULTS: dict[str, BuildSites] = {
    "no-share": _NoShare,
    "half-shares": _HalfShares,
    "honest-too-high": _HonestTooHigh,
    "reused-shares": _ReusedShares,
    "shares-drawn-again": _SharesDrawnAgain,
}
"""Sites of a study with secure aggregation, with a mistake.

``no-share`` shows only with few honest sites, ``honest-too-high`` only where many
collude, and ``reused-shares`` only in a study of several releases.
"""

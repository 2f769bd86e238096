"""The sites of a secure study, and what a server learns that colludes with some.

The sums are made without masks: these cancel, so that the server learns the same sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo.privacy.integer_noise import IntegerNoise
from flwr_fbo.privacy.noise import Entropy
from flwr_fbo.privacy.release import ReleaseSettings
from flwr_fbo.privacy.secure_release import SecureRelease, SecureTotal

Share = NDArray[np.int64]


class SecureSites:
    """All sites of one study; some collude with the server.

    Parameters
    ----------
    settings : ReleaseSettings
    entropy : Entropy
        Where shares come from. If it can be predicted, a share is a rounded Gaussian
        draw in place of OpenDP's discrete one.
    num_features : int
        M, the length of a message.
    honest : tuple of int
        Slots that keep their shares secret. All others tell the server theirs.
    """

    def __init__(
        self,
        settings: ReleaseSettings,
        entropy: Entropy,
        num_features: int,
        honest: tuple[int, ...],
    ) -> None:
        self.release = SecureRelease(settings)
        self.honest = honest
        self._entropy = entropy
        self._num_features = num_features

    @property
    def num_counted(self) -> int:
        """How many sites are counted on for the noise."""
        return len(self.honest)

    @cached_property
    def noise(self) -> IntegerNoise:
        """What each site adds."""
        num_sites = self.release.settings.num_agents
        return self.release.noise(num_sites, self.num_counted, self._num_features)

    def share(self, noise: IntegerNoise, slot: int) -> Share:
        """Return a site's share of the noise of the next release."""
        if self._entropy.private:
            return noise.draw_share()
        still, std = np.zeros((1, noise.length)), np.array([noise.share_std])
        drawn = self._entropy.add_noise(0, still, std)[0]
        return np.asarray(np.rint(drawn), dtype=np.int64)

    def learnt(self, iteration: int, messages: Mapping[int, Any]) -> SecureTotal:
        """Return a release's sum, less the shares that the server knows.

        Parameters
        ----------
        iteration : int
            After which the release was planned.
        messages : mapping of int to ndarray of shape (M,)
            A message of each site, by slot.
        """
        noise = self.noise
        total = np.zeros(noise.length, dtype=np.uint64)
        known = np.zeros(noise.length, dtype=np.uint64)
        for slot, message in messages.items():
            integers = noise.encode(self.release.contribution(iteration, slot, message))
            share = self.share(noise, slot)
            total += noise.wrapped(integers + share)
            if slot not in self.honest:
                known += noise.wrapped(share)
        return SecureTotal(tuple(messages), total - known)

"""One release whose sum the server learns by secure aggregation.

Each site clips and weights its own message and adds its share of the noise. The server
divides the sum that it gets, and sees nothing else; see `Release` for the formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.validation import require, require_positive
from flwr_fbo.privacy.release import PlannedRelease, ReleaseSettings, clipped
from flwr_fbo.secure.integer_noise import IntegerNoise

_ONLY = {
    "sampling_probability": 1,
    "sampling": "poisson",
    "calibration": "joint",
    "noise_only": False,
}


@dataclass(frozen=True, eq=False)
class SecureTotal:
    """Output of secure aggregation: the sum of some sites' integers, noise included.

    Attributes
    ----------
    slots : tuple of int
        The sites in the sum, increasing.
    total : ndarray of shape (P * M,)
        The sum modulo 2**b.
    """

    slots: tuple[int, ...]
    total: NDArray[np.uint64]


class SecureRelease(PlannedRelease):
    """The mechanism of `Release` where the sites add the noise.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fbo.privacy.release import ReleaseSettings
    >>> settings = ReleaseSettings(
    ...     num_agents=2, clip_norm=1.0, noise_multiplier=1.5, sampling_probability=1.0
    ... )
    >>> release = SecureRelease(settings)
    >>> noise = release.noise(num_sites=2, honest=2, num_features=3)
    >>> total = np.zeros(3, dtype=np.uint64)
    >>> for slot in range(2):  # each at a site
    ...     part = release.contribution(0, slot, np.array([0.6, 0.0, 0.8]))
    ...     total += noise.wrapped(noise.encode(part) + noise.draw_share())
    >>> release.decoded(0, noise, SecureTotal((0, 1), total)).shape
    (1, 3)

    Formal guarantees
    -----------------
    Those of `IntegerNoise`, for the same adjacency as `Release`: one site's messages
    are all zeroed. A site's contribution has norm 1 at most, in units of the exact
    sensitivity, so that z is `effective_noise_multiplier`, whatever the server says of
    weights. With ``distance`` neighbours' contributions are 1 apart at most, in the
    same units, if that of messages is what the site knows it to be: it has to check.
    All sites take part (q = 1): nobody could be sampled in secret.

    Parameters
    ----------
    settings : ReleaseSettings
        With noise, ``sampling_probability=1`` and ``calibration="joint"``.
    excess : float
        Largest ratio of the sum's noise to that of a trusted server, >= 1: noise of
        the sites beyond those that are counted on.
    """

    def __init__(self, settings: ReleaseSettings, excess: float = 1.0) -> None:
        require_positive("noise_multiplier", settings.noise_multiplier)
        # Who is sampled, and what of it is a control, the sites could only be told by
        # the server; other calibrations need the noise of each vector apart.
        for name, only in _ONLY.items():
            value = getattr(settings, name)
            require(value == only, name, value, f"{only!r}, with secure aggregation")
        super().__init__(settings)
        self.excess = excess

    def with_noise_multiplier(self, noise_multiplier: float) -> SecureRelease:
        """Return the same mechanism with another z."""
        settings = replace(self.settings, noise_multiplier=noise_multiplier)
        return SecureRelease(settings, self.excess)

    @property
    def private(self) -> bool:
        """True if its releases are differentially private."""
        return True

    def noise_std(self, iteration: int) -> FloatArray:
        """Return the noise's standard deviation in each vector at most, shape (P,)."""
        return np.asarray(super().noise_std(iteration) * self.excess)

    def noise(self, num_sites: int, honest: int, num_features: int) -> IntegerNoise:
        """Return what sites add to contributions, which have `_reach` at most."""
        s, length = self.settings, self.settings.num_sub_regions * num_features
        apart = None if s.distance is None else 1.0
        z = s.noise_multiplier
        return IntegerNoise(num_sites, honest, length, self._reach, z, apart)

    @property
    def _reach(self) -> float:
        """Largest norm of a contribution: 1, unless one example is protected."""
        s = self.settings
        return 1.0 if s.distance is None else s.message_norm / s.distance

    def contribution(
        self, iteration: int, slot: int, message: FloatArray
    ) -> FloatArray:
        """Return what a site adds to the sum, over the sensitivity: shape (P * M,).

        Parameters
        ----------
        iteration : int
            Iteration after which the release was planned.
        slot : int
            Slot of the site, from 0 to N - 1.
        message : ndarray of shape (M,)
            The site's own message, before clipping.
        """
        short = clipped(message[None].astype(np.float64), self.settings.message_norm)
        weights = self.weights(iteration)[slot]
        part = np.outer(weights, short[0]).ravel() / self.sensitivity(iteration)
        # Again, as the division rounds: the sensitivity of the integer sum is 1.
        return np.asarray(clipped(part[None], self._reach)[0])

    def decoded(
        self, iteration: int, noise: IntegerNoise, summed: SecureTotal
    ) -> FloatArray:
        """Return the released vectors, shape (P, M)."""
        vectors = noise.decode(summed.total) * self.sensitivity(iteration)
        return np.asarray(vectors.reshape(self.settings.num_sub_regions, -1))

    def facts_of_sum(
        self, iteration: int, noise: IntegerNoise, slots: Sequence[int]
    ) -> dict[str, Any]:
        """Return what the ledger says of a release, and over whom was summed."""
        std = noise.std(len(slots)) * self.sensitivity(iteration)
        return {
            **self.facts(iteration),
            "noise_std": [std] * self.settings.num_sub_regions,
            "aggregation": "secure",
            "honest": noise.honest,
            "summed": list(slots),
        }

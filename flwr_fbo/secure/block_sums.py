"""Secure sums of a bandit's blocks: what the trials between two releases add."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.fields import FREE, check_fields, instance, integer
from flwr_fbo._common.version import __version__
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.privacy.continual_settings import ContinualSettings
from flwr_fbo.secure.block_noise import MOST_TRIALS, BlockNoise
from flwr_fbo.secure.sums import GROUPS, ROSTER, GroupedSums, SumGroup


@dataclass(frozen=True)
class BlockSums(GroupedSums[BlockNoise]):
    """Settings of the secure sums of a bandit study's blocks; public.

    Examples
    --------
    >>> from flwr_fbo.bandits import ContinualSettings
    >>> from flwr_fbo.secure import SecureAggregation
    >>> releases = ContinualSettings(8, 10, 4.0, 1e-5, mechanism="blocks")
    >>> collector = SecureAggregation(colluding=1).collector([range(50)])
    >>> sums = collector.block_sums(releases, most_trials=250)
    >>> sums.noise(0).length, sums.noise(0).num_bits
    (66, 40)

    Attributes
    ----------
    releases : ContinualSettings
        Bounds of a trial and privacy of all releases: with noise, one stream, and
        ``mechanism="blocks"``; see `flwr_fbo.secure.block_noise`.
    most_trials : int
        Largest number of trials in a block of one site, from 1 to 2**30.
    groups : tuple of SumGroup
        Sites that are summed together.
    roster : str
        Digest of the `Roster` that all sites pin; empty without one.

    Raises
    ------
    ValueError
        If sites cannot sum such blocks; the message names the field.
    """

    releases: ContinualSettings = field(
        metadata=instance(ContinualSettings, part=ContinualSettings)
    )
    # It makes numbers longer, by 26 bits at most.
    most_trials: int = field(metadata=integer(1, MOST_TRIALS, cap=FREE))
    groups: tuple[SumGroup, ...] = field(metadata=GROUPS)
    roster: str = field(default="", metadata=ROSTER)

    def __post_init__(self) -> None:
        check_fields(self)
        for group in range(len(self.groups)):
            self.noise(group)  # which names what does not fit

    @property
    def noise_multiplier(self) -> float:
        """1 / mu: all releases of a study together are one Gaussian mechanism."""
        return 1.0 / self.releases.mu

    def _noise_of(self, group: SumGroup) -> BlockNoise:
        """Return what the sites of a group add to their blocks."""
        n, honest = group.num_slots, group.honest
        return BlockNoise(self.releases, n, honest, self.most_trials)

    def row(
        self,
        iteration: int,
        group: int,
        slots: tuple[int, ...],
        total: NDArray[np.uint64],
    ) -> LedgerRow:
        """Return the block total that a sum releases, and what the ledger says of it.

        Parameters
        ----------
        iteration : int
            Number of the release.
        group : int
            Group of sites that were summed.
        slots : tuple of int
            The sites in the sum, increasing.
        total : ndarray of shape (M,)
            The sum modulo 2**b, with the noise.
        """
        noise = self.noise(group)
        facts = {
            "settings": asdict(self.releases),
            "noise_std": noise.std(len(slots)),
            "private": True,
            "flwr_fbo": __version__,
            "aggregation": "secure",
            "honest": noise.honest,
            "summed": list(slots),
        }
        return LedgerRow(iteration, facts, noise.decode(total))

"""Secure sums of a study's messages: groups of sites, and terms of each sum."""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.fields import (
    FREE,
    check_fields,
    instance,
    integer,
    several,
)
from flwr_fbo._common.validation import require, require_int
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.privacy.release import ReleaseSettings
from flwr_fbo.secure.graph import COLLUDING, MAX_COMPLETE
from flwr_fbo.secure.integer_noise import IntegerNoise, SumNoise
from flwr_fbo.secure.secure_release import SecureRelease, SecureTotal
from flwr_fbo.secure.terms import SumTerms


@dataclass(frozen=True)
class SumGroup:
    """Sites whose messages are summed together.

    Attributes
    ----------
    first_slot : int
        First slot of the group, >= 0.
    num_slots : int
        Number n of slots, >= 2: the group has consecutive ones.
    honest : int
        Number H of summed sites, >= 1, whose shares alone give the planned noise.
    colluding : int
        Number C of sites, >= 0, that may collude with the server; of more than 50 sites
        at most a fifth.
    threshold : int
        Number T of sites whose agreement unmasks a sum. C < 2 T - n and C < T - 1.
    """

    first_slot: int = field(metadata=integer(0, cap=FREE))
    num_slots: int = field(metadata=integer(2, cap="max_agents"))
    honest: int = field(metadata=integer(1, cap=FREE))
    colluding: int = field(metadata=integer(0, cap=FREE))
    threshold: int = field(metadata=integer(2, cap=FREE))

    def __post_init__(self) -> None:
        check_fields(self)
        n, c = self.num_slots, self.colluding
        # Above 50 sites a site masks with its neighbours only, and `sparse_rule` counts
        # on at most a fifth of all that collude.
        most = math.floor(COLLUDING * n) if n > MAX_COMPLETE else n - 2
        require_int("colluding", c, 0, most)
        # C < 2 T - n: any two sets of T sites have an honest one in common. It tells
        # its share of one secret of a site or of the other, never of both. C < T - 1:
        # those who collude need the shares of two honest sites. See `Member`.
        least = max((n + c) // 2 + 1, c + 2)
        require_int("threshold", self.threshold, least, n)
        expected = f"at most {n - c}: {n} sites less colluding={c}"
        require(self.honest <= n - c, "honest", self.honest, expected)

    @property
    def slots(self) -> range:
        """The slots of the group."""
        return range(self.first_slot, self.first_slot + self.num_slots)

    @property
    def min_summed(self) -> int:
        """Smallest number of sites in a sum: answered - colluding >= honest."""
        return max(self.threshold, self.honest + self.colluding)

    @property
    def excess(self) -> float:
        """Largest ratio of the noise to a trusted server's: if all sites answer."""
        return 1.001 * math.sqrt(self.num_slots / self.honest)


GROUPS = several(instance(SumGroup, part=SumGroup), least=1, allowed="one at least")
ROSTER = instance(str, allowed="a digest")

NoiseT_co = TypeVar("NoiseT_co", bound=SumNoise, covariant=True)


class GroupedSums(ABC, Generic[NoiseT_co]):
    """Base class of secure sums: groups of sites, and the terms of each sum.

    Attributes
    ----------
    groups : tuple of SumGroup
        Sites that are summed together, group by group.
    roster : str
        Digest of the `Roster` that all sites pin; empty without one.
    """

    groups: tuple[SumGroup, ...]
    roster: str

    @property
    @abstractmethod
    def noise_multiplier(self) -> float:
        """Noise of a sum over its sensitivity, as each release is charged."""

    @abstractmethod
    def _noise_of(self, group: SumGroup) -> NoiseT_co:
        """Return what the sites of a group add."""

    def noise(self, group: int) -> NoiseT_co:
        """Return what the sites of a group add: integers, with a share of the noise."""
        if group not in self._noises:
            self._noises[group] = self._noise_of(self.groups[group])
        return self._noises[group]

    @cached_property
    def _noises(self) -> dict[int, NoiseT_co]:
        return {}

    def group_of(self, slot: int) -> int:
        """Return which group has a slot.

        Raises
        ------
        ValueError
            If it is in no group.
        """
        for i, group in enumerate(self.groups):
            if slot in group.slots:
                return i
        raise ValueError(f"slot={slot} is not allowed: in none of {self.groups}.")

    def terms(self, study: str, release: int, group: int, attempt: int) -> SumTerms:
        """Return the terms of one attempt at a sum.

        Parameters
        ----------
        study : str
            The study as JSON: members who were told another study have other terms.
        release : int
            Number of the release, from 1, as the site was promised it.
        group : int
            Number of the group of sites, from 0.
        attempt : int
            Number that the server draws afresh.
        """
        g, noise = self.groups[group], self.noise(group)
        named = json.dumps([study, release, group])
        return SumTerms(
            context=hashlib.sha256(named.encode()).hexdigest(),
            attempt=f"{attempt:016x}",
            slots=tuple(g.slots),
            threshold=g.threshold,
            min_summed=g.min_summed,
            length=noise.length,
            num_bits=noise.num_bits,
            roster=self.roster,
        )


@dataclass(frozen=True)
class SecureSums(GroupedSums[IntegerNoise]):
    """Settings of the secure sums of a tuning study's messages; public.

    Attributes
    ----------
    settings : ReleaseSettings
        Settings of all releases.
    num_features : int
        M, the length of a message.
    groups : tuple of SumGroup
        One group for all releases; with `FedWarmStart` one per cohort.
    roster : str
        Digest of the `Roster` that all sites pin; empty without one.
    """

    settings: ReleaseSettings = field(
        metadata=instance(ReleaseSettings, part=ReleaseSettings)
    )
    num_features: int = field(metadata=integer(1, cap="max_features"))
    groups: tuple[SumGroup, ...] = field(metadata=GROUPS)
    roster: str = field(default="", metadata=ROSTER)

    def __post_init__(self) -> None:
        check_fields(self)

    @cached_property
    def release(self) -> SecureRelease:
        """The mechanism, with the noise that all sites of a group add at most."""
        excess = max(group.excess for group in self.groups)
        return SecureRelease(self.settings, excess)

    @property
    def noise_multiplier(self) -> float:
        """Noise multiplier z of each release."""
        return self.settings.noise_multiplier

    def _noise_of(self, group: SumGroup) -> IntegerNoise:
        """Return what the sites of a group add to their messages."""
        length = self.num_features
        return self.release.noise(group.num_slots, group.honest, length)

    def row(
        self,
        iteration: int,
        group: int,
        slots: tuple[int, ...],
        total: NDArray[np.uint64],
    ) -> LedgerRow:
        """Return what a sum releases, and what the ledger says of it.

        Parameters
        ----------
        iteration : int
            After which the release was planned.
        group : int
            Group of sites that were summed.
        slots : tuple of int
            The sites in the sum, increasing.
        total : ndarray of shape (P * M,)
            The sum modulo 2**b, with the noise.
        """
        noise, release = self.noise(group), self.release
        vectors = release.decoded(iteration, noise, SecureTotal(slots, total))
        facts = release.facts_of_sum(iteration, noise, slots)
        return LedgerRow(iteration, facts, vectors)

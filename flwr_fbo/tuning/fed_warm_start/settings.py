"""Settings of the agents of FedWarmStart, and who belongs to which cohort."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.fields import FREE, check_fields, holds, integer, number, ruled
from flwr_fbo._common.random import Purpose, generator, sobol_points
from flwr_fbo._common.validation import require, require_int
from flwr_fbo.privacy.spending_ledger import MOST_NOISE
from flwr_fbo.space.search_space import SearchSpace, move_to_faces
from flwr_fbo.tuning.fed_warm_start.knowledge import (
    LEAST_POINTS,
    MOST_POINTS,
    Knowledge,
)
from flwr_fbo.tuning.search.settings import (
    Direction,
    Facts,
    SearchSettings,
)

# Of the pool's points, those with about 0.4 of their coordinates moved to a face of the
# cube: many best settings lie there.
_SHARE_ON_FACES, _MOVED = 0.25, 0.4


@dataclass(frozen=True)
class FedWarmStartSettings(SearchSettings):
    """The agent's settings; see `SearchSettings` for the others.

    An agent searches by expected improvement: ``noise_floor``,
    ``num_surrogate_features`` and ``num_starts`` do nothing.

    Examples
    --------
    >>> from optuna.distributions import FloatDistribution
    >>> from flwr_fbo import FedWarmStart
    >>> from flwr_fbo.tuning import FedWarmStartSettings
    >>> agent = FedWarmStartSettings(share_after=8, num_led=2)
    >>> space = {"C": FloatDistribution(1e-3, 1e3, log=True)}
    >>> strategy = FedWarmStart(
    ...     space, "maximize", num_agents=20, agent=agent, epsilon=2, delta=1e-3
    ... )

    Attributes
    ----------
    num_features : int
        m, from 8 to 1024: points of the public pool, and the length of a message.
    num_sub_regions : int
        1.
    num_initial : int
        1: the centre of the box, or where earlier cohorts lead.
    num_candidates : int
        Points that a search begins with, >= 1.
    share_after : int
        Evaluations, >= 2, after which a cohort sends its messages.
    num_led : int
        Evaluations of a follower, >= 1, that earlier cohorts lead.
    """

    is_lean: ClassVar[bool] = True

    num_features: int = field(
        default=64, metadata=integer(LEAST_POINTS, MOST_POINTS, cap="max_features")
    )
    num_initial: int = field(default=1, metadata=integer(1))
    refit_every: int = field(default=1, metadata=integer(1, cap=FREE))
    num_candidates: int = field(default=500, metadata=integer(1))
    share_after: int = field(default=10, metadata=integer(2, cap=FREE))
    num_led: int = field(default=6, metadata=integer(1))

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.num_initial == 1, "num_initial", self.num_initial, "1")
        P = self.num_sub_regions
        require(P == 1, "num_sub_regions", P, "1, where agents start warm")

    def steps(self, dim: int, num_rows: int) -> dict[str, float]:
        """Return what a message takes: see `SearchSettings`."""
        m = self.num_features
        shared = 10 * m**3 + 120_000 * m if num_rows else 0
        return {**super().steps(dim, num_rows), f"num_features={m}": shared}

    def pool(self, space: SearchSpace, feature_seed: int) -> FloatArray:
        """Return the points, shape (m, D), that messages are about; public."""
        rng = generator(feature_seed, Purpose.SHARED_FEATURES)
        exponent = math.ceil(math.log2(self.num_features))
        points = sobol_points(space.dim, exponent, rng)[: self.num_features]
        move_to_faces(points, _SHARE_ON_FACES, _MOVED, rng)
        return space.snap_discrete(points)


def _check_sizes(name: str, sizes: Sequence[int]) -> None:
    for size in sizes:
        require_int(name, size, 1)


@dataclass(frozen=True)
class Cohorts:
    """Senders of each release, and its noise; public.

    Slots are in cohorts in their order: the first ``cohort_sizes[0]`` slots send in
    release 1, and so on. The slots after the last cohort send nothing.

    Attributes
    ----------
    num_agents : int
        N, >= 1.
    cohort_sizes : tuple of int
        Sites of each cohort that sends, >= 1 each, fewer than N together.
    noise_multiplier : float
        z, from 0 to 1e6: standard deviation of the noise in a sum of messages.
    """

    num_agents: int = field(metadata=integer(1, cap="max_agents"))
    cohort_sizes: tuple[int, ...] = field(
        default=(), metadata=ruled(_check_sizes, cap="max_agents")
    )
    noise_multiplier: float = field(default=0.0, metadata=number(0, MOST_NOISE))

    def __post_init__(self) -> None:
        # From JSON it is a list.
        object.__setattr__(self, "cohort_sizes", tuple(self.cohort_sizes))
        check_fields(self)
        is_valid = sum(self.cohort_sizes) < self.num_agents
        expected = f"fewer than num_agents={self.num_agents} together"
        require(is_valid, "cohort_sizes", self.cohort_sizes, expected)

    def cohort_of(self, slot: int) -> int:
        """Return the cohort of a slot, from 0; their number for who only follows."""
        ends = np.cumsum(self.cohort_sizes)
        return int(np.searchsorted(ends, slot, side="right"))

    def slots(self, cohort: int) -> range:
        """Return the slots of a cohort that sends, from 0."""
        before = sum(self.cohort_sizes[:cohort])
        return range(before, before + self.cohort_sizes[cohort])


@dataclass(frozen=True)
class WarmStartFacts(Facts):
    """Facts that an agent of FedWarmStart gets besides its settings; public.

    Attributes
    ----------
    cohorts : Cohorts, optional
        Senders of each release; given once the releases are planned.
    known : Knowledge, optional
        Releases of earlier studies, about this space. Their points are the pool.
    """

    cohorts: Cohorts | None = field(default=None, metadata=holds(Cohorts))
    known: Knowledge | None = field(default=None, metadata=holds(Knowledge))

    def check(
        self, space: SearchSpace, direction: Direction, agent: SearchSettings
    ) -> None:
        """Raise ValueError unless what is known is about the study's space."""
        known = self.known
        if known is None:
            return
        require(known.space == space, "known.space", known.space, "the study's")
        same, expected = known.direction == direction, f"{direction!r}, the study's"
        require(same, "known.direction", known.direction, expected)
        m = len(known.points)
        is_valid = isinstance(agent, FedWarmStartSettings) and agent.num_features == m
        expected = (
            f"FedWarmStartSettings with num_features={m}, as many as known.points"
        )
        require(is_valid, "agent", agent, expected)

    @property
    def num_rows(self) -> int:
        """Releases of earlier studies."""
        return 0 if self.known is None else len(self.known.releases)


def num_pioneers(noise_multiplier: float) -> int:
    """Return how many sites a first release needs: max(4, ceil(6 z))."""
    return max(4, math.ceil(6.0 * noise_multiplier))


def default_cohorts(num_agents: int, noise_multiplier: float) -> tuple[int, ...]:
    """Return the pioneers, then half of the others if they are more.

    Empty where nobody would be left to follow.
    """
    first = num_pioneers(noise_multiplier)
    rest = num_agents - first
    if rest < 1:
        return ()
    return (first, rest // 2) if rest > first else (first,)

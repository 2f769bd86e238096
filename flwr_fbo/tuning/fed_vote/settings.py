"""Settings of the agents of FedVote, and what their votes are counted with."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from flwr_fbo._common.fields import FREE, check_fields, integer, number
from flwr_fbo._common.random import Purpose, generator
from flwr_fbo._common.validation import require
from flwr_fbo.privacy.sampling import PROBABILITY
from flwr_fbo.tuning.search.settings import Facts, SearchSettings

if TYPE_CHECKING:
    from flwr_fbo.models.features import RandomFeatures

# So many times ``num_candidates`` places are looked at for all agents of a process,
# each of whom takes its own from these.
SHARED_CANDIDATES = 4
# Agents that have evaluated fewer settings often agree on a local optimum: then FedVote
# recommends nothing.
LEAST_EVALUATIONS = 20
# So many times the kernel of late votes is narrower: see `benchmarks.recommendation`.
_NARROWER = 3


@dataclass(frozen=True)
class FedVoteSettings(SearchSettings):
    """The agent's settings; see `SearchSettings` for the others.

    An agent searches by expected improvement: ``noise_floor``,
    ``num_surrogate_features`` and ``num_starts`` do nothing.

    Votes after at least 20 evaluations are late: a setting may be recommended from
    them. Their kernel is a third as wide, so noise moves the most voted place less.

    Examples
    --------
    >>> from optuna.distributions import FloatDistribution
    >>> from flwr_fbo import FedVote
    >>> from flwr_fbo.tuning import FedVoteSettings
    >>> agent = FedVoteSettings(num_cells=8)
    >>> space = {"C": FloatDistribution(1e-3, 1e3, log=True)}
    >>> strategy = FedVote(
    ...     space, "maximize", num_agents=20, agent=agent, epsilon=2, delta=1e-3
    ... )

    Attributes
    ----------
    num_features : int
        M, even.
    num_initial : int
        Evaluations before the first query, >= 1: the centre of the space, then uniform
        points.
    num_candidates : int
        Uniform points that an agent's own search begins with, >= 1; and how many places
        it looks at for votes.
    num_cells : int
        K from 2 to 1e9: how many places votes can tell apart. The kernel's square fills
        1 / K of the cube. Late votes tell 3^D times as many apart.
    max_similarity : float
        From 1e-6 to 0.999999: a place is new to an agent if k is at most this at all it
        has tried.
    max_tries : int
        >= 1: once it has tried so many places above the threshold, an agent has seen
        what the others praise, and searches on its own.
    """

    is_lean: ClassVar[bool] = True

    num_features: int = field(default=512, metadata=integer(1, cap="max_features"))
    num_initial: int = field(default=1, metadata=integer(1))
    refit_every: int = field(default=1, metadata=integer(1, cap=FREE))
    num_candidates: int = field(default=500, metadata=integer(1))
    num_cells: int = field(default=16, metadata=integer(2, 10**9, cap=FREE))
    max_similarity: float = field(default=0.7, metadata=number(1e-6, 1 - 1e-6))
    max_tries: int = field(default=10, metadata=integer(1))

    def __post_init__(self) -> None:
        super().__post_init__()
        M, P = self.num_features, self.num_sub_regions
        require(M % 2 == 0, "num_features", M, "even, where agents vote")
        require(P == 1, "num_sub_regions", P, "1, where agents vote")

    def steps(self, dim: int, num_rows: int) -> dict[str, float]:
        """Return what a message takes: see `SearchSettings`."""
        M, C = self.num_features, self.num_candidates
        steps, candidates = super().steps(dim, num_rows), f"num_candidates={C}"
        steps[candidates] *= SHARED_CANDIDATES
        return {**steps, f"num_features={M}": 5_000 * (M + dim) + 50 * M * dim}

    def after(self, iteration: int, dim: int) -> FedVoteSettings:
        """Return the settings of votes after ``iteration``: late ones have more cells.

        Noise moves the most voted place by a share of the kernel's width.
        """
        if iteration + self.num_initial < LEAST_EVALUATIONS:
            return self
        return _narrowed(self, dim)

    def shared_lengthscale(self, dim: int) -> float:
        """Return l with (sqrt(pi) l)^D = 1 / K, the integral of k^2."""
        return float(self.num_cells ** (-1.0 / dim) / math.sqrt(math.pi))

    def shared_features(self, dim: int, feature_seed: int) -> RandomFeatures:
        """Return the features that all agents of a study, and its server, share."""
        from flwr_fbo.models.features import RandomFeatures

        rng = generator(feature_seed, Purpose.SHARED_FEATURES)
        length = self.shared_lengthscale(dim)
        return RandomFeatures.spread(rng, self.num_features, dim, length)


@dataclass(frozen=True)
class VoteCount(Facts):
    """Facts that a count of votes is read with; public.

    Attributes
    ----------
    num_agents : int
        N, >= 1.
    noise_std : float
        Standard deviation, in votes, of the noise of a count, from 0 to 1e9.
    sampling_probability : float
        q, in (0, 1].
    """

    num_agents: int = field(metadata=integer(1, cap="max_agents"))
    noise_std: float = field(default=0.0, metadata=number(0, 1e9))
    sampling_probability: float = field(default=1.0, metadata=PROBABILITY)

    def __post_init__(self) -> None:
        check_fields(self)


@lru_cache(maxsize=8)  # a process may be host to many agents of one study
def _narrowed(settings: FedVoteSettings, dim: int) -> FedVoteSettings:
    return replace(settings, num_cells=settings.num_cells * _NARROWER**dim)

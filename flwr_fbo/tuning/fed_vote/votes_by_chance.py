"""Counts of votes to expect if agents had nothing in common.

The server compares it with what it has released, and an agent before it follows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from flwr_fbo._common.arrays import FloatArray, one_blas_thread
from flwr_fbo._common.random import Purpose, generator
from flwr_fbo.space.search_space import SearchSpace
from flwr_fbo.tuning.fed_vote.settings import FedVoteSettings, VoteCount
from flwr_fbo.tuning.search.own_search import shared_features
from flwr_fbo.tuning.search.recommendation import SIGNIFICANCE

_NUM_DRAWS = 1000


@dataclass(frozen=True, eq=False)
class VotesByChance:
    """Law of the votes of agents that have nothing in common; public.

    Attributes
    ----------
    num_agents : int
        N.
    mean : ndarray of shape (M,)
        Mean of a vote. Its count is less near the faces of the cube, where k is cut
        off.
    deviation : float
        Standard deviation of the count at one place, by chance and noise.
    num_cells : int
        K, how many places votes can tell apart.
    smallest_crowd : int
        Number of agents that must vote for one place for others to go there; more than
        N: no vote can be told from chance and noise.
    """

    num_agents: int
    mean: FloatArray
    deviation: float
    num_cells: int
    smallest_crowd: int

    @cached_property
    def threshold(self) -> float:
        """Votes above those of N such agents that chance and noise rarely give."""
        return _threshold(self.deviation, self.num_cells)

    def probability(self, votes: float) -> float:
        """Return how likely chance and noise give as many at any place, at most."""
        from scipy.special import ndtr

        return min(self.num_cells * float(ndtr(-votes / self.deviation)), 1.0)

    def excess(self, vectors: FloatArray) -> FloatArray:
        """Return votes above the expected ones, shape (1, M), of what was released."""
        return np.asarray(self.num_agents * (vectors - self.mean))


@lru_cache(maxsize=8)
@one_blas_thread
def votes_by_chance(
    settings: FedVoteSettings, count: VoteCount, space: SearchSpace, feature_seed: int
) -> VotesByChance:
    """Return what votes for uniform draws from ``space`` look like."""
    from scipy.spatial.distance import cdist

    rng = generator(feature_seed, Purpose.SEARCH)
    points = space.snap_discrete(rng.random((_NUM_DRAWS, space.dim)))
    phi = shared_features(settings, space.dim, feature_seed)(points)
    mean = phi.mean(axis=0)
    length = settings.shared_lengthscale(space.dim)
    kernel = np.exp(-0.5 * (cdist(points, points) / length) ** 2)
    per_place = float(np.mean(kernel**2, axis=1).max())
    # A place gets the sum of N independent k(x, x_n), of variance N E k^2. Of sampled
    # votes each counts 1/q times, with probability q: that is 1/q times the variance.
    by_chance = count.num_agents / count.sampling_probability * per_place
    # phi(x)'phi(x') is k(x, x') but for the error of M random features. It adds up over
    # votes that lie far away, where k is 0, and looks like votes.
    afar = count.num_agents * float(np.std(phi @ phi.T - kernel))
    deviation = math.sqrt(by_chance + count.noise_std**2 + afar**2)
    # n agents that vote for x add n (1 - phi(x)'mean) to the excess there: they are not
    # among these votes. The smallest share of all places counts.
    share = max(1.0 - float((phi @ mean).max()), 1e-3)
    cells = settings.num_cells
    crowd = math.ceil(_threshold(deviation, cells) / share)
    return VotesByChance(count.num_agents, mean, deviation, cells, crowd)


def _threshold(deviation: float, num_cells: int) -> float:
    from scipy.special import ndtri

    # Bonferroni over K places: without it the largest of K counts would often pass.
    return -float(ndtri(SIGNIFICANCE / num_cells)) * deviation

"""Crowded places of FedVote: each site counts the released votes, and reads where.

The server only adds votes and noise. Where they meet is computed at the sites.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from flwr_fbo._common.arrays import FloatArray, one_blas_thread
from flwr_fbo._common.random import Purpose, generator
from flwr_fbo.space.search_space import SearchSpace, move_to_faces
from flwr_fbo.tuning.fed_vote.settings import (
    SHARED_CANDIDATES,
    FedVoteSettings,
    VoteCount,
)
from flwr_fbo.tuning.fed_vote.votes_by_chance import votes_by_chance
from flwr_fbo.tuning.search.own_search import shared_features

# Of the candidates, those with about half of their coordinates moved to a face of the
# cube: many best settings lie there, and uniform points never do.
_SHARE_ON_FACES = 1 / 3


@lru_cache(maxsize=4)
@one_blas_thread
def crowded_places(
    settings: FedVoteSettings,
    count: VoteCount,
    space: SearchSpace,
    feature_seed: int,
    iteration: int,
    votes: bytes,
) -> FloatArray:
    """Return places with more votes than chance and noise explain, most votes first.

    Public, and the same for all agents: a process that is host to many of them looks
    for these places once.

    Parameters
    ----------
    iteration : int
        Each looks at other places.
    votes : bytes
        Released votes: M float64 numbers.

    Returns
    -------
    ndarray of shape (k, D)
        Places on the unit cube; k may be 0.
    """
    by_chance = votes_by_chance(settings, count, space, feature_seed)
    weights = by_chance.excess(np.frombuffer(votes)[None])
    rng = generator(feature_seed, iteration, Purpose.FOLLOW)
    points = rng.random((SHARED_CANDIDATES * settings.num_candidates, space.dim))
    move_to_faces(points, _SHARE_ON_FACES, 0.5, rng)
    places = space.snap_discrete(points)
    features = shared_features(settings, space.dim, feature_seed)
    function = np.zeros(len(places), dtype=np.intp)
    rough = features.rough_values(places, weights, function)
    crowded = np.flatnonzero(rough > by_chance.threshold)
    best = features.largest(
        places[crowded], weights, function[crowded], rough[crowded], len(crowded)
    )
    return np.asarray(places[crowded[best]])

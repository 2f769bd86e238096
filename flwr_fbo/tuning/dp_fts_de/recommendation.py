"""The recommendation of DP-FTS-DE: where a release is largest, if noise seldom is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flwr_fbo._common.arrays import FloatArray, one_blas_thread
from flwr_fbo._common.random import Purpose, generator
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.tuning.dp_fts_de.settings import DPFTSDESettings
from flwr_fbo.tuning.search.recommendation import (
    BY_CHANCE,
    SIGNIFICANCE,
    Recommendation,
    ReleasedFunction,
    maximiser,
)
from flwr_fbo.tuning.search.study import TuningStudy

# Releases without a message that a released function is compared with.
_NUM_DRAWS = 400
_NUM_PLACES = 1000


@one_blas_thread
def released_function(
    study: TuningStudy, ledger: Sequence[LedgerRow]
) -> ReleasedFunction | None:
    """Compare with releases of noise alone.

    Whether the agents have anything in common is not tested: each has sampled its
    function from its own model.
    """
    if not ledger:
        return None
    row, agent = ledger[-1], study.agent
    assert isinstance(agent, DPFTSDESettings)
    space, rng = study.space, generator(study.feature_seed, Purpose.FOLLOW)
    regions = agent.sub_regions(space)
    features = agent.shared_features(space.dim, study.feature_seed)
    places = space.snap_discrete(rng.random((_NUM_PLACES, space.dim)))
    index, phi = regions.index(places), features(places)
    mean = float(np.sum(phi * row.vectors[index], axis=1).mean())

    def values(x: FloatArray) -> FloatArray:
        return features.function(x, row.vectors[regions.index(x)]) - mean

    # At the places where the draws are looked at, too.
    score = float(values(places).max())
    deviation = np.array(row.facts["noise_std"])
    largest = np.empty(_NUM_DRAWS)
    for i in range(_NUM_DRAWS):
        draw = deviation[:, None] * rng.standard_normal(row.vectors.shape)
        nothing = np.sum(phi * draw[index], axis=1)
        largest[i] = nothing.max() - nothing.mean()
    # Without a message the release is one more draw.
    chance = (1 + np.count_nonzero(largest >= score)) / (1 + _NUM_DRAWS)
    threshold = float(np.quantile(largest, 1 - SIGNIFICANCE))
    reason = BY_CHANCE if chance > SIGNIFICANCE else ""
    best = maximiser(study, agent, row.vectors)
    params = None if reason else study.space.from_unit(best)
    found = Recommendation(params, reason, score, threshold, float(chance))
    return ReleasedFunction(values, best, found)

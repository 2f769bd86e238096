"""The recommendation of FedVote: the most voted place, where the count is clear."""

from __future__ import annotations

from collections.abc import Sequence

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.tuning.fed_vote.settings import (
    LEAST_EVALUATIONS,
    FedVoteSettings,
    VoteCount,
)
from flwr_fbo.tuning.fed_vote.votes_by_chance import votes_by_chance
from flwr_fbo.tuning.search.recommendation import (
    BY_CHANCE,
    Recommendation,
    ReleasedFunction,
    maximiser,
)
from flwr_fbo.tuning.search.study import TuningStudy

# Votes must also exceed the noise of a count so many times: the most voted place is
# then known to about an eighth of the width of a vote.
_LEAST_PRECISION = 8.0


def released_function(
    study: TuningStudy, ledger: Sequence[LedgerRow]
) -> ReleasedFunction | None:
    """Compare the most voted place with votes that are spread evenly."""
    if not ledger:
        return None
    row, count, agent = ledger[-1], study.facts, study.agent
    assert isinstance(agent, FedVoteSettings)
    assert isinstance(count, VoteCount)
    made_after = row.made_after
    agent = agent.after(made_after, study.space.dim)
    by_chance = votes_by_chance(agent, count, study.space, study.feature_seed)
    weights = by_chance.excess(row.vectors)
    features = agent.shared_features(study.space.dim, study.feature_seed)

    def votes(x: FloatArray) -> FloatArray:
        return features.function(x, weights[0])

    best = maximiser(study, agent, row.vectors)
    score = float(votes(best[None])[0])
    chance = by_chance.probability(score)
    reason = BY_CHANCE if score <= by_chance.threshold else ""
    least = _LEAST_PRECISION * count.noise_std
    if not reason and score < least:
        reason = f"below a score of {least:.3g} noise hides where the sites agree"
    evaluated = made_after + agent.num_initial
    if not reason and evaluated < LEAST_EVALUATIONS:
        reason = (
            f"the sites voted last after {evaluated} evaluations; after fewer than "
            f"{LEAST_EVALUATIONS} they often agree on a local optimum"
        )
    params = None if reason else study.space.from_unit(best)
    found = Recommendation(params, reason, score, by_chance.threshold, chance)
    return ReleasedFunction(votes, best, found)

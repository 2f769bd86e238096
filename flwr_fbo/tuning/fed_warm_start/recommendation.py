"""The recommendation of FedWarmStart: a start for new sites, if sites agree."""

from __future__ import annotations

from collections.abc import Sequence

from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.tuning.fed_warm_start.head_start import head_start
from flwr_fbo.tuning.fed_warm_start.settings import (
    Cohorts,
    FedWarmStartSettings,
    WarmStartFacts,
)
from flwr_fbo.tuning.search.recommendation import (
    BY_CHANCE,
    SIGNIFICANCE,
    Recommendation,
    ReleasedFunction,
)
from flwr_fbo.tuning.search.study import TuningStudy


def released_function(
    study: TuningStudy, ledger: Sequence[LedgerRow]
) -> ReleasedFunction | None:
    """Take the posterior probability that sites share nothing."""
    facts, agent = study.facts, study.agent
    assert isinstance(agent, FedWarmStartSettings)
    assert isinstance(facts, WarmStartFacts)
    if not ledger and facts.known is None:
        return None
    released = b"".join(row.vectors.tobytes() for row in ledger)
    cohorts = facts.cohorts or Cohorts(1)
    start = head_start(
        agent, cohorts, study.space, study.feature_seed, released, facts.known
    )
    best = study.space.snap(start.tops[0])
    score = float(start(best[None])[0])
    p0 = start.null_probability
    certain = start.is_followed and p0 <= SIGNIFICANCE
    alone = (
        "sites that started later searched alone; more pioneers or epsilon tell more"
    )
    reason = "" if certain else f"{BY_CHANCE}: {alone}"
    params = None if reason else study.space.from_unit(best)
    found = Recommendation(params, reason, score, None, p0, is_start=True)
    return ReleasedFunction(start, best, found)

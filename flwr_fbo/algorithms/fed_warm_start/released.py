"""What releases say of the function that sites share, and where new sites start."""

from __future__ import annotations

from collections.abc import Sequence

from flwr_fbo.algorithms.fed_warm_start.agent import HeadStart, head_start
from flwr_fbo.algorithms.fed_warm_start.settings import (
    Cohorts,
    FedWarmStartSettings,
    WarmStartFacts,
)
from flwr_fbo.algorithms.search.recommendation import (
    BY_CHANCE,
    SIGNIFICANCE,
    Recommendation,
    ReleasedFunction,
)
from flwr_fbo.algorithms.search.study import TuningStudy
from flwr_fbo.journal.tables import LedgerRow


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
    about = agent, cohorts, study.space, study.feature_seed
    start: HeadStart = head_start(*about, released, facts.known)
    best = study.space.snap(start.tops[0])
    score = float(start.shared(best[None])[0])
    p0 = start.shared.null_probability
    certain = start.is_followed and p0 <= SIGNIFICANCE
    reason = "" if certain else BY_CHANCE
    params = None if reason else study.space.from_unit(best)
    found = Recommendation(params, reason, score, None, p0, is_start=True)
    return ReleasedFunction(start.shared, best, found)

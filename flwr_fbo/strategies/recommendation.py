"""One setting for a whole federation, and how sure it is.

A recommendation is computed from what was released, which everybody may read. So it
costs no privacy. It is withheld where chance and noise explain the releases as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from flwr_fbo._common.arrays import FloatArray, one_blas_thread
from flwr_fbo._common.random import Purpose, generator
from flwr_fbo.algorithms.fed_vote.agent import SIGNIFICANCE, even_votes
from flwr_fbo.algorithms.fed_vote.settings import LEAST_EVALUATIONS, FedVoteSettings
from flwr_fbo.algorithms.fed_warm_start.agent import HeadStart, head_start
from flwr_fbo.algorithms.fed_warm_start.settings import Cohorts, FedWarmStartSettings
from flwr_fbo.algorithms.search.settings import SearchSettings
from flwr_fbo.algorithms.search.study import TuningStudy
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.space.search_space import Params

# Votes must also exceed the noise of a count so many times: the most voted place is
# then known to about an eighth of the width of a vote.
_LEAST_PRECISION = 8.0
# Releases without a message that a released function is compared with.
_NUM_DRAWS = 400
_NUM_PLACES = 1000

NOTHING = "nothing was released"
_BY_CHANCE = "it cannot be told from chance and noise"


@dataclass(frozen=True)
class Recommendation:
    """One setting for all sites, or a start for new ones, and how sure it is.

    Attributes
    ----------
    params : dict or None
        The setting; None where none can be recommended.
    reason : str
        Why there is none; empty where there is one.
    score : float
        The largest value of the released function; NaN where nothing was released.
        For `FedVote` it is a number of sites: the votes above those that are expected
        if every site votes at random. For `FedWarmStart` it is the shared part of the
        sites' beliefs, in standard deviations of one site's. For `DPFTSDE` it is the
        mean of the sampled functions, less its mean over the space.
    threshold : float or None
        The score that chance and noise exceed in 5 % of studies, for `DPFTSDE` noise
        alone; None for `FedWarmStart`, which compares models instead.
    probability : float
        From 0 to 1: how likely chance and noise reach the score; for `FedWarmStart` the
        posterior probability that the sites share nothing.
    is_start : bool
        Whether ``params`` is where a new site should start, and not a setting to keep:
        `FedWarmStart` releases no more than that.

    Examples
    --------
    >>> from flwr_fbo.strategies.recommendation import Recommendation
    >>> print(Recommendation({"C": 10.0}, "", 17.4, 5.1, 0.0004))
    Recommended for all sites: {'C': 10.0} (score 17.4; chance and noise reach 5.1 in
    5 % of studies; p = 0.0004)
    """

    params: Params | None = None
    reason: str = NOTHING
    score: float = math.nan
    threshold: float | None = None
    probability: float = 1.0
    is_start: bool = False

    def __str__(self) -> str:
        evidence = f" ({self.evidence})" if self.evidence else ""
        return f"{self.purpose}: {self.params or 'none: ' + self.reason}{evidence}"

    @property
    def purpose(self) -> str:
        """What the setting is for, in words."""
        return "Start for new sites" if self.is_start else "Recommended for all sites"

    @property
    def evidence(self) -> str:
        """What speaks for the setting, in words; empty where nothing was released."""
        if math.isnan(self.score):
            return ""
        p = f"{self.probability:.1g}" if self.probability >= 1e-4 else "below 0.0001"
        p = f"p {p}" if p.startswith("below") else f"p = {p}"
        if self.threshold is None:
            return f"score {self.score:.3g}; the sites share nothing with {p}"
        return (
            f"score {self.score:.3g}; chance and noise reach {self.threshold:.3g} in "
            f"5 % of studies; {p}"
        )


@dataclass(frozen=True, eq=False)
class ReleasedFunction:
    """What the last release says of the space; public.

    Attributes
    ----------
    function : callable
        Takes points of the unit cube, shape (n, D), and returns scores, shape (n,).
    best : ndarray of shape (D,)
        Its maximiser, also where it is not recommended.
    recommendation : Recommendation
    """

    function: Callable[[FloatArray], FloatArray]
    best: FloatArray
    recommendation: Recommendation


def released_function(
    study: TuningStudy, ledger: Sequence[LedgerRow]
) -> ReleasedFunction | None:
    """Return what a study's releases say; None before there is one.

    Parameters
    ----------
    study : TuningStudy
        Of `FedVote`, `FedWarmStart` or `DPFTSDE`.
    ledger : sequence of LedgerRow
        Its releases.
    """
    agent = study.agent
    if isinstance(agent, FedWarmStartSettings):
        return _of_beliefs(study, agent, ledger)
    if not ledger:
        return None
    if isinstance(agent, FedVoteSettings):
        return _of_votes(study, agent, ledger[-1])
    assert isinstance(agent, SearchSettings)
    return _of_samples(study, agent, ledger[-1])


def _of_votes(
    study: TuningStudy, agent: FedVoteSettings, row: LedgerRow
) -> ReleasedFunction:
    """Compare the most voted place with votes that are spread evenly."""
    assert study.votes is not None
    made_after = row.facts["made_after"]
    agent = agent.after(made_after, study.space.dim)
    even = even_votes(agent, study.votes, study.space, study.feature_seed)
    weights = even.excess(row.vectors)
    features = agent.shared_features(study.space.dim, study.feature_seed)

    def votes(x: FloatArray) -> FloatArray:
        return features.function(x, weights[0])

    best = _maximiser(study, agent, row.vectors)
    score = float(votes(best[None])[0])
    chance = even.probability(score)
    reason = _BY_CHANCE if score <= even.threshold else ""
    if not reason and score < _LEAST_PRECISION * study.votes.noise_std:
        reason = "noise hides which setting the sites agree on"
    evaluated = made_after + agent.num_initial
    if not reason and evaluated < LEAST_EVALUATIONS:
        reason = (
            f"the sites voted last after {evaluated} evaluations; after fewer than "
            f"{LEAST_EVALUATIONS} they often agree on a local optimum"
        )
    params = None if reason else study.space.from_unit(best)
    found = Recommendation(params, reason, score, even.threshold, chance)
    return ReleasedFunction(votes, best, found)


def _of_beliefs(
    study: TuningStudy, agent: FedWarmStartSettings, ledger: Sequence[LedgerRow]
) -> ReleasedFunction | None:
    """Take the posterior probability that sites share nothing."""
    if not ledger and study.known is None:
        return None
    released = b"".join(row.vectors.tobytes() for row in ledger)
    cohorts = study.cohorts or Cohorts(1)
    about = agent, cohorts, study.space, study.feature_seed
    start: HeadStart = head_start(*about, released, study.known)
    best = study.space.snap(start.tops[0])
    score = float(start.shared(best[None])[0])
    p0 = start.shared.null_probability
    certain = start.is_followed and p0 <= SIGNIFICANCE
    reason = "" if certain else _BY_CHANCE
    params = None if reason else study.space.from_unit(best)
    found = Recommendation(params, reason, score, None, p0, is_start=True)
    return ReleasedFunction(start.shared, best, found)


@one_blas_thread
def _of_samples(
    study: TuningStudy, agent: SearchSettings, row: LedgerRow
) -> ReleasedFunction:
    """Compare with releases of noise alone.

    Whether the agents have anything in common is not tested: each has sampled its
    function from its own model.
    """
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
    reason = _BY_CHANCE if chance > SIGNIFICANCE else ""
    best = _maximiser(study, agent, row.vectors)
    params = None if reason else study.space.from_unit(best)
    found = Recommendation(params, reason, score, threshold, float(chance))
    return ReleasedFunction(values, best, found)


def _maximiser(
    study: TuningStudy, agent: SearchSettings, vectors: FloatArray
) -> FloatArray:
    from flwr_fbo.algorithms.search.acquisition import maximize

    space, seed = study.space, study.feature_seed
    point = maximize(
        agent.shared_features(space.dim, seed),
        vectors,
        space,
        agent.sub_regions(space),
        generator(seed, Purpose.SEARCH),
        agent.num_candidates,
        agent.num_starts,
    )
    return space.snap(point)

"""One setting for a whole federation, and how sure it is.

A recommendation is computed from what was released, which everybody may read. So it
costs no privacy. It is withheld where chance and noise explain the releases as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.random import Purpose, generator
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.space.search_space import Params
from flwr_fbo.study.kinds import load
from flwr_fbo.tuning.registry import algorithm_of
from flwr_fbo.tuning.search.settings import SearchSettings
from flwr_fbo.tuning.search.study import TuningStudy

# Chance and noise may look like a finding in so many studies.
SIGNIFICANCE = 0.05
NOTHING = "nothing was released"
BY_CHANCE = "it cannot be told from chance and noise"


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
    >>> from flwr_fbo.tuning.search.recommendation import Recommendation
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
        """Purpose of the setting, in words."""
        return "Start for new sites" if self.is_start else "Recommended for all sites"

    @property
    def evidence(self) -> str:
        """Evidence for the setting, in words; empty where nothing was released."""
        if math.isnan(self.score):
            return ""
        p = f"= {self.probability:.1g}" if self.probability >= 1e-4 else "< 0.0001"
        if self.threshold is None:
            return (
                f"score {self.score:.3g}; probability that the sites have nothing in "
                f"common {p}"
            )
        return (
            f"score {self.score:.3g}; chance and noise reach {self.threshold:.3g} in "
            f"5 % of studies; p {p}"
        )


@dataclass(frozen=True, eq=False)
class ReleasedFunction:
    """Scores of the space by the last release; public.

    Attributes
    ----------
    function : callable
        Takes points of the unit cube, shape (n, D), and returns scores, shape (n,).
    best : ndarray of shape (D,)
        Its maximiser, also where it is not recommended.
    recommendation : Recommendation
        Recommended setting, with its evidence.
    """

    function: Callable[[FloatArray], FloatArray]
    best: FloatArray
    recommendation: Recommendation


def released_function(
    study: TuningStudy, ledger: Sequence[LedgerRow]
) -> ReleasedFunction | None:
    """Return what a study's releases say of the space; None where nothing does.

    Post-processing of what the agents receive anyway.
    """
    name = algorithm_of(study.agent).released
    if not name:
        return None
    released: ReleasedFunction | None = load(name)(study, ledger)
    return released


def maximiser(
    study: TuningStudy, agent: SearchSettings, vectors: FloatArray
) -> FloatArray:
    """Return where released vectors, shape (P, M), are largest, shape (D,)."""
    from flwr_fbo.tuning.search.acquisition import maximize

    space, seed = study.space, study.feature_seed
    point = maximize(
        agent.shared_features(space.dim, seed),
        vectors,
        space,
        agent.sub_regions(space),
        generator(seed, Purpose.SEARCH),
        num_candidates=agent.num_candidates,
        num_starts=agent.num_starts,
    )
    return space.snap(point)

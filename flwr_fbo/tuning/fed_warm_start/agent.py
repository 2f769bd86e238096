"""The agent of FedWarmStart: it starts from what earlier cohorts know.

An agent of the first cohort starts at the centre of its box and searches on its own, by
expected improvement. Once in its life it sends what it believes of its objective, as
squared ranks over a public pool of points (`rank_vector`). An agent that starts after a
release takes the posterior mean h of what sites share (`shared_function`): it evaluates
h's maximiser first, and h is the mean of its own model over its first ``num_led``
evaluations (`LedPosterior`). From then on it searches as if it were alone.

*The gate.* Nothing is shared with posterior probability p0. Where p0 is above 0.18, or
h is all but flat, an agent takes no notice of the release. All draws are keyed by site
and by evaluation, so it then does what it would do alone, to the last bit.

*Settings that are given.* What the site enqueued and what the study lists comes before
h's maximiser, which takes the place of the centre. It does so, and h leads, only if the
shared function is larger there than at each given setting with a posterior probability
of 95 %. Else the agent takes no notice of the release.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from flwr_fbo._common.arrays import FloatArray, first_best, one_blas_thread
from flwr_fbo._common.random import Purpose, generator
from flwr_fbo._common.validation import require_seed
from flwr_fbo.journal.tables import TrialSource
from flwr_fbo.space.search_space import move_to_faces
from flwr_fbo.study.codec import LARGEST
from flwr_fbo.tuning.fed_warm_start.head_start import head_start
from flwr_fbo.tuning.fed_warm_start.knowledge import Knowledge
from flwr_fbo.tuning.fed_warm_start.settings import (
    Cohorts,
    FedWarmStartSettings,
    WarmStartFacts,
)
from flwr_fbo.tuning.search.own_search import LeanAgent

if TYPE_CHECKING:
    from flwr_fbo.tuning.fed_warm_start.shared_function import SharedFunction

# Of the candidates that are uniform.
_SHARE_ON_FACES = 1 / 3
# Around the best own point: how far, and how many each; then around the best candidate.
_LOCAL, _NUM_LOCAL = (0.15, 0.05, 0.02), 16
_REFINED, _NUM_REFINED = (0.05, 0.015), 24


class FedWarmStartAgent(LeanAgent):
    """One agent; see `LeanAgent` for the other parameters.

    Parameters
    ----------
    facts : WarmStartFacts, optional
        Senders of each release, and releases of earlier studies.
    """

    settings: FedWarmStartSettings

    def __init__(
        self, *args: Any, facts: WarmStartFacts | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        facts = WarmStartFacts() if facts is None else facts
        self._cohorts, self._known = facts.cohorts, facts.known

    def receive(self, vectors: FloatArray, made_after: int = 0) -> None:
        """Keep the vectors of all releases so far, shape (K, m), before any trial.

        Later ones change nothing: the agent has started.

        Raises
        ------
        ValueError
            If the shape is not that of K >= 1 releases, or an entry is not finite, or
            above 1e100.
        """
        m, shape = self.settings.num_features, np.shape(vectors)
        most = 0 if self._cohorts is None else len(self._cohorts.cohort_sizes)
        fits = len(shape) == 2 and 1 <= shape[0] <= most and shape[1] == m
        if not fits or not np.all(np.abs(vectors) <= LARGEST):
            raise ValueError(
                f"The server sent vectors of shape {shape}; expected finite ones of "
                f"shape (K, {m}), with K from 1 to {most}."
            )
        if not self.values:
            self._vectors = np.array(vectors, dtype=np.float64)

    def _start(self) -> FloatArray:
        """Return h's maximiser; without a head start the centre."""
        start = self._head_start()
        return super()._start() if start is None else self.space.snap(start.tops[0])

    def first_sources(self) -> list[TrialSource]:
        """Return where the first points come from: h's maximiser is of others."""
        sources = super().first_sources()
        is_first = len(self._enqueued) == 0 and self._head_start() is not None
        if is_first and not np.any(np.all(self._given == self._start(), axis=1)):
            sources[len(self._given)] = "federation"
        return sources

    def suggest(self, iteration: int) -> FloatArray:
        """Return where to evaluate next, shape (D,): if it was there, at random.

        By the number of trials, not by the iteration: when an agent joins changes
        nothing.
        """
        return super().suggest(len(self.values))

    @one_blas_thread
    def message(self, iteration: int) -> FloatArray:
        """Return the ranks of what it believes of the pool, shape (m,), norm 1.

        Zeros without a successful trial, and where it believes the same everywhere.
        """
        from flwr_fbo.models.matern_gp import MaternPosterior, fit
        from flwr_fbo.tuning.fed_warm_start.shared_function import rank_vector
        from flwr_fbo.tuning.search.expected_improvement import standardised

        # A function of the trials up to then: of nothing that later fits have left.
        x, y = self._observations(iteration)
        if len(y) == 0:
            return np.zeros(self.settings.num_features)
        none = np.full((1, self.space.dim + 2), np.nan)
        values = standardised(y)[None]
        model = MaternPosterior(x[None], values, fit(x[None], values, none))
        if self._known is None:
            pool = self.settings.pool(self.space, self._feature_seed)
        else:
            pool = self._known.pool
        beliefs, *_ = model.predict(pool[None])
        return rank_vector(beliefs[0])

    def _suggest(self, iteration: int) -> FloatArray:
        # All trials count, of whatever iteration.
        number, trials = iteration, self._all_trials(max(self.iterations, default=0))
        if number < self.settings.num_led:
            x = self._follow(self._released, number)
            if x is not None:
                self.sources = ["federation"]
                return x
        return self._own_query(trials, number)

    @property
    def _released(self) -> FloatArray:
        """Releases of this study's server, shape (K, m), K >= 0."""
        none = np.empty((0, self.settings.num_features))
        return none if self._vectors is None else self._vectors

    def _head_start(self) -> SharedFunction | None:
        """Return what the agent starts from; None where it is alone."""
        if self._vectors is None and self._known is None:
            return None
        cohorts = Cohorts(self.slot + 1) if self._cohorts is None else self._cohorts
        start = head_start(
            self.settings,
            cohorts,
            self.space,
            self._feature_seed,
            self._released.tobytes(),
            self._known,
        )
        is_followed = start.is_followed and start.is_above(self._given)
        return start if is_followed else None

    def _away_from_failures(self, iteration: int, number: int) -> FloatArray:
        """Return where to be after failures, shape (D,), for a trial of that number.

        While all have failed: of the draws that are not among the quarter nearest to a
        failure, the one where h is largest. The others' sites do well there, and at h's
        maximiser this one does not.
        """
        start = self._head_start()
        if start is None or self.best_value is not None:
            return super()._away_from_failures(iteration, number)
        from scipy.spatial.distance import cdist

        rng = generator(self.entropy, self.slot, iteration, number, Purpose.SEARCH)
        draws = rng.random((self.settings.num_candidates, self.space.dim))
        draws = self.space.snap_discrete(draws)
        apart = cdist(draws, self.points).min(axis=1)
        far = draws[(apart > 0) & (apart >= np.quantile(apart, 0.25))]
        if len(far) == 0:  # all of a small space has been tried
            return super()._away_from_failures(iteration, number)
        return self.space.snap(far[first_best(start(far))])

    @one_blas_thread
    def _follow(self, vectors: FloatArray, iteration: int) -> FloatArray | None:
        """Return the largest expected improvement found, with h as the mean."""
        start = self._head_start()
        if start is None:
            return None
        trials = self._all_trials(max(self.iterations, default=0))
        x, y, _ = trials
        if len(y) == 0:
            return None
        from flwr_fbo.tuning.fed_warm_start.led_gp import LedPosterior
        from flwr_fbo.tuning.search.expected_improvement import (
            log_unit_improvement,
            standardised,
        )

        rng = generator(self.entropy, self.slot, iteration, Purpose.FOLLOW)
        model = LedPosterior(x, standardised(y), start(x), rng)

        def best_of(places: FloatArray) -> FloatArray:
            mean, deviation = model.predict(places, start(places))
            z = (mean - model.best) / deviation
            score = log_unit_improvement(z)[0] + np.log(deviation)
            score[trials.near_failures(places)] = -np.inf
            return np.asarray(places[first_best(score)])

        # Candidates: of the whole cube, where h is large, and near the best.
        dim, own_best = self.space.dim, x[first_best(y)]
        uniform = rng.random((self.settings.num_candidates, dim))
        move_to_faces(uniform, _SHARE_ON_FACES, 0.5, rng)
        reaches = np.repeat(_LOCAL, _NUM_LOCAL)[:, None]
        near = own_best + reaches * rng.standard_normal((len(reaches), dim))
        is_kept = rng.random(near.shape) < 0.3
        near = np.where(is_kept, own_best, np.clip(near, 0.0, 1.0))
        candidates = np.vstack([uniform, start.tops, near])
        best = best_of(self.space.snap_discrete(candidates))
        for reach in _REFINED:
            steps = reach * rng.standard_normal((_NUM_REFINED, dim))
            near = np.vstack([best, np.clip(best + steps, 0.0, 1.0)])
            best = best_of(self.space.snap_discrete(near))
        return best


def lone_agent(known: Knowledge, entropy: int) -> FedWarmStartAgent:
    """Return the agent of one site alone, which starts from what is known.

    Raises
    ------
    ValueError
        If ``entropy``, the seed of its draws, is not an integer from 0 to 2**128 - 1.
    """
    require_seed("seed", entropy)
    settings = FedWarmStartSettings(num_features=len(known.points))
    facts = WarmStartFacts(known=known)
    return FedWarmStartAgent(
        known.space, known.direction, settings, 0, entropy, entropy, facts=facts
    )

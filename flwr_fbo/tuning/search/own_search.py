"""Agents that may follow what the server released, or else search on their own.

The own search of a `SearchAgent`, as published, is Thompson sampling on a Gaussian
process after random points (Dai, Low & Jaillet, 2020 and 2021); that of a `LeanAgent`
is expected improvement from the second evaluation on. Where either search, or the
server, leads to a setting that has been evaluated before, often a corner of the box, an
agent queries a uniform point instead: the papers leave this out, the authors' code has
it.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray, one_blas_thread
from flwr_fbo._common.random import Purpose, generator
from flwr_fbo.models.failures import Trials
from flwr_fbo.space.search_space import SearchSpace, SubRegions
from flwr_fbo.study.codec import LARGEST
from flwr_fbo.tuning.search.agent import Agent
from flwr_fbo.tuning.search.settings import Direction, SearchSettings

if TYPE_CHECKING:
    from flwr_fbo.models.features import RandomFeatures
    from flwr_fbo.models.thompson_gp import Hyperparameters

# Models are imported where one is fitted: a process that is begun for one message may
# have nothing to fit.

_log = logging.getLogger("flwr.fbo")

_FEW_RESTARTS, _MANY_RESTARTS = 2, 8
# From so many trials on the model is fitted again when a tenth more are there.
_MANY_TRIALS = 100
# Improvement has few maxima: the best candidates soon lie on the same.
_NUM_STARTS = 2


@lru_cache(maxsize=8)  # a process may be host to many agents of one study
def shared_features(
    settings: SearchSettings, dim: int, feature_seed: int
) -> RandomFeatures:
    """Return the features that all agents of a study share."""
    return settings.shared_features(dim, feature_seed)


class SearchAgent(Agent):
    """One agent; see `Agent` for the parameters it shares with all agents.

    Parameters
    ----------
    settings : SearchSettings
        Settings of all agents of the study.
    feature_seed : int
        Public seed of the features that all agents share.
    """

    settings: SearchSettings

    def __init__(
        self,
        space: SearchSpace,
        direction: Direction,
        settings: SearchSettings,
        slot: int,
        entropy: int,
        feature_seed: int,
    ) -> None:
        sub_regions = settings.sub_regions(space)
        super().__init__(
            space, direction, sub_regions, settings.num_initial, slot, entropy
        )
        self.settings = settings
        self._feature_seed = feature_seed
        self._vectors: FloatArray | None = None
        self._hyperparameters: Hyperparameters | None = None
        self._num_fitted = 0

    @cached_property
    def _shared(self) -> RandomFeatures:
        """The features that all agents share."""
        return shared_features(self.settings, self.space.dim, self._feature_seed)

    @property
    def _random_starts(self) -> bool:
        """Starts of the acquisition's ascent: see `maximize`."""
        return False

    def receive(self, vectors: FloatArray, made_after: int = 0) -> None:
        """Keep the server's vectors, shape (P, M), until newer ones come.

        Raises
        ------
        ValueError
            If the shape differs, or an entry is not finite, or above 1e100.
        """
        shape = (self.settings.num_sub_regions, self.settings.num_features)
        if vectors.shape != shape or not np.all(np.abs(vectors) <= LARGEST):
            raise ValueError(
                f"The server sent vectors of shape {vectors.shape}; "
                f"expected finite ones of shape {shape}."
            )
        self._vectors = np.asarray(vectors, dtype=np.float64)

    @abstractmethod
    def _follow(self, vectors: FloatArray, iteration: int) -> FloatArray | None:
        """Return where the server's vectors lead, or None to search alone."""

    def suggest(self, iteration: int) -> FloatArray:
        """Return where to evaluate next, shape (D,): if it was there, at random.

        No setting is tried again before all have been tried.
        """
        x = self.space.snap(self._suggest(iteration))
        if np.any(np.all(self.points == x, axis=1)):
            rng = generator(self.entropy, self.slot, iteration, Purpose.REPEATED_QUERY)
            x = self.space.new_point(rng, self.points)
            self.sources = ["own search"]
        return x

    def _suggest(self, iteration: int) -> FloatArray:
        """Return the method's choice, shape (D,), wherever it lies in the cube."""
        if self._vectors is not None:
            x = self._follow(self._vectors, iteration)
            # Where others do well this site may have seen that it fails.
            if x is not None and not self._tried.near_failures(x[None])[0]:
                self.sources = ["federation"]
                return x
        return self._own_query(self._all_trials(iteration), iteration)

    @one_blas_thread
    def _own_query(self, trials: Trials, iteration: int) -> FloatArray:
        x, y, _ = trials
        if len(y) == 0:
            return self._away_from_failures(iteration, len(self.values))
        from flwr_fbo.models.thompson_gp import sample_function

        features, weights = sample_function(
            x,
            y,
            self._fitted(x, y, iteration),
            self.settings.num_surrogate_features,
            generator(self.entropy, self.slot, iteration, Purpose.SURROGATE_FEATURES),
            generator(self.entropy, self.slot, iteration, Purpose.SURROGATE_SAMPLE),
        )
        whole = self.space.sub_regions(1)
        return self._maximize(features, weights[None, :], whole, iteration)

    def _maximize(
        self,
        features: RandomFeatures,
        weights: FloatArray,
        sub_regions: SubRegions,
        iteration: int,
    ) -> FloatArray:
        from flwr_fbo.tuning.search.acquisition import maximize

        return maximize(
            features,
            weights,
            self.space,
            sub_regions,
            generator(self.entropy, self.slot, iteration, Purpose.SEARCH),
            num_candidates=self.settings.num_candidates,
            num_starts=self.settings.num_starts,
            random_starts=self._random_starts,
        )

    def _fitted(self, x: FloatArray, y: FloatArray, iteration: int) -> Hyperparameters:
        """Return the hyperparameters, fitted again after enough new observations."""
        from flwr_fbo.models.thompson_gp import fit_hyperparameters

        num = len(y)
        # A fit of a longer history is none of this one.
        old = self._hyperparameters if num >= self._num_fitted else None
        spread, mean = float(np.std(y)), abs(float(np.mean(y)))
        # The published model neither centres nor scales.
        too_small = spread**2 < 2.0 * self.settings.noise_floor or spread < 0.01 * mean
        if old is None and np.ptp(y) > 0 and too_small:
            _log.warning(
                "agent %d: values with standard deviation %.2g around a mean of size "
                "%.2g look like noise to the model, which neither centres nor scales; "
                "scale the objective to a spread of about 0.1 to 1.",
                self.slot,
                spread,
                mean,
            )
        if old is None or self._fit_is_due(num):
            self._hyperparameters = fit_hyperparameters(
                x,
                y,
                generator(self.entropy, self.slot, iteration, Purpose.HYPERPARAMETERS),
                self.settings.noise_floor,
                _MANY_RESTARTS if old is None else _FEW_RESTARTS,
                old,
            )
            self._num_fitted = num
        assert self._hyperparameters is not None
        return self._hyperparameters

    def _fit_is_due(self, num: int) -> bool:
        # A long history changes by a trial less than its fit costs.
        share = self._num_fitted // 10 if self._num_fitted >= _MANY_TRIALS else 0
        return num >= self._num_fitted + max(self.settings.refit_every, share)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the agent's memory; no generator is part of it."""
        state = super().state_dict()
        state["num_fitted"] = np.array(self._num_fitted)
        if self._vectors is not None:
            state["vectors"] = self._vectors
        if self._hyperparameters is not None:
            h = self._hyperparameters
            state["hyperparameters"] = np.array([h.variance, h.lengthscale, h.noise])
        return state

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from what ``state_dict`` returned."""
        super().load_state_dict(state)
        self._vectors = state.get("vectors")
        fit = state.get("hyperparameters")
        self._hyperparameters = None
        if fit is not None:
            from flwr_fbo.models.thompson_gp import Hyperparameters

            self._hyperparameters = Hyperparameters(*fit.tolist())
        self._num_fitted = int(state["num_fitted"])


class LeanAgent(SearchAgent):
    """Starts at the centre, then searches by expected improvement; see `SearchAgent`.

    After the centre come ``num_initial`` - 1 uniform points. Settings that a user
    enqueued take the place of as many of them, the centre's first. Listed settings come
    between the two, and take no place.
    """

    _log_hyperparameters: FloatArray | None = None

    @property
    def num_first(self) -> int:
        """Evaluations before the first query."""
        return len(self._given) + max(self._num_initial - len(self._enqueued), 0)

    def first_points(self) -> FloatArray:
        """Return where they are, shape (num_first, D): the given ones come first."""
        rng = generator(self.entropy, self.slot, 0, Purpose.INITIAL_POINTS)
        uniform = rng.random((self._num_initial - 1, self.space.dim))
        starts = [self._start(), *map(self.space.snap, uniform)]
        points = np.array([*self._given, *starts[len(self._enqueued) :]])
        return self.space.each_once(points, len(self._given), rng)

    def _start(self) -> FloatArray:
        """Return where to begin, shape (D,)."""
        return self.space.center

    def _own_query(self, trials: Trials, iteration: int) -> FloatArray:
        if len(trials.y) == 0:
            return super()._own_query(trials, iteration)
        from flwr_fbo.tuning.search.agents_at_once import in_block
        from flwr_fbo.tuning.search.expected_improvement import Search, search_all

        num = len(trials.y)
        logs = self._log_hyperparameters if num >= self._num_fitted else None
        is_due = logs is None or self._fit_is_due(num)
        rng = generator(self.entropy, self.slot, iteration, Purpose.SEARCH)
        C = self.settings.num_candidates
        search = Search(trials, logs, is_due, self.space, rng, C, _NUM_STARTS)
        point, self._log_hyperparameters = in_block(search_all, search)
        if is_due:
            self._num_fitted = num
        return point

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the agent's memory; no generator is part of it."""
        state = super().state_dict()
        if self._log_hyperparameters is not None:
            state["log_hyperparameters"] = self._log_hyperparameters
        return state

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from what ``state_dict`` returned."""
        super().load_state_dict(state)
        self._log_hyperparameters = state.get("log_hyperparameters")

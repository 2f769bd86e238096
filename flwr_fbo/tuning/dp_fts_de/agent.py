"""The agent of DP-FTS-DE (Dai, Low & Jaillet, 2021, agent's algorithm).

In iteration t >= 1 it follows, with probability 1 - p_t, the server's vectors: it
queries the maximiser of phi(x)'omega^(i(x)). Otherwise it searches on its own. After
each iteration it can send a posterior sample of the weights of the shared features.
"""

from __future__ import annotations

import numpy as np

from flwr_fbo._common.arrays import FloatArray, one_blas_thread
from flwr_fbo._common.random import Purpose, generator
from flwr_fbo.tuning.dp_fts_de.settings import DPFTSDESettings
from flwr_fbo.tuning.search.own_search import SearchAgent


class DPFTSDEAgent(SearchAgent):
    """One agent; see `SearchAgent` for the parameters."""

    settings: DPFTSDESettings

    @property
    def _random_starts(self) -> bool:
        return self.settings.random_starts

    def _initial_box(self) -> tuple[FloatArray, FloatArray]:
        if self.settings.initial_region == "whole":
            return np.zeros(self.space.dim), np.ones(self.space.dim)
        return super()._initial_box()

    @one_blas_thread
    def message(self, iteration: int) -> FloatArray:
        """Return a posterior sample of the shared features' weights, shape (M,)."""
        from flwr_fbo.models.thompson_gp import sample_weights

        x, y = self._observations(iteration)
        rng = generator(self.entropy, self.slot, iteration, Purpose.MESSAGE)
        return sample_weights(self._shared(x), y, self.settings.regularization, rng)

    @one_blas_thread
    def _follow(self, vectors: FloatArray, iteration: int) -> FloatArray | None:
        coin = generator(self.entropy, self.slot, iteration, Purpose.FOLLOW).random()
        if coin >= self.settings.follow_probability(iteration):
            return None
        return self._maximize(self._shared, vectors, self._sub_regions, iteration)

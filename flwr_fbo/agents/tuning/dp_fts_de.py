"""The agent of FTS and DP-FTS-DE (Dai, Low & Jaillet, 2021, agent's algorithm).

In iteration t >= 1 it follows, with probability 1 - p_t, the server's vectors: it
queries the maximiser of phi(x)'omega^(i(x)). Otherwise it searches on its own. After
each iteration it can send a posterior sample of the weights of the shared features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._random import Purpose
from flwr_fbo._validation import require, require_positive
from flwr_fbo.agents.tuning.own_search import SearchAgent, SearchSettings
from flwr_fbo.models.linear import sample_weights
from flwr_fbo.models.threads import one_blas_thread

FloatArray = NDArray[np.float64]
_POWERS = {"inverse": 1.0, "inverse-sqrt": 0.5, "inverse-square": 2.0}
Follow = Literal["never", "inverse", "inverse-sqrt", "inverse-square"]


@dataclass(frozen=True)
class ThompsonSettings(SearchSettings):
    """The agent's settings; the defaults are those published for real data.

    See `SearchSettings` for the others.

    Attributes
    ----------
    num_sub_regions : int
        P, >= 1.
    lengthscale : float
        l of the shared features, in units of the cube, > 0.
    regularization : float
        lambda of the posterior behind a message, > 0.
    follow : {"inverse", "inverse-sqrt", "inverse-square", "never"}
        1 - p_t is 1/t, 1/sqrt(t), 1/t^2, or 0; if not 0, iteration 1 always follows.
    """

    num_sub_regions: int = 4
    lengthscale: float = 0.01
    regularization: float = 1e-6
    follow: Follow = "inverse"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("lengthscale", "regularization"):
            require_positive(name, getattr(self, name))
        allowed = f"one of {get_args(Follow)}"
        require(self.follow in get_args(Follow), "follow", self.follow, allowed)

    def follow_probability(self, iteration: int) -> float:
        """Return 1 - p_t for t >= 1."""
        if self.follow == "never":
            return 0.0
        return float(iteration ** -_POWERS[self.follow])

    def shared_lengthscale(self, dim: int) -> float:
        """Return l, whatever the dimension."""
        return self.lengthscale


class ThompsonAgent(SearchAgent):
    """One agent; see `SearchAgent` for the parameters."""

    settings: ThompsonSettings

    @one_blas_thread
    def message(self, iteration: int) -> FloatArray:
        """Return a posterior sample of the shared features' weights, shape (M,)."""
        x, y = self._observations(iteration)
        rng = self._generator(iteration, Purpose.MESSAGE)
        return sample_weights(self._shared(x), y, self.settings.regularization, rng)

    def _follow(self, vectors: FloatArray, iteration: int) -> FloatArray | None:
        coin = self._generator(iteration, Purpose.FOLLOW).random()
        if coin >= self.settings.follow_probability(iteration):
            return None
        return self._maximize(self._shared, vectors, self._sub_regions, iteration)

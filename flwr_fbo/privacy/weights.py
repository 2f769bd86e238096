"""Weights of the agents in each sub-region (DP-FTS-DE, section 3.3, equation 2).

phi_n^(i) is the softmax over agents of (a 1[n in i] + 1) / temperature with temperature
a / (a_t - 1): at first the agents that explored sub-region i dominate its vector, then
a_t falls to 1 and all agents count alike. Nothing here depends on data.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flwr_fbo._arrays import FloatArray
from flwr_fbo._validation import is_number, require, require_int


@dataclass(frozen=True)
class WeightSchedule:
    """How concentrated the weights are, by round.

    Attributes
    ----------
    peak : float
        a, >= 0. The schedule starts at a_t = a + 1; 0 gives uniform weights throughout.
    num_constant_rounds : int
        Rounds t = 0, 1, ... with a_t = a + 1.
    num_decay_rounds : int
        Rounds after these, in which a_t falls linearly to 1, both ends included.
    """

    peak: float = 15.0
    num_constant_rounds: int = 10
    num_decay_rounds: int = 30

    def __post_init__(self) -> None:
        ok = is_number(self.peak) and 0 <= self.peak <= 700
        require(ok, "peak", self.peak, "a number from 0 to 700")
        require_int("num_constant_rounds", self.num_constant_rounds, 0)
        require_int("num_decay_rounds", self.num_decay_rounds, 0)

    def concentration(self, iteration: int) -> float:
        """Return a_t, from a + 1 down to 1."""
        step = iteration - self.num_constant_rounds
        if step < 0:
            return self.peak + 1.0
        if step >= self.num_decay_rounds:
            return 1.0
        last = max(self.num_decay_rounds - 1, 1)
        return 1.0 + self.peak * (last - step) / last

    def weights(
        self, iteration: int, num_agents: int, num_sub_regions: int
    ) -> FloatArray:
        """Return phi of shape (N, P); each column sums to 1.

        Agent n explored sub-region n mod P.
        """
        explored = np.arange(num_agents) % num_sub_regions
        inside = explored[:, None] == np.arange(num_sub_regions)[None, :]
        # Relative to the largest weight, which would overflow.
        raw = np.exp((self.concentration(iteration) - 1.0) * (inside - 1.0))
        return np.asarray(raw / raw.sum(axis=0))

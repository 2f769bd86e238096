"""Weights of the agents in each sub-region (DP-FTS-DE, section 3.2 and appendix B).

phi_n^(i) is the softmax over agents of (a 1[n in i] + 1) / temperature with temperature
a / (a_t - 1): at first the agents that explored sub-region i dominate its vector, then
a_t falls to 1 and all agents count alike. Nothing here depends on data.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.fields import FREE, check_fields, choice, flag, integer, number
from flwr_fbo._common.validation import require

WeightForm = Literal["softmax", "linear", "squared"]

# The largest and the smallest start: exp(700) is a float, and 1 gives equal weights.
_PEAKS = {"softmax": (0, 700), "linear": (1, 1e100), "squared": (1, 1e100)}


@dataclass(frozen=True)
class WeightSchedule:
    """Concentration of the weights, by round.

    Examples
    --------
    >>> from optuna.distributions import FloatDistribution
    >>> from flwr_fbo import DPFTSDE, Privacy
    >>> from flwr_fbo.privacy import WeightSchedule
    >>> space = {"C": FloatDistribution(1e-3, 1e3, log=True)}
    >>> privacy = Privacy(weights=WeightSchedule(peak=1000.0, form="linear"))
    >>> strategy = DPFTSDE(space, "maximize", num_agents=20, privacy=privacy)

    Attributes
    ----------
    peak : float
        a. With ``"softmax"`` a is from 0 and the schedule starts at a_t = a + 1; with
        the other forms a is from 1 and it starts at a_t = a. The smallest a gives
        uniform weights throughout.
    num_constant_rounds : int
        Rounds t = 0, 1, ... with a_t as at first.
    num_decay_rounds : int
        Rounds after these, in which a_t falls linearly to 1, both ends included.
    form : {"softmax", "linear", "squared"}
        Weight of an agent that explored the sub-region, over that of another one:
        exp(a_t - 1), a_t, or a_t^2 (appendix B.2.3).
    adaptive : bool
        Whether a_t falls. False: it stays as at first (appendix B.2.5).
    """

    peak: float = field(default=15.0, metadata=number())
    # Rounds that are only compared with another round cost a site nothing.
    num_constant_rounds: int = field(default=10, metadata=integer(0, cap=FREE))
    num_decay_rounds: int = field(default=30, metadata=integer(0, cap=FREE))
    form: WeightForm = field(default="softmax", metadata=choice(WeightForm))
    adaptive: bool = field(default=True, metadata=flag())

    def __post_init__(self) -> None:
        check_fields(self)
        least, most = _PEAKS[self.form]
        expected = f"a number from {least} to {most}"
        require(least <= self.peak <= most, "peak", self.peak, expected)

    def concentration(self, iteration: int) -> float:
        """Return a_t, which falls to 1."""
        first = self.peak + 1.0 if self.form == "softmax" else self.peak
        step = iteration - self.num_constant_rounds
        if step < 0 or not self.adaptive:
            return first
        if step >= self.num_decay_rounds:
            return 1.0
        last = max(self.num_decay_rounds - 1, 1)
        return 1.0 + (first - 1.0) * (last - step) / last

    def weights(
        self, iteration: int, num_agents: int, num_sub_regions: int
    ) -> FloatArray:
        """Return phi of shape (N, P); each column sums to 1.

        Agent n explored sub-region n mod P.
        """
        # By slot, which is public: weights that depended on data would tell of it.
        explored = np.arange(num_agents) % num_sub_regions
        inside = explored[:, None] == np.arange(num_sub_regions)[None, :]
        # Weights of agents that were elsewhere, over that of those inside, which would
        # overflow by itself.
        concentration = self.concentration(iteration)
        if self.form == "softmax":
            outside = float(np.exp(1.0 - concentration))
        else:
            outside = float(concentration ** -(1 if self.form == "linear" else 2))
        raw = np.where(inside, 1.0, outside)
        return np.asarray(raw / raw.sum(axis=0))

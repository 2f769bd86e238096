r"""Confidence intervals of means, by the empirical likelihood of a log.

The log's policy learns, so decisions depend on one another. Of the true value v the
terms g_t(v) of an estimator have mean 0 given all that happened before decision t: they
are the differences of a martingale. The interval has each v with

    2 max over b of  sum_t log(1 + b g_t(v))  <=  z^2,

z the normal quantile. This is the empirical likelihood of the terms, in its dual form,
and for martingales Mykland's dual likelihood. Its level is right as the log grows if
the terms' conditional variances settle.

b is such that 1 + b g >= 0 for the terms that the log holds *and for those that it
might have held*: the largest weight together with the smallest or the largest reward.
So a log that has not seen an arm, or a reward, gives a wider interval, and none has the
width 0. An interval is in the range of rewards.

Sources
-------
- Known largest weight: N. Karampatziakis, J. Langford and P. Mineiro, "Empirical
  likelihood for contextual bandits", NeurIPS 2020, https://arxiv.org/abs/1906.03323.
- Martingales: P. A. Mykland, "Dual likelihood", Annals of Statistics 23(2), 396-421,
  1995.
- With a larger bound than z^2 the level holds for any number of decisions, at nearly
  twice the width: I. Waudby-Smith, L. Wu, A. Ramdas, N. Karampatziakis and P. Mineiro,
  "Anytime-valid off-policy inference for contextual bandits", 2022,
  https://arxiv.org/abs/2210.10768.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from flwr_fbo._common.arrays import FloatArray

# An interval that spans more than this share of the range of rewards tells too little.
MOST_OF_RANGE = 0.8
# The search for a bet ends where less than this is left to gain.
_GAP, _MOST_STEPS = 1e-9, 200
# Bets stay below what a term that is possible would lose everything with.
_SHORT_OF_ALL = 1 - 1e-9
# In place of infinity, which root finding does not take.
_IMPOSSIBLE = 1e12


@dataclass(frozen=True, eq=False)
class Terms:
    """Terms g_t(v) = score - v slope of an estimator.

    Attributes
    ----------
    scores : ndarray of shape (n,)
        What each decision adds to the estimate.
    slopes : ndarray of shape (n,)
        What it is divided by: weights, or 1. Each >= 0.
    possible : sequence of (float, float)
        Score and slope of the most extreme decisions that the log might have held.
    """

    scores: FloatArray
    slopes: FloatArray
    possible: Sequence[tuple[float, float]]

    @property
    def value(self) -> float:
        """The v at which the terms' sum is 0."""
        return float(np.sum(self.scores) / np.sum(self.slopes))

    def interval(
        self, reward_range: tuple[float, float], confidence: float
    ) -> tuple[float, float]:
        """Return the ends of the interval; NaN where it tells too little.

        Parameters
        ----------
        reward_range : (float, float)
            Smallest and largest possible reward.
        confidence : float
            Between 0 and 1.
        """
        least, most = reward_range
        if not least < most:
            return math.nan, math.nan
        bound = NormalDist().inv_cdf((1 + confidence) / 2) ** 2 / 2
        ends = [
            _crossing(self.log_ratio, self.value, end, bound)
            for end in (min(least, self.value), max(most, self.value))
        ]
        low, high = np.clip(ends, least, most)
        if not 0 < high - low <= MOST_OF_RANGE * (most - least):
            return math.nan, math.nan
        return float(low), float(high)

    def signed_root(self, v: float) -> float:
        """Return about how many standard errors the value is above v."""
        return math.copysign(math.sqrt(2 * self.log_ratio(v)), self.value - v)

    def log_ratio(self, v: float) -> float:
        """Return the maximum over b of the sum of log(1 + b g_t(v)); at most 1e12."""
        terms = self.scores - v * self.slopes
        others = [score - v * slope for score, slope in self.possible]
        least, most = min(terms.min(), *others), max(terms.max(), *others)
        scale = max(-least, most)
        if not terms.any():
            return 0.0
        if least >= 0 or most <= 0:  # no possible term makes up for those of the log
            return _IMPOSSIBLE
        terms = terms / scale
        lowest, highest = _SHORT_OF_ALL * scale / -most, _SHORT_OF_ALL * scale / -least
        bet = 0.0
        # Newton's method on a concave sum, within an interval that has the maximum.
        for _ in range(_MOST_STEPS):
            shares = terms / (1 + bet * terms)
            slope = float(np.sum(shares))
            lowest, highest = (bet, highest) if slope > 0 else (lowest, bet)
            # As the sum is concave, no more than this is left to gain.
            if abs(slope) * (highest - lowest) <= _GAP:
                break
            bet += slope / float(np.sum(shares**2))
            if not lowest < bet < highest:
                bet = (lowest + highest) / 2
        return min(float(np.sum(np.log1p(bet * terms))), _IMPOSSIBLE)


def _crossing(
    ratio: Callable[[float], float], value: float, end: float, bound: float
) -> float:
    """Return where the ratio, 0 at the value, exceeds the bound before an end."""
    from scipy.optimize import brentq

    if end == value or ratio(end) <= bound:
        return end
    # Rounding may put the value outside of what is possible.
    return float(brentq(lambda v: (ratio(v) if v != value else 0) - bound, value, end))

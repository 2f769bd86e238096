"""Means over runs, and the row of a table that has them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from flwr_fbo._common.arrays import FloatArray

# Probability with which a design should confirm an effect that is there.
POWER = 0.8


@dataclass(frozen=True)
class Estimate:
    """A mean over runs.

    Attributes
    ----------
    mean : float
        Mean over the runs.
    standard_error : float
        Standard error of the mean, over runs or groups of them; NaN from a single run.
    num_runs : int
        Number of runs.
    num_groups : int
        Number of independent ones: as many as runs, unless some share what is drawn.
    """

    mean: float
    standard_error: float
    num_runs: int
    num_groups: int

    @classmethod
    def of(cls, values: FloatArray, groups: Sequence[int] | None = None) -> Estimate:
        """Return the estimate from one value a run.

        Where runs are of more than one group, a value is the mean of a group: runs that
        share their functions say little about other functions.
        """
        num_runs = len(values)
        if groups is not None and len(set(groups)) > 1:
            of_run = np.asarray(groups)
            values = np.array([values[of_run == g].mean() for g in np.unique(of_run)])
        num = len(values)
        error = float(np.std(values, ddof=1) / math.sqrt(num)) if num > 1 else math.nan
        return cls(float(np.mean(values)), error, num_runs, num)

    def __neg__(self) -> Estimate:
        return replace(self, mean=-self.mean)

    @property
    def sign(self) -> Literal["positive", "negative", "unclear"]:
        """The sign that the 95% t interval shows, if it shows one."""
        low, high = self.interval
        if low > 0:
            return "positive"
        return "negative" if high < 0 else "unclear"

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% t interval; NaN from a single run."""
        reach = _t_quantile(0.975, self.num_groups) * self.standard_error
        return self.mean - reach, self.mean + reach

    def power(self, effect: float) -> float:
        """Return the probability that such runs' 95% t interval lies above 0.

        Parameters
        ----------
        effect : float
            True mean, > 0. The standard error is taken to be the true one.
        """
        return _power(effect / self._spread, self.num_groups)

    def detectable(self) -> float:
        """Return the effect that such runs confirm with probability `POWER`."""
        low, high = 0.0, 1.0
        while _power(high, self.num_groups) < POWER:
            low, high = high, 2 * high
        for _ in range(40):
            middle = (low + high) / 2
            enough = _power(middle, self.num_groups) >= POWER
            low, high = (low, middle) if enough else (middle, high)
        return high * self._spread

    def num_needed(self, effect: float, most: int) -> int | None:
        """Return how many groups confirm an effect > 0 with probability `POWER`.

        None if it takes more than ``most``.
        """
        size = effect / self._spread
        if _power(size, most) < POWER:
            return None
        low, high = 1, most  # `low` are too few, `high` are enough
        while high - low > 1:
            middle = (low + high) // 2
            enough = _power(size, middle) >= POWER
            low, high = (low, middle) if enough else (middle, high)
        return high

    @property
    def _spread(self) -> float:
        """The standard deviation of a group; tiny where there is none."""
        return max(self.standard_error * math.sqrt(self.num_groups), 1e-300)

    @property
    def lower_bound(self) -> float:
        """The one-sided 95% bound, by Student's t; NaN from a single run."""
        reach = _t_quantile(0.95, self.num_groups)
        return self.mean - reach * self.standard_error


def _power(size: float, num_values: int) -> float:
    """Return the power of a two-sided t test on its positive side.

    ``size`` is the effect in standard deviations of a value.
    """
    from scipy.stats import nct

    df = num_values - 1
    shift = min(size * math.sqrt(num_values), 1e3)
    return float(nct.sf(_t_quantile(0.975, num_values), df, shift))


def _t_quantile(p: float, num_values: int) -> float:
    """Return the quantile of Student's t for a mean over so many values."""
    from scipy.stats import t as student_t

    return float(student_t.ppf(p, max(num_values - 1, 1)))


@dataclass(frozen=True)
class Row:
    """One method, beside those that it is compared to on the same seeds.

    Attributes
    ----------
    method, label : str
        Name of the method, and its name in tables.
    epsilon : float
        Epsilon that the method spent; 0 or inf as in `Run`.
    estimates : dict of Estimate
        By the names of `Experiment.estimates`, without those for which there is nothing
        to compare.
    """

    method: str
    label: str
    epsilon: float
    estimates: dict[str, Estimate]

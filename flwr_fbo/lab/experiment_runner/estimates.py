"""Means over runs, and the row of a table that has them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from flwr_fbo._common.arrays import FloatArray


@dataclass(frozen=True)
class Estimate:
    """A mean over runs.

    Attributes
    ----------
    mean : float
    standard_error : float
        Of the mean, over runs; NaN from a single run.
    num_runs : int
    """

    mean: float
    standard_error: float
    num_runs: int

    @classmethod
    def of(cls, values: FloatArray) -> Estimate:
        """Return the estimate from one value a run."""
        num = len(values)
        error = float(np.std(values, ddof=1) / math.sqrt(num)) if num > 1 else math.nan
        return cls(float(np.mean(values)), error, num)

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
        reach = _t_quantile(0.975, self.num_runs) * self.standard_error
        return self.mean - reach, self.mean + reach

    @property
    def lower_bound(self) -> float:
        """The one-sided 95% bound, by Student's t; NaN from a single run."""
        reach = _t_quantile(0.95, self.num_runs)
        return self.mean - reach * self.standard_error


def _t_quantile(p: float, num_runs: int) -> float:
    """Return the quantile of Student's t for a mean over so many runs."""
    from scipy.stats import t as student_t

    return float(student_t.ppf(p, max(num_runs - 1, 1)))


@dataclass(frozen=True)
class Row:
    """One method, beside those that it is compared to on the same seeds.

    Attributes
    ----------
    method, label : str
    epsilon : float
    estimates : dict of Estimate
        By the names of `Experiment.estimates`, without those for which there is nothing
        to compare.
    """

    method: str
    label: str
    epsilon: float
    estimates: dict[str, Estimate]

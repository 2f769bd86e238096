"""Means over runs, and the row of a table that has them."""

from __future__ import annotations

import math
from collections.abc import Sequence
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

    @property
    def lower_bound(self) -> float:
        """The one-sided 95% bound, by Student's t; NaN from a single run."""
        reach = _t_quantile(0.95, self.num_groups)
        return self.mean - reach * self.standard_error


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

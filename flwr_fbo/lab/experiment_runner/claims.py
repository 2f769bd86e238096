"""Check of a paper's claims on runs: by a rule, not by eye.

A claim says that one method is better than another. With d the paired difference over
seeds, at the last step or in the mean of all, and its 95% t interval (of the scalars
sent, or of CPU seconds, where a claim is about these: fewer are better). Where a task
has several runs of each of several functions, the interval is over functions:

- *confirmed*: the interval of d lies above 0; and if the better method has a noise-only
  control (private methods, FTS), so does that of its paired difference to it, unless
  the claim is about seconds: messages of zeros take as long;
- *not told from noise-only*: d lies above 0, but the difference to noise-only does not,
  so it is not shown that the federation gains anything;
- *not confirmed*: the interval of d does not lie above 0; *the contrary* if it lies
  below;
- *no verdict*: a single seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flwr_fbo._common.validation import require
from flwr_fbo.lab.experiment_runner.base import Claim, Experiment, Run
from flwr_fbo.lab.experiment_runner.curves import common_seeds, curves_by_method
from flwr_fbo.lab.experiment_runner.estimates import Estimate


@dataclass(frozen=True)
class Finding:
    """Evidence of runs for a claim.

    Attributes
    ----------
    claim : Claim
        The claim of the paper.
    gain : Estimate
        Paired difference of the two methods, positive where the claim holds.
    over_noise_only : Estimate or None
        The same to the noise-only control; None where the better method has none.
    """

    claim: Claim
    gain: Estimate
    over_noise_only: Estimate | None

    @property
    def verdict(self) -> str:
        """By the rule of this module."""
        if self.gain.num_runs < 2:
            return "no verdict: one seed"
        if self.gain.sign == "negative":
            return "not confirmed: the contrary"
        if self.gain.sign == "unclear":
            return "not confirmed"
        control = self.over_noise_only
        if control is not None and control.sign != "positive":
            return "not told from noise-only"
        return "confirmed"


def findings(experiment: Experiment, runs: Sequence[Run]) -> list[Finding]:
    """Return what the runs say of each claim: see `finding_of`."""
    return [finding_of(claim, experiment, runs) for claim in experiment.claims]


def finding_of(claim: Claim, experiment: Experiment, runs: Sequence[Run]) -> Finding:
    """Return what the runs say of a claim, on the seeds all its methods have run.

    Raises
    ------
    ValueError
        If there is no such seed, or the claim is of steps that were not kept.
    """
    better = experiment.known_methods[claim.better]
    control = None if claim.by == "seconds" else better.noise_only
    needed = [*claim.methods, *([control] if control is not None else [])]
    of = claim.by if claim.by in ("scalars", "seconds") else "curve"
    values = curves_by_method(needed, runs, of)
    groups = [experiment.group(seed) for seed in common_seeds(needed, runs)]
    sign = -1.0 if of != "curve" or experiment.lower_is_better else 1.0
    # Steps that are not evenly spaced have no mean.
    every = claim.by != "mean" or len(np.unique(np.diff(experiment.steps))) <= 1
    expected = f"not 'mean', where not all {experiment.step}s are kept"
    require(every, "by", claim.by, expected)

    def over(other: str) -> Estimate:
        gap = sign * (values[claim.better] - values[other])
        if claim.by == "seconds":  # one number a run
            return Estimate.of(gap, groups)
        values_of = gap.mean(axis=1) if claim.by == "mean" else gap[:, -1]
        return Estimate.of(values_of, groups)

    beside = over(control) if control is not None else None
    return Finding(claim, over(claim.than), beside)

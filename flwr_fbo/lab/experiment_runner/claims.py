"""Check of a paper's claims on runs: by a rule, not by eye.

A claim says that one method is better than another. With d the paired difference over
seeds, at the last step or in the mean of all that agents chose themselves (of the
scalars sent, or of CPU seconds, where a claim is about these: fewer are better), and
its 95% t interval. Where a task has several runs of each of several functions, the
interval is over functions:

- *confirmed*: the interval of d lies above 0; and if the better method has a noise-only
  control (private methods, FTS), so does what d has beyond noise;
- *not told from noise-only*: d lies above 0, but what it has beyond noise does not, so
  it is not shown that the federation gains anything;
- *not confirmed: the contrary*: the interval of d lies below 0;
- *no room*: it contains 0, and the other method leaves nothing to gain: of all that
  its best value rises from its first evaluation to the best that any method finds, at
  most a hundredth is left for a better method;
- *not confirmed: less than the paper's*: it contains 0, but not the paper's effect;
- *undecided*: it contains 0, and none of these: see `Finding.power`;
- *no verdict*: a single seed.

What d has *beyond noise* is d less the same difference of the two noise-only controls:
a difference of differences. Where two curves share one noise-only run it cancels: noise
cannot explain d. Where only the better method has a control, it is that method's own
difference to it. Regret that is drawn on a log scale is compared there, as a ratio of
ratios: curves at 2,000,000 and at 20 differ by what no difference of them can show.
Seconds and scalars have no control: messages of zeros take as long.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.validation import require
from flwr_fbo.lab.experiment_runner.base import Claim, Experiment, Run
from flwr_fbo.lab.experiment_runner.curves import common_seeds, curves_by_method
from flwr_fbo.lab.experiment_runner.estimates import Estimate

# Share of what there is to gain that is as good as nothing.
_NO_ROOM = 0.01
# Effects that so many seeds, or functions, would not show are as good as none.
MOST_NEEDED = 1000


@dataclass(frozen=True)
class Power:
    """What runs could have shown, and what further ones would have to be.

    Attributes
    ----------
    effect : float or None
        Effect that is looked for: the paper's if it is known, else the one that was
        seen, if it has the claim's sign; None otherwise.
    value : float or None
        Probability that these runs confirm a claim with this effect.
    detectable : float
        Effect that these runs confirm with probability 0.8.
    num_needed : int or None
        Seeds, or functions, that confirm ``effect`` with probability 0.8; None for more
        than `MOST_NEEDED`.
    """

    effect: float | None
    value: float | None
    detectable: float
    num_needed: int | None


@dataclass(frozen=True)
class Finding:
    """Evidence of runs for a claim.

    Attributes
    ----------
    claim : Claim
        The claim of the paper.
    gain : Estimate
        Paired difference of the two methods, positive where the claim holds.
    beyond_noise : Estimate or None
        What the gain has beyond that of the noise-only controls; None without any, or
        where both methods share one. With ``in_logs`` of the values' logarithms.
    room : float or None
        Largest gain that there could have been, as a share of all that the other method
        could gain from its first evaluation on; None where it is not known.
    seconds : mapping of str to float
        CPU seconds that one more seed, or function, takes, by method.
    in_logs : bool
        Whether curves are compared with noise-only on a log scale.
    """

    claim: Claim
    gain: Estimate
    beyond_noise: Estimate | None
    room: float | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    in_logs: bool = False

    @property
    def verdict(self) -> str:
        """By the rule of this module."""
        effect = self.claim.effect
        if self.gain.num_runs < 2:
            return "no verdict: one seed"
        if self.gain.sign == "negative":
            return "not confirmed: the contrary"
        if self.gain.sign == "unclear":
            if self.room is not None and self.room <= _NO_ROOM:
                return "no room"
            if effect is not None and self.gain.interval[1] < effect:
                return "not confirmed: less than the paper's"
            return "undecided"
        if self.beyond_noise is not None and self.beyond_noise.sign != "positive":
            return "not told from noise-only"
        return "confirmed"

    @property
    def power(self) -> Power | None:
        """What the runs could have shown, where they leave a claim open."""
        if self.verdict not in ("undecided", "not told from noise-only"):
            return None
        both = [self.gain, *([self.beyond_noise] if self.beyond_noise else [])]
        unclear = [estimate for estimate in both if estimate.sign != "positive"]
        effect = self.claim.effect
        effects = [effect or estimate.mean for estimate in unclear]
        detectable = max(estimate.detectable() for estimate in unclear)
        if min(effects) <= 0:
            return Power(None, None, detectable, None)
        pairs = list(zip(unclear, effects, strict=True))
        value = min(estimate.power(sought) for estimate, sought in pairs)
        needed = [e.num_needed(sought, MOST_NEEDED) for e, sought in pairs]
        known = [number for number in needed if number is not None]
        most = max(known) if len(known) == len(needed) else None
        return Power(effects[0], value, detectable, most)


def findings(experiment: Experiment, runs: Sequence[Run]) -> list[Finding]:
    """Return what the runs say of each claim: see `finding_of`."""
    return [finding_of(claim, experiment, runs) for claim in experiment.claims]


def in_second_reading(claim: Claim, experiment: Experiment) -> Claim | None:
    """Return the claim of the methods by a second reading of the paper.

    None without any, or where the experiment does not have it of both methods.
    """
    known, methods = experiment.known_methods, experiment.methods
    seconds = [known[name].second_reading or name for name in claim.methods]
    is_same = tuple(seconds) == claim.methods
    if claim.first_reading_only or is_same or not {*seconds} <= {*methods}:
        return None
    better, than = seconds
    return replace(claim, better=better, than=than)


def finding_of(claim: Claim, experiment: Experiment, runs: Sequence[Run]) -> Finding:
    """Return what the runs say of a claim, on the seeds all its methods have run.

    Raises
    ------
    ValueError
        If there is no such seed, or the claim is of steps that were not kept.
    """
    of = claim.by if claim.by in ("scalars", "seconds") else "curve"
    controls = [experiment.known_methods[name].noise_only for name in claim.methods]
    control, other_control = controls
    if of != "curve" or control is None or control == other_control:
        control = other_control = None
    added = [name for name in (control, other_control) if name is not None]
    needed = list(dict.fromkeys([*claim.methods, *added]))
    values = curves_by_method(needed, runs, of)
    seeds = common_seeds(needed, runs)
    groups = [experiment.group(seed) for seed in seeds]
    sign = -1.0 if of != "curve" or experiment.lower_is_better else 1.0
    first = experiment.first_counted
    if claim.by == "mean":
        # Steps that are not evenly spaced have no mean.
        whole = len(np.unique(np.diff(experiment.steps))) <= 1
        expected = f"not 'mean', where not all {experiment.step}s are kept"
        require(whole, "by", claim.by, expected)
        expected = f"not 'mean', where all {experiment.step}s are initial points"
        require(first < len(experiment.steps), "by", claim.by, expected)

    def scored(curves: FloatArray) -> FloatArray:
        if claim.by == "seconds":  # one number a run
            return sign * curves
        return sign * (
            curves[:, first:].mean(axis=1) if claim.by == "mean" else curves[:, -1]
        )

    scores = {name: scored(values[name]) for name in needed}
    gap = scores[claim.better] - scores[claim.than]
    gain = Estimate.of(gap, groups)
    beyond = None
    if control is not None:
        if experiment.log_axes:
            scores = {name: sign * np.log(sign * s) for name, s in scores.items()}
        beyond_values = scores[claim.better] - scores[control]
        if other_control is not None:
            beyond_values += scores[other_control] - scores[claim.than]
        beyond = Estimate.of(beyond_values, groups)
    room = None
    if of == "curve" and (best := experiment.best_found(runs, seeds)) is not None:
        could_gain = sign * best - sign * values[claim.than][:, 0]
        left = sign * best - scores[claim.than]
        room = float(left.sum() / max(could_gain.sum(), 1e-300))
    took = dict.fromkeys(needed, 0.0)
    for run in runs:
        if run.method in needed and run.seed in seeds:
            took[run.method] += run.seconds / gain.num_groups
    return Finding(claim, gain, beyond, room, took, experiment.log_axes)


def hours_missing(found: Iterable[Finding]) -> float:
    """Return the CPU hours that the claims of an experiment lack, together.

    Of those that are undecided, or not told from noise-only, and whose effect at most
    `MOST_NEEDED` seeds, or functions, would show. What claims share is counted once.
    """
    missing: dict[str, float] = {}
    for finding in found:
        power = finding.power
        if power is None or power.num_needed is None:
            continue
        more = max(power.num_needed - finding.gain.num_groups, 0)
        for method, seconds in finding.seconds.items():
            missing[method] = max(missing.get(method, 0.0), more * seconds / 3600)
    return sum(missing.values())

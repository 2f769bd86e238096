"""Worth of the others' private sums to a site, planned from settings.

What a site gains by sharing is told in *points*: hundredths of the range of rewards, a
trial. A site that knows as much as e own trials tell loses

    c (d / max(e, d))^1/2

of the range in a trial, beside the best linear choice; c is 6 points. Alone it knows
t after t trials. M sites that are alike, with tau trials each at the last release, are
worth to it

    o = M tau / (1 + 8 S^2 d / (M m tau))

own trials, where S is the deviation of the total's noise on the diagonal, and m the
mean of ||x||^2; for rewards with a range of 1, and in general 8 S^2 is 2 S^2 / sigma^2
for a reward noise of sigma. The promises differ in S and in what a site knows:

- ``"own"``: t + o, by M - 1 others. Each site's noise is in the total.
- ``"released"`` with ``mechanism="blocks"``, sites that sum under one noise: o. The
  noise of each block is in the total once. As soon as o is less than what a site has
  itself, sites leave, and know t + o.
- ``"released"`` else: o, and each site's noise is in the total.

Of the gain that follows some is promised (`_OWN_SHARE` and what is beside it). These
numbers were set on ten cases, and on 18 of ``benchmarks/secure_bandits.jsonl``; and
judged on 24 others, by ``benchmarks/sharing_plans.py``, which says how often the advice
is right. Where sites differ, are late or absent, or an encoder's bounds are
much wider than the data, less is gained, or much lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.validation import require, require_int
from flwr_fbo.bandits.linear.settings import LocalData, geometric_schedule
from flwr_fbo.privacy.continual_settings import ContinualSettings
from flwr_fbo.privacy.guarantee import EXAMPLE, Guarantee

# m over L^2, of encoders with bounds that the data fill as usual.
_MEAN_SQUARE = 0.3
# c, in points.
_REGRET = 6.0
# What is promised of the gain that the formula expects. On own data a share, and points
# less: evidence has to overcome the prior on nobody. With one noise so many rewards
# less, in the range: what first totals cost that are wrong about a site. With the noise
# of each site such a share of a total's worth is used, as ellipsoids are as wide as
# the theory of that noise.
_OWN_SHARE, _OWN_COST = 0.75, 0.1
_SUMMED_COST = 2.5
_LOCAL_SHARE = 0.03
# From how many points on it pays.
LEAST_GAIN = 0.1
# Variance of one noise in a total: as a fifth of mu^2 is set aside for misfits, and a
# third of the sites may not answer.
_ONE_NOISE = 1 / 0.8 * 50 / 33
# Blocks are released early, as until then sites know nothing.
_FIRST_BLOCK = 8
_EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
_SITES = (5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)


@dataclass(frozen=True)
class SharingPlan:
    """Worth of a study to its sites, beside each of them alone.

    Examples
    --------
    >>> from flwr_fbo.bandits import ContinualSettings
    >>> from flwr_fbo.bandits.linear.sharing_plan import SharingPlan
    >>> releases = ContinualSettings(
    ...     num_releases=10, dimension=8, epsilon=4.0, delta=1e-5, reward_range=(0, 1)
    ... )
    >>> plan = SharingPlan(releases, num_agents=50, num_trials=500)
    >>> plan.pays
    True
    >>> print(f"{plan.gain:.1f} points")
    0.3 points

    Attributes
    ----------
    releases : ContinualSettings
        Settings of the releases, with a known number n of them. With
        ``mechanism="blocks"`` and ``local_data="released"`` sites sum under one noise.
    num_agents : int
        M >= 1, all alike.
    num_trials : int
        T of each, above n.
    local_data : {"own", "released"}
        Data that a site acts on: the promise that is planned.
    schedule : sequence of int, optional
        Numbers of trials after which sites synchronise: `suggested_schedule` unless
        given.
    """

    releases: ContinualSettings
    num_agents: int
    num_trials: int
    local_data: LocalData = "own"
    schedule: Sequence[int] = ()

    def __post_init__(self) -> None:
        n = self.releases.num_releases
        require(n is not None, "num_releases", n, "a number, to plan with")
        require_int("num_agents", self.num_agents, 1)
        require_int("num_trials", self.num_trials, (n or 1) + 1)
        allowed = "own", "released"
        is_allowed = self.local_data in allowed
        require(is_allowed, "local_data", self.local_data, f"one of {allowed}")

    @property
    def times(self) -> list[int]:
        """After how many trials sites synchronise."""
        if self.schedule:
            return list(self.schedule)
        n, d = self.releases.num_releases or 1, self.releases.dimension
        if not self._has_blocks:
            return suggested_schedule(self.num_trials, n, d)
        first = max(1, min(_FIRST_BLOCK, self.num_trials - n))
        return geometric_schedule(self.num_trials, n, first)

    @property
    def noise(self) -> float:
        """Noise over signal in a direction of the last total of x y."""
        return float(np.sqrt(self._variances[-1]) / self._signals[-1])

    @property
    def worth(self) -> float:
        """Number of own trials that the last total is worth to a site."""
        return float(self._worths[-1])

    @property
    def regret_alone(self) -> float:
        """Points that a site alone loses a trial, beside the best linear choice."""
        return float(self._lost(np.arange(1.0, self.num_trials + 1)).mean())

    @property
    def gain(self) -> float:
        """Points that a site gains a trial by sharing; below 0 where it loses."""
        t = np.arange(1.0, self.num_trials + 1)
        times, worths = np.array(self.times), self._worths
        last = np.searchsorted(times, t - 1, side="right") - 1
        worth = np.where(last >= 0, worths[last], 0.0)
        if self.local_data == "own":
            known = t + worth
        elif self._has_blocks:
            left = np.logical_or.accumulate(worths < times)
            known = np.where((last >= 0) & left[last], t + worth, worth)
        else:
            known = _LOCAL_SHARE * worth
        gained = float((self._lost(t) - self._lost(known)).mean())
        if self.local_data == "own":
            return _OWN_SHARE * gained - _OWN_COST
        return gained - self._has_blocks * 100 * _SUMMED_COST / self.num_trials

    @property
    def pays(self) -> bool:
        """True if a site gains at least `LEAST_GAIN` points."""
        return self.gain >= LEAST_GAIN

    @property
    def needed_epsilon(self) -> float | None:
        """The smallest of a few epsilons with which it pays, if any."""
        for epsilon in _EPSILONS:
            releases = replace(self.releases, epsilon=epsilon)
            if replace(self, releases=releases).pays:
                return epsilon
        return None

    @property
    def needed_agents(self) -> int | None:
        """The smallest of a few numbers of sites with which it pays, if any."""
        for num_agents in _SITES:
            if replace(self, num_agents=num_agents).pays:
                return num_agents
        return None

    def lines(self) -> list[str]:
        """Describe the plan, a line each."""
        epsilon, agents = self.needed_epsilon, self.needed_agents
        first = (
            f"Where all sites are alike, the last total is worth {self.worth:.0f} "
            f"trials to a site with {self.num_trials} of its own"
        )
        gains = "gain" if self.gain >= 0 else "lose"
        gain = (
            f"sites {gains} about {abs(self.gain):.1f} points; alone they lose "
            f"{self.regret_alone:.1f}"
        )
        if self.pays:
            return [first, f"It pays: {gain}"]
        needs = [
            ""
            if epsilon is None
            else Guarantee(EXAMPLE).text(epsilon, self.releases.delta),
            "" if agents is None else f"{agents:,} sites",
        ]
        needed = " or ".join(need for need in needs if need)
        return [
            first,
            f"It does not pay: {gain}. Let each site play alone"
            f"{f'; it takes {needed}' if needed else ''}",
        ]

    @property
    def _has_blocks(self) -> bool:
        return self.local_data == "released" and self.releases.mechanism == "blocks"

    @property
    def _summed(self) -> int:
        """Number of sites in the total that a site learns from."""
        return max(self.num_agents - (self.local_data == "own"), 1)

    @property
    def _signals(self) -> FloatArray:
        """Signal in a direction of each total: its eigenvalue of the Gram matrix."""
        mean_square = _MEAN_SQUARE * self.releases.max_action_norm**2
        each = mean_square / self.releases.dimension
        return np.asarray(self._summed * each * np.array(self.times))

    @property
    def _variances(self) -> FloatArray:
        """S^2 of each total."""
        numbers = np.arange(1, len(self.times) + 1)
        if self._has_blocks:
            return np.asarray(_ONE_NOISE * self.releases.noise_std**2 * numbers)
        stds = np.array([self.releases.std_by(int(k)) for k in numbers])
        return np.asarray(self._summed * stds**2)

    @property
    def _worths(self) -> FloatArray:
        """O of each total."""
        if self.num_agents == 1 and self.local_data == "own":
            return np.zeros(len(self.times))
        noise = 2 * self._variances / self.releases.max_reward**2
        trials = self._summed * np.array(self.times)
        return np.asarray(trials / (1 + noise / self._signals))

    def _lost(self, known: FloatArray) -> FloatArray:
        """Return the points that a site loses in a trial, by what it knows."""
        d = self.releases.dimension
        return np.asarray(_REGRET * np.sqrt(d / np.maximum(known, d)))


def suggested_schedule(num_trials: int, num_releases: int, dimension: int) -> list[int]:
    """Return early synchronisations: from 2 d trials on, or from a tenth of all."""
    first = max(1, min(2 * dimension, num_trials // 10, num_trials - num_releases))
    return geometric_schedule(num_trials, num_releases, first)

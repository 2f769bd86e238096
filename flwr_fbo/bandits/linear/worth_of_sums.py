"""Worth of the others' private sums to a site, planned from settings.

A site whose own trials are t has learned theta to about t^-1/2, from d trials on. Where
all M sites are alike, the others' last release, of tau trials each, is worth to it

    o = (M - 1) tau / (1 + 8 s^2 d / (m tau))

own trials, where s is the deviation of a site's release on the diagonal, and m the mean
of ||x||^2; for rewards with a range of 1, and in general 8 s^2 is 2 s^2 / sigma^2 for a
reward noise of sigma. So the share of a site's regret that is left is

    sum_t max(t + o_t, d)^-1/2 / sum_t max(t, d)^-1/2.

A quarter of what that saves is promised: it was chosen on six tables of
``benchmarks/classified_bandits.py``, and held in 11 of 12 cases at epsilon 4 and 8
before ridges were averaged over (`flwr_fbo.bandits.linear.own_data`), which makes a
site alone better. Where sites differ, are late or absent, less is saved, or nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.validation import require, require_int
from flwr_fbo.bandits.linear.settings import geometric_schedule
from flwr_fbo.privacy.continual_settings import ContinualSettings
from flwr_fbo.privacy.guarantee import EXAMPLE, Guarantee

# m over L^2, of encoders with bounds that the data fill as usual.
_MEAN_SQUARE = 0.3
# What is promised of the savings that the formula expects, and from when on it pays.
_PROMISED, LEAST_SAVING = 0.25, 0.02
_EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
_SITES = (5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)


@dataclass(frozen=True)
class SharingPlan:
    """Worth of a study of sites that act on their own data, to each of them.

    Examples
    --------
    >>> from flwr_fbo.bandits import ContinualSettings
    >>> from flwr_fbo.bandits.linear.worth_of_sums import SharingPlan
    >>> releases = ContinualSettings(
    ...     num_releases=10, dimension=8, epsilon=4.0, delta=1e-5, reward_range=(0, 1)
    ... )
    >>> plan = SharingPlan(releases, num_agents=50, num_trials=500)
    >>> plan.pays
    True

    Attributes
    ----------
    releases : ContinualSettings
        Settings of the releases, with a known number n of them.
    num_agents : int
        M >= 1, all alike.
    num_trials : int
        T of each, above n.
    schedule : sequence of int, optional
        Numbers of trials after which sites synchronise: `suggested_schedule` unless
        given.
    """

    releases: ContinualSettings
    num_agents: int
    num_trials: int
    schedule: Sequence[int] = ()

    def __post_init__(self) -> None:
        n = self.releases.num_releases
        require(n is not None, "num_releases", n, "a number, to plan with")
        require_int("num_agents", self.num_agents, 1)
        require_int("num_trials", self.num_trials, (n or 1) + 1)

    @property
    def times(self) -> list[int]:
        """After how many trials sites synchronise."""
        return list(self.schedule) or suggested_schedule(
            self.num_trials, self.releases.num_releases or 1, self.releases.dimension
        )

    @property
    def noise(self) -> float:
        """Noise over signal in a direction of the others' last sum of x y."""
        signal = self._mean_square * self.times[-1] / self.releases.dimension
        std = self.releases.std_by(len(self.times))
        return float(std / (signal * np.sqrt(max(self.num_agents - 1, 1))))

    @property
    def worth(self) -> float:
        """Number of own trials that the others' last release is worth to a site."""
        return float(self._worth(np.array([float(self.num_trials)]))[0])

    @property
    def promised_saving(self) -> float:
        """The share of its regret alone that a site saves, at least: in [0, 1]."""
        t = np.arange(1.0, self.num_trials + 1)
        least = self.releases.dimension
        left = np.maximum(t + self._worth(t), least) ** -0.5
        alone = np.maximum(t, least) ** -0.5
        return float(_PROMISED * (1 - left.sum() / alone.sum()))

    @property
    def pays(self) -> bool:
        """True if the plan saves at least a fiftieth of the regret."""
        return self.promised_saving >= LEAST_SAVING

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
        saved = f"{100 * self.promised_saving:.0f} %"
        first = (
            f"Where all sites are alike, the others' last sums are worth "
            f"{self.worth:.0f} trials to a site with {self.num_trials} of its own"
        )
        if self.pays:
            return [first, f"At least {saved} less regret than alone"]
        needs = [
            ""
            if epsilon is None
            else Guarantee(EXAMPLE).text(epsilon, self.releases.delta),
            "" if agents is None else f"{agents:,} sites",
        ]
        needed = " or ".join(need for need in needs if need)
        return [
            first,
            f"{saved} less regret than alone, which is not worth its epsilon. Let each "
            f"site play alone{f'; it takes {needed}' if needed else ''}",
        ]

    @property
    def _mean_square(self) -> float:
        return _MEAN_SQUARE * self.releases.max_action_norm**2

    def _worth(self, trials: FloatArray) -> FloatArray:
        """Return o after so many trials."""
        times, n = np.array(self.times), len(self.times)
        stds = np.array([self.releases.std_by(k) for k in range(1, n + 1)])
        last = np.searchsorted(times, trials - 1, side="right") - 1
        tau = np.where(last >= 0, times[last], 0.0)
        d, variance = self.releases.dimension, self.releases.max_reward**2
        noise = 2 * stds[last] ** 2 / variance * d / self._mean_square
        return np.asarray((self.num_agents - 1) * tau**2 / np.maximum(tau + noise, 1))


def suggested_schedule(num_trials: int, num_releases: int, dimension: int) -> list[int]:
    """Return early synchronisations: from 2 d trials on, or from a tenth of all."""
    first = max(1, min(2 * dimension, num_trials // 10, num_trials - num_releases))
    return geometric_schedule(num_trials, num_releases, first)

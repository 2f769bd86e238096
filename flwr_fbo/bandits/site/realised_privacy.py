"""Realised epsilon of a site that acts on its own trials: an estimate, for the site.

With ``local_data="own"`` or ``"raw"`` epsilon is for a finished table. In a running
site a patient's outcome steers later actions, which are in later releases. This module
estimates what the site's releases then tell about one outcome. It draws patients of the
site, replaces the outcome of each by the end of the rewards' range that is farther
away, and plays all later decisions again, with the agent's own code: the same contexts,
the same totals, the same chance. The released sums then differ by matrices D_k, and the
releases are a Gaussian mechanism of

    mu = || B^-1 (D_1, .., D_n) ||_F / sigma,

where B has the weights of the noise (`flwr_fbo.privacy.factorisation`).

*It is an estimate, not a guarantee.*

- What another action would have given is not known. It is what the site's own model
  expects, and the model's error at another trial of the site. Where an action stays as
  it was, so does its reward.
- Only outcomes of drawn patients are replaced, not their contexts and actions, and no
  worst case is looked for. Some patients may have a larger epsilon.
- The other sites' messages stay as they were: the figure is for one transcript.
- Decisions to which the study's exploration gives no probability stay as they were.
  Floors, baselines and ``explore=False`` are not on record: other decisions are played
  again by exploration alone.

Beside the truth of four simulated tables, its median is right within a factor of 1.5,
and it is too large at 90 % (``benchmarks/realised_epsilon.py``).

*Formal guarantees.* None; it depends on the site's raw trials, stays in the site's
journal and is never sent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.text import counted
from flwr_fbo._common.validation import require, require_int
from flwr_fbo.bandits.linear.agent import LinearUCBAgent, OwnPart
from flwr_fbo.bandits.linear.confidence import Confidence
from flwr_fbo.bandits.linear.prior import Prior
from flwr_fbo.bandits.site.decision import Decision
from flwr_fbo.privacy.continual_settings import ContinualSettings
from flwr_fbo.privacy.gaussian import gaussian_epsilon
from flwr_fbo.privacy.guarantee import EXAMPLE, Guarantee

MOST_PATIENTS = 1000
# The matrix of the noise's weights has as many rows.
_MOST_RELEASES = 4096

# Of a decision's number and the index of an action: what that would have given.
RewardOf = Callable[[int, int], float]


@dataclass(frozen=True)
class RealisedPrivacy:
    """Estimated epsilon of one patient's outcome in a site that plays on.

    Examples
    --------
    >>> from flwr_fbo.bandits import RealisedPrivacy
    >>> found = RealisedPrivacy(
    ...     epsilon=4.0, delta=1e-5, epsilons=(1.5, 2.0, 2.5), num_releases=10,
    ...     num_trials=500, num_kept=0,
    ... )
    >>> found.median
    2.0
    >>> print(found)  # doctest: +ELLIPSIS
    epsilon 2 per example (...) in the median, 2.4 at 90 % of 3 outcomes: an estimate...

    Attributes
    ----------
    epsilon, delta : float
        The study's promise.
    epsilons : tuple of float
        Realised epsilon of each outcome that was replaced, at ``delta``. Empty where
        sites act on released sums only: then the promise covers what follows.
    num_releases : int
        Releases that it is about.
    num_trials : int
        Decisions of the site that are on record.
    num_kept : int
        Decisions that were not played again, as the exploration does not explain them.
    """

    epsilon: float
    delta: float
    epsilons: tuple[float, ...]
    num_releases: int
    num_trials: int
    num_kept: int

    @property
    def median(self) -> float:
        """Median over the outcomes; the promise where there are none."""
        return self._quantile(0.5)

    @property
    def high(self) -> float:
        """The epsilon that 90 % of the outcomes do not exceed."""
        return self._quantile(0.9)

    def __post_init__(self) -> None:
        # Of a journal it is a list.
        object.__setattr__(self, "epsilons", tuple(self.epsilons))

    def _quantile(self, share: float) -> float:
        if not self.epsilons:
            return self.epsilon
        return float(np.quantile(self.epsilons, share))

    def __str__(self) -> str:
        """Return it as a line of text."""
        if not self.epsilons:
            promised = Guarantee(EXAMPLE).text(self.epsilon, self.delta)
            return f"{promised}: it covers what follows, too"
        text = (
            f"epsilon {self.median:.3g} {EXAMPLE.terms(self.delta)} in the median, "
            f"{self.high:.3g} at 90 % of {counted(len(self.epsilons), 'outcome')}: an "
            "estimate, not a guarantee"
        )
        if self.num_kept:
            text += f" ({counted(self.num_kept, 'decision')} taken as given)"
        return text


class HeardTotal(NamedTuple):
    """A total that a site has received, and when.

    Attributes
    ----------
    after : int
        Number of decisions that were made before.
    total, message : ndarray of shape (d + 1, d + 1)
        The total, and the site's own release in it.
    included : int
        Own releases in it.
    num_others : int
        Other agents with a release in it.
    num_synchronisations : int
        Synchronisations that have made it.
    """

    after: int
    total: FloatArray
    message: FloatArray
    included: int
    num_others: int
    num_synchronisations: int


class Told(NamedTuple):
    """A reward, or a log of many, that the site has learned from.

    Attributes
    ----------
    time : float
        Unix time.
    window : int
        Number of releases that had been made.
    total : ndarray of shape (d + 1, d + 1)
        What it adds to the running sum.
    num_trials : int
        Number of trials.
    decision : int, optional
        Number of the decision; None of a log.
    """

    time: float
    window: int
    total: FloatArray
    num_trials: int
    decision: int | None = None


@dataclass(frozen=True, eq=False)
class PlayedStream:
    """All that a site has decided, received and learned, in its order.

    Attributes
    ----------
    confidence : Confidence
        Settings and confidence set of the site's study.
    prior : Prior
        What the site was told before.
    decisions : sequence of Decision
        All decisions, numbered from 0.
    told : sequence of Told
        All rewards and logs, by time.
    totals : sequence of HeardTotal
        All totals received, in order.
    num_releases : int
        Releases that the site has made.
    """

    confidence: Confidence
    prior: Prior
    decisions: Sequence[Decision]
    told: Sequence[Told]
    totals: Sequence[HeardTotal]
    num_releases: int

    @property
    def releases(self) -> ContinualSettings:
        """Settings of the releases."""
        return self.confidence.settings.releases

    def windows_of(self, release: int) -> slice:
        """Return the windows between releases whose trials are in release k."""
        width = self.releases.sliding_window or release
        return slice(max(0, release - width), release)

    def realised(
        self, num_patients: int, seed: int | None, reward_of: RewardOf | None = None
    ) -> RealisedPrivacy:
        """Return what some patients' outcomes would have changed, as an epsilon.

        Parameters
        ----------
        num_patients : int
            Outcomes to replace, from 1 to 1000; all if there are fewer.
        seed : int, optional
            Seed of which outcomes are drawn, and of rewards that are not known.
        reward_of : callable, optional
            What an action would have given, where that is known: in a simulation.
            `ModelledRewards` unless given.
        """
        require_int("num_patients", num_patients, 1, MOST_PATIENTS)
        settings, n = self.confidence.settings, self.num_releases
        releases = settings.releases
        require(1 <= n <= _MOST_RELEASES, "num_releases", n, f"1 to {_MOST_RELEASES}")
        if not settings.fixed_rows or releases.noise_std == 0:
            facts = (releases.epsilon, releases.delta, (), n, len(self.decisions), 0)
            return RealisedPrivacy(*facts)
        rng = np.random.default_rng(seed)
        chance = rng.random(len(self.decisions))
        released = [
            one.decision
            for one in self.told
            if one.decision is not None and one.window < n
        ]
        allowed = "one reward at least in a release"
        require(bool(released), "num_rewards", len(released), allowed)
        count = min(num_patients, len(released))
        drawn = rng.choice(np.array(released), count, replace=False)
        rewards = reward_of or ModelledRewards(self, rng)
        as_it_was = _Replay(self, chance, rewards)
        as_it_was.play(None, [])
        before = as_it_was.probabilities
        epsilons = []
        for patient in sorted(drawn.tolist()):
            replay = _Replay(self, chance, rewards)
            replay.play(patient, before)
            mu = mu_of(releases, replay.differences)
            epsilons.append(gaussian_epsilon(releases.delta, mu) if mu > 0 else 0.0)
        kept = sum(
            bool(row[decision.chosen] == 0)
            for row, decision in zip(before, self.decisions, strict=True)
        )
        return RealisedPrivacy(
            epsilon=releases.epsilon,
            delta=releases.delta,
            epsilons=tuple(epsilons),
            num_releases=n,
            num_trials=len(self.decisions),
            num_kept=kept,
        )


def mu_of(releases: ContinualSettings, differences: FloatArray) -> float:
    """Return the mu of releases whose clean sums differ by D_k.

    Parameters
    ----------
    releases : ContinualSettings
        Settings of the releases, with noise.
    differences : ndarray of shape (n, d + 1, d + 1)
        D_1 to D_n.
    """
    n = len(differences)
    weights = np.zeros((n, n))
    for k in range(n):
        weights[k, : k + 1] = releases.factorisation.row(k + 1)
    # Each draw is isotropic in the Frobenius norm.
    steps = solve_triangular(weights, differences.reshape(n, -1), lower=True)
    return float(np.linalg.norm(steps)) / releases.noise_std


class ModelledRewards:
    """What other actions would have given, by the site's model and its errors.

    The same action of the same decision gives the same in every replay.

    Parameters
    ----------
    stream : PlayedStream
        What the site has played.
    rng : numpy.random.Generator
        Source of the errors that are drawn.
    """

    def __init__(self, stream: PlayedStream, rng: np.random.Generator) -> None:
        self._stream, replay = stream, _Replay(stream, np.zeros(0), _unknown)
        replay.tell_all()
        self._theta = replay.agent.estimate
        known = [one for one in stream.decisions if not math.isnan(one.reward)]
        errors = [one.reward - self._expected(one, one.chosen) for one in known]
        self._errors = rng.choice(np.array(errors), len(stream.decisions))

    def _expected(self, decision: Decision, index: int) -> float:
        middle = self._stream.releases.reward_middle
        return middle + float(decision.features[index] @ self._theta)

    def __call__(self, number: int, index: int) -> float:
        """Return the reward of an action, within the range."""
        expected = self._expected(self._stream.decisions[number], index)
        low, high = self._stream.releases.reward_range
        return min(max(expected + float(self._errors[number]), low), high)


def _unknown(number: int, index: int) -> float:
    raise AssertionError("no action is another one")


class _Replay:
    """One play of a site's decisions, with one outcome replaced, or none.

    Attributes
    ----------
    probabilities : list of ndarray of shape (K,)
        Of each decision that was played: those of its actions.
    """

    def __init__(
        self, stream: PlayedStream, chance: FloatArray, reward_of: RewardOf
    ) -> None:
        self._stream, self._chance, self._reward_of = stream, chance, reward_of
        size = stream.releases.dimension + 1
        # Sums of the site's trials, by window, as far as it has learned them.
        self._sums = np.zeros((stream.num_releases + 1, size, size))
        self._counts = np.zeros(stream.num_releases + 1, dtype=np.int64)
        self._clean = self._sums.copy()  # as they were in truth
        self._others: dict[int, tuple[int, float]] = {}
        self._next = 0
        self.probabilities: list[FloatArray] = []
        self._hear(None)

    def play(self, patient: int | None, before: Sequence[FloatArray]) -> None:
        """Play all decisions again.

        Parameters
        ----------
        patient : int, optional
            Number of the decision whose reward is replaced.
        before : sequence of ndarray
            Probabilities of each decision as it was, where a reward is replaced.
        """
        stream, totals = self._stream, self._totals_by_decision()
        for number, decision in enumerate(stream.decisions):
            self._tell_until(decision.time)
            for total in totals.get(number, []):
                self._hear(total)
            if patient is None:
                self.probabilities.append(self._probabilities(decision))
            elif number == patient:
                low, high = stream.releases.reward_range
                is_low = decision.reward - low <= high - decision.reward
                self._others[number] = (decision.chosen, high if is_low else low)
            elif number > patient and before[number][decision.chosen] > 0:
                now = self._probabilities(decision)
                u = float(self._chance[number])
                index = _by_the_same_chance(before[number], decision.chosen, now, u)
                if index != decision.chosen:
                    self._others[number] = (index, self._reward_of(number, index))
        self.tell_all()

    def tell_all(self) -> None:
        """Have the site learn all that it has not yet."""
        self._tell_until(math.inf)

    @property
    def differences(self) -> FloatArray:
        """Differences of the clean sums of all releases, shape (n, d + 1, d + 1)."""
        stream, by_window = self._stream, self._sums - self._clean
        numbers = range(1, stream.num_releases + 1)
        sums = [by_window[stream.windows_of(k)].sum(axis=0) for k in numbers]
        return np.array(sums)

    def _totals_by_decision(self) -> dict[int, list[HeardTotal]]:
        found: dict[int, list[HeardTotal]] = {}
        for total in self._stream.totals:
            found.setdefault(total.after, []).append(total)
        return found

    def _probabilities(self, decision: Decision) -> FloatArray:
        # The same draws in every replay.
        rng = np.random.default_rng([1, decision.number])
        [row] = self.agent.probabilities_many(decision.features[None], [rng])
        return np.asarray(row)

    def _tell_until(self, time: float) -> None:
        told, releases = self._stream.told, self._stream.releases
        while self._next < len(told) and told[self._next].time <= time:
            one = told[self._next]
            total, self._next = one.total, self._next + 1
            self._clean[one.window] += total
            if one.decision in self._others:
                index, reward = self._others[one.decision]
                action = self._stream.decisions[one.decision].features[index]
                [total] = releases.outer_products([action], [reward])
            self._sums[one.window] += total
            self._counts[one.window] += one.num_trials
            self.agent.tell_sum(total, one.num_trials)

    def _hear(self, heard: HeardTotal | None) -> None:
        """Make the agent of a total, and tell it the trials that are not in it."""
        stream = self._stream
        if heard is None:
            self.agent = LinearUCBAgent(stream.confidence, prior=stream.prior)
            return
        included = min(heard.included, stream.num_releases)
        some = stream.windows_of(included)
        clean, count = self._sums[some].sum(axis=0), int(self._counts[some].sum())
        # The messages stay as they were: what they are worth is what was released.
        part = OwnPart(heard.message if included else clean, clean, count)
        self.agent = LinearUCBAgent(
            stream.confidence.after(heard.num_synchronisations),
            heard.total,
            part,
            heard.num_others,
            stream.prior,
            num_synchronisations=heard.num_synchronisations,
        )
        since = self._counts[included:].sum()
        if since:
            self.agent.tell_sum(self._sums[included:].sum(axis=0), int(since))


def _by_the_same_chance(
    before: FloatArray, chosen: int, now: FloatArray, u: float
) -> int:
    """Return the action that the draw which chose ``chosen`` would choose now.

    As `flwr_fbo.bandits.linear.exploration.drawn` draws; ``u`` says where in the
    interval of the chosen action the draw was.
    """
    sums = np.cumsum(before)
    point = (sums[chosen] - (1 - u) * before[chosen]) / sums[-1]
    sums = np.cumsum(now)
    index = int(np.searchsorted(sums / sums[-1], point, side="right"))
    return min(index, int(np.flatnonzero(now > 0)[-1]))

"""How much a release gives away at least, measured on its own outputs.

`audit` is of one release of vectors; `flwr_fbo.audit.bandit_audit` is of a running
bandit's matrices, with the same `bound_epsilon`.

One agent, the *canary*, sends a message ten times as long as the clip allows, or no
message; the others answer zeros. From many independent releases of either kind a test
is made that guesses which it was, fixed on one half of the draws and counted on the
other. Under (epsilon, delta) its rates obey TPR <= exp(epsilon) FPR + delta, so they
bound epsilon from below (Jagielski, Ullman & Oprea, 2020). A lower bound above what
the accountant promises is a fault of the mechanism, not bad luck.

The mechanism runs as it is: clip, weights, divisor, mask, noise, empty samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from flwr_fbo._arrays import FloatArray
from flwr_fbo._random import Purpose, generator
from flwr_fbo._validation import require, require_choice, require_int, require_positive
from flwr_fbo.privacy.accounting import PrivacySpent, ReleaseAccountant
from flwr_fbo.privacy.budget import check_delta
from flwr_fbo.privacy.noise import Entropy, SeededEntropy
from flwr_fbo.privacy.release import Release, ReleaseSettings

IntArray = NDArray[np.int64]
Absence = Literal["missing", "zeros"]

# How likely each of the two Clopper-Pearson bounds is to be wrong.
_RISK = 1e-3
# The same while the test is chosen: with some 2,000 to choose from, a bound that is
# wrong once in 1,000 would prefer rare events that were lucky.
_CHOICE_RISK = 1e-6
# Draws of either kind below which nothing can be shown.
MIN_DRAWS = 1000
_LOUDNESS = 10.0
_CHUNK = 1000
_STATISTICS = ("projection", "distance")


class StreamEntropy(SeededEntropy):
    """Mask and noise from seeded streams: fast, repeatable, *not private*.

    `SeededEntropy` gives the same noise again for the same round; an audit needs many
    draws of one round.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._streams = {purpose: generator(seed, purpose) for purpose in Purpose}

    def _rng(self, iteration: int, purpose: Purpose) -> np.random.Generator:
        return self._streams[purpose]


@dataclass(frozen=True)
class AuditPlan:
    """What is audited, and how thoroughly.

    Attributes
    ----------
    settings : ReleaseSettings
        With a noise multiplier > 0, and Poisson sampling: a canary that is absent is
        no neighbour under the other's relation.
    delta : float
        In (0, 1): where epsilon is compared.
    num_draws : int
        Releases with the canary, and as many without, >= 1000. Half of each fixes the
        test, the other half counts.
    iteration : int
        t >= 0, which decides the weights.
    num_features : int
        M >= 1.
    absence : {"missing", "zeros"}
        How the canary is absent. The release promises that a missing message counts as
        zero, so the guarantee covers both; ``"missing"`` also shows whether noise or
        divisor depend on who answered.
    """

    settings: ReleaseSettings
    delta: float
    num_draws: int = 200_000
    iteration: int = 0
    num_features: int = 1
    absence: Absence = "missing"

    def __post_init__(self) -> None:
        require_positive("noise_multiplier", self.settings.noise_multiplier)
        sampling = self.settings.sampling
        require(sampling == "poisson", "sampling", sampling, "'poisson'")
        check_delta(self.delta)
        require_int("num_draws", self.num_draws, MIN_DRAWS)
        require_int("iteration", self.iteration, 0)
        require_int("num_features", self.num_features, 1)
        require_choice("absence", self.absence, Absence)


@dataclass(frozen=True)
class AuditTest:
    """A guess whether the canary took part: ``sign * statistic >= threshold``.

    Attributes
    ----------
    statistic : str
        Of one release: ``"projection"`` or ``"distance"``, both in standard deviations
        of the noise that belongs there. Projection: on the canary's direction, over the
        P vectors together. Distance: from the release without canary and noise.
    sign : {1, -1}
    threshold : float
    guesses_present : bool
        Whether it guesses the canary's presence, or its absence.
    """

    statistic: str
    sign: int
    threshold: float
    guesses_present: bool

    def __str__(self) -> str:
        relation = ">=" if self.sign > 0 else "<="
        guess = "present" if self.guesses_present else "absent"
        limit = self.sign * self.threshold
        return f"{guess} if the {self.statistic} is {relation} {limit:.3f}"

    def count(self, values: FloatArray) -> int:
        """Return how many values of its statistic, shape (K,), it says yes to."""
        return int(np.count_nonzero(self.sign * values >= self.threshold))


@dataclass(frozen=True)
class EpsilonBound:
    """What the draws show.

    Attributes
    ----------
    epsilon_lower : float
        Epsilon is at least this, with 99.8 % confidence.
    test : AuditTest
    true_positives, false_positives : int
        Of ``num_counted`` draws each.
    num_counted : int
    """

    epsilon_lower: float
    test: AuditTest
    true_positives: int
    false_positives: int
    num_counted: int


@dataclass(frozen=True)
class AuditResult(EpsilonBound):
    """What an audit found.

    Attributes
    ----------
    plan : AuditPlan
    canary : int
        The slot of the agent that a release can give away most of.
    promised : PrivacySpent
        Epsilon of one release, by the accountant.
    """

    plan: AuditPlan
    canary: int
    promised: PrivacySpent

    @property
    def violated(self) -> bool:
        """Whether the lower bound exceeds what the accountant promised."""
        return self.epsilon_lower > self.promised.epsilon

    @property
    def verdict(self) -> str:
        """Say it in words."""
        if self.violated:
            return "VIOLATION: lower bound exceeds the accountant's"
        return "no violation"


def audit(
    plan: AuditPlan,
    entropy: Entropy,
    build: Callable[[ReleaseSettings, Entropy], Release] = Release,
    progress: Callable[[int], object] = lambda _: None,
) -> AuditResult:
    """Bound epsilon of one release from below, and compare it with the accountant's.

    Parameters
    ----------
    plan : AuditPlan
    entropy : Entropy
        The real one (`OsEntropy`), or a `StreamEntropy` where speed matters more.
    build : callable
        Makes the mechanism. What is promised, and where the canary stands, is computed
        from ``plan.settings`` alone: a mechanism is not asked about itself.
    progress : callable
        Told the number of draws made since it was told last.

    Returns
    -------
    AuditResult
    """
    canary = _Canary(plan)
    mechanism = build(plan.settings, entropy)
    present, absent = (
        np.concatenate([*_draw(plan, mechanism, canary, messages, progress)])
        for messages in (canary.present, canary.absent)
    )
    bound = bound_epsilon(present, absent, _STATISTICS, plan.delta)
    promised = canary.promised
    return AuditResult(**vars(bound), plan=plan, canary=canary.slot, promised=promised)


def bound_epsilon(
    present: FloatArray, absent: FloatArray, statistics: Sequence[str], delta: float
) -> EpsilonBound:
    """Bound epsilon from below by how well two kinds of draws can be told apart.

    Parameters
    ----------
    present, absent : ndarray of shape (K, S)
        S statistics of K independent draws of either kind. The first half fixes the
        test, the other counts. A NaN answers no to every test, though it may give
        everything away: put infinity in its place.
    statistics : sequence of str
        Their S names.
    delta : float
        Where epsilon is compared.
    """
    half = len(present) // 2
    test = _choose_test(present[:half], absent[:half], statistics, delta)
    column = statistics.index(test.statistic)
    yes = test.count(present[half:, column]), test.count(absent[half:, column])
    hits, false_alarms = yes if test.guesses_present else yes[::-1]
    counted = len(present) - half
    lower = _epsilon_lower(
        np.array([hits]), np.array([false_alarms]), counted, delta, _RISK
    )
    return EpsilonBound(float(lower[0]), test, hits, false_alarms, counted)


class _Canary:
    """Who it is, what it sends and is promised, and where it would be seen."""

    def __init__(self, plan: AuditPlan) -> None:
        s = plan.settings
        correct = Release(s, StreamEntropy(0))
        accountant = ReleaseAccountant(s.subsampling, plan.delta)
        accountant.charge(correct.effective_noise_multiplier(plan.iteration))
        self.promised = accountant.spent()
        self._std = correct.noise_std(plan.iteration)
        seen = correct.weights(plan.iteration) / self._std
        reach = np.linalg.norm(seen, axis=1)
        self.slot = int(reach.argmax())
        direction = np.full(plan.num_features, 1.0 / math.sqrt(plan.num_features))
        # Likelihood ratio of Gaussians: each vector counts by signal over noise.
        self._template = np.outer(seen[self.slot] / reach[self.slot], direction)
        silent = dict.fromkeys(range(s.num_agents), np.zeros(plan.num_features))
        self.present = {**silent, self.slot: _LOUDNESS * s.message_norm * direction}
        self.absent = dict(silent)
        if plan.absence == "missing":
            del self.absent[self.slot]

    def statistics(self, releases: FloatArray) -> FloatArray:
        """Return projection and distance of ``releases``, shape (K, P, M): (K, 2)."""
        units = releases / self._std[:, None]
        projection = np.tensordot(units, self._template, axes=2)
        distance = np.sqrt(np.square(units).sum(axis=(1, 2)))
        both = np.column_stack([projection, distance])
        return np.where(np.isnan(both), np.inf, both)


def _draw(
    plan: AuditPlan,
    mechanism: Release,
    canary: _Canary,
    messages: Mapping[int, FloatArray],
    progress: Callable[[int], object],
) -> Iterator[FloatArray]:
    """Yield the statistics of ``num_draws`` releases, in chunks that fit in memory."""
    for start in range(0, plan.num_draws, _CHUNK):
        size = min(_CHUNK, plan.num_draws - start)
        releases = [
            mechanism.release(plan.iteration, messages, plan.num_features)
            for _ in range(size)
        ]
        yield canary.statistics(np.array(releases))
        progress(size)


def _choose_test(
    present: FloatArray, absent: FloatArray, statistics: Sequence[str], delta: float
) -> AuditTest:
    """Return the test that gives the largest, cautious bound on these draws."""
    best, chosen = -1.0, None
    num_draws = len(present)
    # Denser towards the rare events, where the ratio of the rates is largest.
    ranks = np.unique(np.geomspace(1, 2 * num_draws, 300).astype(int)) - 1
    for column, statistic in enumerate(statistics):
        for sign in (1, -1):
            one, other = (np.sort(sign * d[:, column]) for d in (present, absent))
            thresholds = np.sort(np.concatenate([one, other]))[::-1][ranks]
            counts = [num_draws - np.searchsorted(d, thresholds) for d in (one, other)]
            for guesses_present in (True, False):
                hits, false_alarms = counts if guesses_present else counts[::-1]
                bounds = _epsilon_lower(
                    hits, false_alarms, num_draws, delta, _CHOICE_RISK
                )
                at = int(bounds.argmax())
                if bounds[at] > best:
                    best = float(bounds[at])
                    threshold = float(thresholds[at])
                    chosen = AuditTest(statistic, sign, threshold, guesses_present)
    assert chosen is not None
    return chosen


def _epsilon_lower(
    hits: IntArray,
    false_alarms: IntArray,
    num_draws: int,
    delta: float,
    risk: float,
) -> FloatArray:
    """Return log((TPR - delta) / FPR) with both rates at their Clopper-Pearson bounds.

    Each of the two bounds fails with probability ``risk`` at most.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        lowest = beta.ppf(risk, hits, num_draws - hits + 1)
        highest = beta.ppf(1 - risk, false_alarms + 1, num_draws - false_alarms)
    lowest = np.where(hits == 0, 0.0, lowest)
    highest = np.where(false_alarms == num_draws, 1.0, highest)
    # Below 0 there is nothing to be learnt.
    return np.asarray(np.log(np.maximum((lowest - delta) / highest, 1.0)))

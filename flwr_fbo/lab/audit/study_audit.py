"""Lower bound on what whole studies give away, measured on their releases.

Studies are drawn in two worlds: with the *canary*, who sends what stands out most, in
all rounds; and without, or with other messages in their place, as the promise's
adjacency has it. A test is made that guesses the world from all that a study
releases. Under (epsilon, delta) its rates obey TPR <= exp(epsilon) FPR + delta, so they
bound epsilon from below (Jagielski, Ullman & Oprea, 2020). A lower bound above what the
accountant promises is a fault of the mechanism, not bad luck.

A quarter of the studies of either world fits the statistics of
`flwr_fbo.lab.audit.evidence`, the next quarter chooses the test, and the other half
counts how often it is right. So fitting and choosing cannot make the bound too large:
it is wrong in 2 of 1,000 audits at most.

The mechanism runs as it is: clip, weights, divisor, mask, noise, server, record.

What it cannot see: an epsilon that is too large by less than so many draws can show;
faults that show only with other settings, or other data; what is not a number in a
release, as timing, logs, metrics, who answers, or what the server keeps in memory; low
bits that tell something only in combinations that no statistic looks at; and whether
the entropy of the operating system is good.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.fields import check_fields, integer
from flwr_fbo._common.random import Purpose, generator
from flwr_fbo.lab.audit.evidence import STATISTICS, Evidence, Statistics
from flwr_fbo.privacy.accounting import PrivacySpent
from flwr_fbo.privacy.noise import Entropy, SeededEntropy

_GRID_BITS = 30


class StreamEntropy(SeededEntropy):
    """Mask and noise from seeded streams: fast, repeatable, *not private*.

    `SeededEntropy` gives the same noise again for the same round; an audit needs many
    draws of one round. Sums and noise are multiples of 2^-30 of a standard deviation,
    or finer, so that their sum is exact. Without the grid an audit would find what
    floating-point noise tells by its low bits (Mironov, 2012).

    Parameters
    ----------
    seed : int
        >= 0.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._streams = {purpose: generator(seed, purpose) for purpose in Purpose}

    def _rng(self, iteration: int, purpose: Purpose) -> np.random.Generator:
        return self._streams[purpose]

    def add_noise(
        self, iteration: int, rows: FloatArray, std: FloatArray
    ) -> FloatArray:
        """Add fresh noise; ``iteration`` plays no part."""
        rng = self._rng(iteration, Purpose.RELEASE_NOISE)
        grid = np.exp2(np.floor(np.log2(std)) - _GRID_BITS)[:, None]
        noise = std[:, None] * rng.standard_normal(rows.shape)
        return np.asarray((np.rint(rows / grid) + np.rint(noise / grid)) * grid)


IntArray = NDArray[np.int64]
Progress = Callable[[int], object]

# How likely each of the two Clopper-Pearson bounds is to be wrong.
_RISK = 1e-3
# The same while the test is chosen: with some 5,000 to choose from, a bound that is
# wrong once in 1,000 would prefer rare events that were lucky.
_CHOICE_RISK = 1e-6
# Studies of either world below which nothing can be shown.
_MIN_DRAWS = 1000


@dataclass(frozen=True)
class StudyPlan(ABC):
    """Subject and thoroughness of an audit.

    Attributes
    ----------
    num_draws : int
        Studies with the canary, and as many without, >= 1000.
    faults : mapping of str to callable
        Mechanisms with a mistake, for ``build`` of `audit`.
    """

    num_draws: int = field(default=10_000, kw_only=True, metadata=integer(_MIN_DRAWS))
    faults: ClassVar[Mapping[str, Callable[..., Any]]]

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    @abstractmethod
    def promised(self) -> PrivacySpent:
        """Epsilon of a whole study, and the delta at which it is compared."""

    @abstractmethod
    def describe(self) -> dict[str, str]:
        """Return what is drawn, in words: a few lines, by their names."""

    @abstractmethod
    def draw(
        self, entropy: Entropy, build: Callable[..., Any] | None, progress: Progress
    ) -> tuple[Evidence, Evidence]:
        """Return ``num_draws`` studies with the canary, and as many without.

        ``build`` makes the mechanism of one study from its settings and the entropy;
        the real one unless given. ``progress`` is told how many studies were drawn
        since it was told last.
        """


@dataclass(frozen=True)
class AuditTest:
    """A guess whether the canary took part: ``sign * statistic >= threshold``.

    Attributes
    ----------
    statistic : str
        One of `flwr_fbo.lab.audit.evidence.STATISTICS`.
    sign : {1, -1}
        Direction of the guess: 1 if the statistic is large with the canary.
    threshold : float
        Smallest signed statistic at which the guess is yes.
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
        return f'{guess} if "{self.statistic}" is {relation} {limit:.3f}'

    def count(self, values: FloatArray) -> int:
        """Return how many values of its statistic, shape (R,), it says yes to."""
        return int(np.count_nonzero(self.sign * values >= self.threshold))


@dataclass(frozen=True)
class AuditResult:
    """Result of an audit.

    Attributes
    ----------
    epsilon_lower : float
        Epsilon is at least this, with 99.8 % confidence.
    promised : PrivacySpent
        Privacy spent by a whole study of the plan, as the accountant says.
    test : AuditTest
        Chosen on other studies than those that were counted.
    true_positives, false_positives : int
        Studies of ``num_counted`` in either world to which the test said yes: rightly,
        and wrongly.
    num_counted : int
        Number of studies in either world that were counted, >= 1.
    """

    epsilon_lower: float
    promised: PrivacySpent
    test: AuditTest
    true_positives: int
    false_positives: int
    num_counted: int

    @property
    def violated(self) -> bool:
        """True if the lower bound exceeds what is promised: never an infinite one."""
        return self.epsilon_lower > self.promised.epsilon

    @property
    def verdict(self) -> str:
        """Say it in words."""
        if math.isinf(self.promised.epsilon):
            return "nothing is promised here, so that nothing can be violated"
        if self.violated:
            return "VIOLATION: lower bound exceeds the accountant's"
        if self.epsilon_lower < self.promised.epsilon / 2:
            return "no violation, with little power: give more draws or a larger delta"
        return "no violation"


def audit(
    plan: StudyPlan,
    entropy: Entropy,
    build: Callable[..., Any] | None = None,
    progress: Progress = lambda _: None,
) -> AuditResult:
    """Bound epsilon of whole studies from below, and compare it with the promise.

    Parameters
    ----------
    plan : StudyPlan
        `TuningAuditPlan` or `BanditAuditPlan`.
    entropy : Entropy
        The real one (`OsEntropy`), or a `StreamEntropy` where speed matters more.
    build : callable, optional
        Makes the mechanism of one study from settings and entropy; the real one unless
        given. What is promised, and what the adversary knows, is computed from the plan
        alone: a mechanism is not asked about itself.
    progress : callable
        Told the number of studies drawn since it was told last.
    """
    present, absent = plan.draw(entropy, build, progress)
    promised = plan.promised
    quarter, half = plan.num_draws // 4, plan.num_draws // 2
    statistics = Statistics(present[:quarter], absent[:quarter])
    with_canary, without = (
        statistics(world[quarter:half]) for world in (present, absent)
    )
    test = _choose_test(with_canary, without, promised.delta)
    column = STATISTICS.index(test.statistic)
    counts = [test.count(statistics(w[half:])[:, column]) for w in (present, absent)]
    hits, false_alarms = counts if test.guesses_present else counts[::-1]
    counted = plan.num_draws - half
    lower = _epsilon_lower(
        np.array([hits]), np.array([false_alarms]), counted, promised.delta, _RISK
    )
    return AuditResult(float(lower[0]), promised, test, hits, false_alarms, counted)


def _choose_test(present: FloatArray, absent: FloatArray, delta: float) -> AuditTest:
    """Return the test that gives the largest, cautious bound on these studies."""
    best, chosen = -1.0, None
    num_draws = len(present)
    # Denser towards the rare events, where the ratio of the rates is largest.
    ranks = np.unique(np.geomspace(1, 2 * num_draws, 300).astype(int)) - 1
    for column, statistic in enumerate(STATISTICS):
        for sign in (1, -1):
            with_canary, without = (
                np.sort(sign * d[:, column]) for d in (present, absent)
            )
            thresholds = np.sort(np.concatenate([with_canary, without]))[::-1][ranks]
            counts = [
                num_draws - np.searchsorted(d, thresholds)
                for d in (with_canary, without)
            ]
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
        from scipy.stats import beta

        lowest = beta.ppf(risk, hits, num_draws - hits + 1)
        highest = beta.ppf(1 - risk, false_alarms + 1, num_draws - false_alarms)
    lowest = np.where(hits == 0, 0.0, lowest)
    highest = np.where(false_alarms == num_draws, 1.0, highest)
    # Below 0 there is nothing to be learnt.
    return np.asarray(np.log(np.maximum((lowest - delta) / highest, 1.0)))

"""Privacy filter: epsilon of studies that are chosen one after another.

A server may choose its next study after it has read what earlier ones released. The
privacy loss distribution of all charges then bounds nothing: it holds for charges that
were fixed in advance. `Spent` adds charges up so that a limit holds whatever the server
chooses, and whenever it stops. Without sampling (q = 1) this costs nothing.

Examples
--------
>>> from flwr_fbo.privacy.filters import Spent
>>> from flwr_fbo.privacy.spending_ledger import Charge
>>> two_gaussian = Spent(((Charge(4.0),), (Charge(4.0),)), num_releases=2)
>>> round(two_gaussian.epsilon(1e-5), 2)
1.36
>>> sampled = (Charge(5.84, 0.35, 40),)  # one study of 40 releases
>>> round(Spent((sampled,), 40).epsilon(1e-3), 2)  # fixed in advance: exact
1.0
>>> round(Spent((sampled, sampled), 80).epsilon(1e-3), 2)
1.51

Notes
-----
*Formal guarantees.* Let a ledger admit a charge only while ``Spent.epsilon(delta)`` of
all its charges is at most ``epsilon``. Then everything that was charged is (epsilon,
delta)-DP against a server that chooses each study, its noise and its sampling from all
that it has read, interleaves studies, and stops when it likes. It is for one unit and
adjacency, to which all charges are converted: see `SpendingLedger`. Within a study the
noise and the sampling of each release are those of the promise that the site was told
before the first one. The values that are released may depend on all that was read.

Not covered: an epsilon or delta that is chosen after a release. So the epsilon of a
ledger reads: "a limit of this epsilon, set before the first release, would have
admitted all of this". A limit that is raised because of what studies found, or that is
set when a server could already have gone beyond it, is none that was set before.

*The rule.* A release with q = 1 costs mu^2 = 1 / z^2. A study with q < 1 is charged
whole with its first release, since the server decides when it stops. So is a training:
as it was planned, see `flwr_fbo.charge_training`. The j-th such study costs delta_j = D
/ (j (j + 1)) and mu_j^2, with the smallest mu_j for which

    H(x) <= delta_j + G(x; mu_j)    for all x >= 0, in both directions.

H(x) is the study's delta at epsilon = x, of all its releases composed, and G that of
the Gaussian mechanism, `gaussian_delta`. D is set aside before the first release: a
twentieth of delta if the ledger begins with such a study, else a millionth, which no
Gaussian release notices. Epsilon solves G(epsilon; mu) = delta - D, where mu^2 is the
sum of all.

What is charged first, if it is a study with q < 1, costs no mu_j^2 nor delta_j. Instead
epsilon solves H(epsilon) = delta - D, with H of that study and one Gaussian mechanism
together, whose mu^2 is the sum of all others. As long as nothing else is charged, it
costs what it costs alone, at delta; so does a first release with q = 1.

*Proof.* Fix two neighbours and a direction. Let L be the privacy loss so far, and B and
E what is left of the largest mu^2 that the limit allows, and of D. Consider

    V = G(epsilon - L; sqrt(B)) + E.

A study adds its own loss to L, and takes mu_j^2 from B and delta_j from E. The mean of
G(x - loss; m) over the loss of a mechanism is the delta at x of that mechanism and a
Gaussian one together, whose mu is m. With m^2 = B - mu_j^2 the mean of V is at most

    delta_j + G(.; mu_j) together with G(.; m), plus E - delta_j  =  V before,

as two Gaussian mechanisms are one, with mu^2 added up. So V does not rise on average,
whatever was chosen from the past. (For x < 0 the condition on H follows from the other
direction: H(x) = 1 - e^x + e^x H'(-x), where H' is that of the other direction, and G
is its own.) Releases with q = 1 are the case delta_j = 0. In the end V is at least (1 -
exp(epsilon - L))+, whose mean is the delta of everything; in the beginning it is delta
at most. A study that is read release by release, in any order and between others, tells
no more than all its releases at once: so its cost may be paid with the first one.

What is charged first was chosen before anything was read. So B may be set once it is
known: as large as the mean over its loss, of G(epsilon - L; sqrt(B)) + D, allows in
both directions. That mean is H of it and the Gaussian one together, plus D. If it is
above delta with B = 0, nothing is admitted after it: its own delta is that of all.

D may not be chosen later, nor be what Gaussian releases have left of delta: then the
server would choose by the loss so far which of the two it spends, and gain by it.

*Sources.* The supermartingale of hockey-stick divergences is that of Koskela, Tobaben &
Honkela (2023). That mu^2 adds up under full adaptivity was shown by Smith & Thakurta
(2022); that filters stay valid where studies interleave by Haney et al. (2023), after
Vadhan & Zhang (2023); that composing exact curves is no filter in general by Tran et
al. (2026) and Regehr et al. (2026). ``python -m tests.adversaries.adaptive_servers``
plays the best server of a family of studies against this rule, and against others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import repeat
from typing import Any

from flwr_fbo.privacy.gaussian import (
    LEAST_NOISE,
    check_delta,
    gaussian_epsilon,
    gaussian_mu,
    poisson_epsilon,
)
from flwr_fbo.privacy.guarantee import CLIENT, Guarantee, PrivacyUnit
from flwr_fbo.privacy.spending_ledger import (
    MOST_NOISE,
    Charge,
    Charged,
    Group,
    Promise,
    StudyKey,
    counted_in,
    least_epsilon,
    study_of,
)

# Sampling probability, noise multiplier, number of releases.
_Entries = tuple[tuple[float, float, int], ...]

# Shares of delta that are set aside for studies with sampling, where the first study of
# a ledger is one, and where it is not: then Gaussian releases lose nothing visible.
_RESERVED, _RESERVED_BESIDE_GAUSSIAN = 0.05, 1e-6
# Above this epsilon says nothing, and to add charges up can take minutes.
_LARGEST_TOLD = 100.0


@dataclass(frozen=True)
class Spent:
    """Privacy that a ledger has spent, by the module's rule.

    Attributes
    ----------
    groups : tuple of tuple of Charge
        In the order in which they were charged. The charges of a group were fixed
        before its first release: a study with sampling, or one Gaussian release.
    num_releases : int
        Number of releases that were charged.
    total : PrivacyUnit
        Unit that the groups were counted for: see `counted_in`.
    """

    groups: tuple[Group, ...] = ()
    num_releases: int = 0
    total: PrivacyUnit = CLIENT

    @classmethod
    def of(
        cls,
        total: PrivacyUnit,
        facts: Iterable[Mapping[str, Any]],
        study: StudyKey | None = None,
        promise: Promise | None = None,
    ) -> Spent:
        """Return what the charges of a ledger cost a unit.

        Parameters
        ----------
        total : PrivacyUnit
            Unit that they are added up for, one of `TOTALS`. What does not protect it
            is converted, or left out: see `counted_in`.
        facts : iterable of mapping
            Facts of each charge, in order: see `charge_facts`. Where a charge with
            sampling does not say what its study promised, as in ledgers of earlier
            versions, all such charges of the study are taken for the whole of it.
        study : tuple of str, optional
            Kind and id of a study that is counted as if it had made all releases.
        promise : Promise, optional
            These releases.
        """
        every = [*facts]
        own = (about for about in every if study_of(about) == study)
        return cls.with_study(total, Charged(every), own, promise)

    @classmethod
    def with_study(
        cls,
        total: PrivacyUnit,
        charged: Charged,
        own: Iterable[Mapping[str, Any]] = (),
        promise: Promise | None = None,
    ) -> Spent:
        """Return what charges cost a unit, once a study has made all its releases.

        Parameters
        ----------
        total : PrivacyUnit
            See `of`.
        charged : Charged
            All charges, those of the study too.
        own : iterable of mapping
            Facts of the study's charges so far.
        promise : Promise, optional
            Its releases.
        """
        groups = charged.groups(total)
        if promise is None:
            return cls(groups, charged.num_releases, total)
        known, promised = Charged(own), promise.charges
        counted = counted_in(total, promise.unit, promised)
        missing = _count(counted)
        if counted and not _samples(promised):
            for group in known.groups(total):
                missing -= _count(group)
            groups += tuple((Charge(*key, n),) for key, n in missing.items())
        # A group with all promised releases is this study already: it counts once.
        elif counted and all(missing - _count(g) for g in known.groups(total)):
            groups += (tuple(counted),)
        to_come = max(0, promise.num_releases - known.num_releases)
        return cls(groups, charged.num_releases + to_come, total)

    @property
    def is_replaced(self) -> bool:
        """True if sampled contributions count as replaced: see `poisson_epsilon`."""
        return self.total.adjacency == "replaced"

    def least_epsilon(self, delta: float) -> float:
        """Return what `epsilon` is at least, at once."""
        return max((least_epsilon(group, delta) for group in self._counts), default=0.0)

    @cached_property
    def _counts(self) -> Counter[Group]:
        """How often each group was charged: a ledger has few different ones."""
        return Counter(self.groups)

    def epsilon(self, delta: float) -> float:
        """Return the smallest limit at ``delta`` that would have admitted all of it.

        Infinite where a release had noise of less than 1e-3 times its sensitivity.

        Parameters
        ----------
        delta : float
            In (0, 1).
        """
        check_delta(delta)
        if not any(self.groups):
            return 0.0
        if any(
            c.noise_multiplier < LEAST_NOISE for group in self._counts for c in group
        ):
            return math.inf  # the arithmetic below would overflow
        first, *others = self.groups
        alone = _entries(first)
        if not others:  # chosen before anything was read
            return poisson_epsilon(alone, delta, replaced=self.is_replaced)
        squares, left = self._squares(delta), delta - self._reserved(delta)
        if not _samples(first):
            return gaussian_epsilon(left, squares**0.5)
        if squares > 0:
            alone = (*alone, (1.0, squares**-0.5, 1))
        return poisson_epsilon(alone, left, replaced=self.is_replaced)

    @property
    def is_sampled(self) -> bool:
        """Whether a charge is of releases that not everybody is in."""
        return any(map(_samples, self._counts))

    @property
    def mu(self) -> float:
        """Mu of one Gaussian mechanism: as if everybody were in each release.

        Exact without sampling, else never too small.
        """
        charges = [charge for group in self._counts for charge in group]
        if any(charge.noise_multiplier < LEAST_NOISE for charge in charges):
            return math.inf
        counted = self._counts.items()
        return math.sqrt(
            math.fsum(n * _without_sampling(_entries(group)) for group, n in counted)
        )

    def total_variation(self) -> float:
        """Return the smallest delta, to 1e-6, at which `epsilon` is 0.

        It bounds by how much the probability of anything can differ between the two
        worlds: an observer tells them apart in (1 + it) / 2 of the cases at most.
        """
        if math.isinf(self.mu):
            return 1.0
        if not self.is_sampled:
            return math.erf(self.mu / math.sqrt(8))
        low, high = 0.0, 1.0
        while high - low > 1e-6:
            delta = (low + high) / 2
            low, high = (low, delta) if self.epsilon(delta) <= 0 else (delta, high)
        return high

    def exceeds(self, epsilon: float, delta: float) -> bool:
        """Return whether a limit would not have admitted it."""
        # To add up what costs far too much could take minutes.
        return self.least_epsilon(delta) > epsilon or self.epsilon(delta) > epsilon

    def text(
        self, delta: float, guarantee: Guarantee, replaced: Spent | None = None
    ) -> str:
        """Return `epsilon` at ``delta`` with its terms, as a log has it.

        Parameters
        ----------
        delta : float
            In (0, 1).
        guarantee : Guarantee
            The terms.
        replaced : Spent, optional
            The same for an example that is replaced by another.
        """
        more = ""
        if replaced is not None:
            more = f"{replaced._number(delta)} if replaced by another"
        return f"epsilon {self._number(delta)} {guarantee.after(delta, more)}"

    def _number(self, delta: float) -> str:
        least = self.least_epsilon(delta)
        if least > _LARGEST_TOLD:
            return "infinite" if math.isinf(least) else f">= {least:.4g}"
        epsilon = self.epsilon(delta)
        return "infinite" if math.isinf(epsilon) else f"{epsilon:.4g}"

    def epsilon_left(self, max_epsilon: float, delta: float) -> float:
        """Return the largest epsilon of one more Gaussian study within a limit."""
        if not any(self.groups):
            return max_epsilon

        def fits(noise_multiplier: float) -> bool:
            more = (Charge(noise_multiplier),)
            with_more = replace(self, groups=(*self.groups, more))
            return not with_more.exceeds(max_epsilon, delta)

        # What comes first may fit alone, at delta, and nothing beside it at delta - D.
        if not fits(MOST_NOISE):
            return 0.0
        # mu^2 adds up under full adaptivity: what is left of it is one study's. With a
        # sampled study at first it is that with which its losses just fit the limit.
        low = MOST_NOISE**-2
        high = gaussian_mu(max_epsilon, delta - self._reserved(delta)) ** 2
        while high - low > 1e-9 * high:
            square = (low + high) / 2
            low, high = (square, high) if fits(square**-0.5) else (low, square)
        return gaussian_epsilon(delta, low**0.5)

    def _reserved(self, delta: float) -> float:
        """Return D: a function of the first group, which was chosen before all else."""
        is_sampled = len(self.groups) > 0 and _samples(self.groups[0])
        return delta * (_RESERVED if is_sampled else _RESERVED_BESIDE_GAUSSIAN)

    def _squares(self, delta: float) -> float:
        """Return the sum of mu^2, without a study with sampling that is the first."""
        squares: list[float] = []
        reserved, sampled = self._reserved(delta), set()
        for group, count in self._counts.items():
            if _samples(group):
                sampled.add(group)
            else:
                squares += repeat(_without_sampling(_entries(group)), count)
        in_order = [group for group in self.groups if group in sampled]
        if _samples(self.groups[0]):
            in_order = in_order[1:]
        for number, group in enumerate(in_order, 1):
            # These shares of D add up to D, however many studies follow.
            share = reserved / (number * (number + 1))
            entries = _entries(group)
            squares.append(_gaussian_parameter(entries, share, self.is_replaced) ** 2)
        # Exact: Gaussian releases in another order cost the same, to the last digit.
        return math.fsum(squares)


def _count(charges: Iterable[Charge]) -> Counter[tuple[float, float]]:
    counts: Counter[tuple[float, float]] = Counter()
    for charge in charges:
        key = charge.noise_multiplier, charge.sampling_probability
        counts[key] += charge.num_releases
    return counts


def _samples(charges: Iterable[Charge]) -> bool:
    return any(charge.sampling_probability < 1 for charge in charges)


@lru_cache(maxsize=1024)
def _entries(group: Group) -> _Entries:
    return tuple(sorted((q, z, n) for (z, q), n in _count(group).items()))


def _without_sampling(entries: _Entries) -> float:
    """Return mu^2 of releases as if everybody were in each: never too small."""
    return math.fsum(count / z**2 for _, z, count in entries)


@lru_cache(maxsize=1024)
def _gaussian_parameter(entries: _Entries, share: float, replaced: bool) -> float:
    """Return mu_j, to 1e-5 of it: see the rule.

    Parameters
    ----------
    entries : tuple of (float, float, int)
        The releases of a study.
    share : float
        delta_j.
    replaced : bool
        See `Spent.is_replaced`.
    """
    # Replacing a sampled contribution is at most twice the distance to zeros.
    most = math.sqrt(_without_sampling(entries)) * (2 if replaced else 1)
    # It loads SciPy's signal processing, which only some studies need.
    from flwr_fbo.privacy.loss_distribution import composed_losses

    return max(
        loss.gaussian_parameter(share, most)
        for loss in composed_losses(entries, replaced=replaced)
    )

"""A privacy statement: what one study, or all of a site, reveals of whom, and to whom.

It has what NIST SP 800-226 asks of a claim (unit of privacy, parameters, trust model,
what is not covered) and what TensorFlow Privacy's statement adds (adjacency, groups of
one person, assumptions). All numbers are computed from records; what no record has is
said to be missing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scipy.special import ndtr

from flwr_fbo.privacy.accounting import PrivacySpent
from flwr_fbo.privacy.filters import Spent
from flwr_fbo.privacy.gaussian import gaussian_epsilon
from flwr_fbo.privacy.guarantee import (
    EXAMPLE,
    PROFILE,
    PrivacyUnit,
    Trust,
    replaced_entries,
)
from flwr_fbo.privacy.spending_ledger import Charge

NOT_ON_RECORD = "not on record"
# Sizes of a person's group that are shown unless one is asked for: hospitals of whom a
# client is protected, and records where one example is.
_HOSPITALS, _RECORDS = (1, 2, 3), (1, 2, 3, 10)
# The privacy loss at which an observer is 99.99 % sure.
_SUREST = math.log(0.9999 / 0.0001)


@dataclass(frozen=True)
class Sent:
    """Messages of one sort that each site sends.

    Attributes
    ----------
    what : str
        What such a message is.
    times : int, optional
        Number of them, of each site that sends; None where no record has it.
    num_bytes : int, optional
        Payload of one, without what Flower adds; None where no record has it.
    """

    what: str
    times: int | None = None
    num_bytes: int | None = None


@dataclass(frozen=True)
class StudyFacts:
    """What a kind of study says of one of its studies, by a record of it.

    Attributes
    ----------
    strategy : str
        Name of the strategy.
    charges : tuple of Charge
        What one site has released, as it is charged; empty where only the site's
        ledger says it.
    sent : tuple of Sent
        Messages under the noise.
    trust : {"server", "sums", "local"}, optional
        See `Guarantee`; None where no record has it.
    reads : str
        What the operator of a trusted server reads in a message.
    exact : tuple of str
        What leaves a site as it is, by design.
    not_covered : tuple of str
        What epsilon does not cover in this study, besides that of all studies.
    num_senders : int, optional
        Number of sites that send.
    groups : sequence of mapping
        Groups of sites that sum their messages: see `SumGroup`.
    roster : str
        Digest of the roster; empty without one.
    is_seeded : bool, optional
        Whether somebody knows the seed of the noise; None where no record says it.
    asks_sites : bool
        Whether messages of this package ask the sites; False where an app trains.
    """

    strategy: str
    charges: tuple[Charge, ...] = ()
    sent: tuple[Sent, ...] = ()
    trust: Trust | None = None
    reads: str = ""
    exact: tuple[str, ...] = ()
    not_covered: tuple[str, ...] = ()
    num_senders: int | None = None
    groups: Sequence[Mapping[str, Any]] = field(default=())
    roster: str = ""
    is_seeded: bool | None = None
    asks_sites: bool = True


@dataclass(frozen=True)
class InLedger:
    """What a site's ledger has of a study, and beside it.

    Attributes
    ----------
    charges : tuple of Charge
        Releases of the study under noise; empty of a server, and of a plan.
    unit : PrivacyUnit, optional
        Whom they protect; None where that is not known.
    has_trainings : bool
        Whether it has charges of trainings, too.
    """

    charges: tuple[Charge, ...] = ()
    unit: PrivacyUnit | None = None
    has_trainings: bool = False


def training_facts(ledger: InLedger) -> StudyFacts:
    """Return what a statement says of a training that an app has charged."""
    return StudyFacts(
        "DP-SGD of the site's own app",
        sent=(Sent("model of a round, with the noise of its steps", _sent_of(ledger)),),
        trust="local",
        exact=_EXACT_IN_TRAINING,
        not_covered=_NOT_IN_TRAINING,
        asks_sites=False,
    )


def _sent_of(ledger: InLedger) -> int | None:
    return len(ledger.charges) or None


_EXACT_IN_TRAINING = (
    "num-examples and metrics in the app's replies; of a tuner's trials only "
    "num-examples",
)
_NOT_IN_TRAINING = (
    "what the app trains and does not charge",
    "steps that are not as charged: whether the app samples, clips and adds noise as "
    "it says, no record can tell",
)


@dataclass(frozen=True)
class Cost:
    """What charges cost their unit: all numbers of a claim follow from it.

    Attributes
    ----------
    unit : PrivacyUnit
        Whom the charges protect.
    spent : Spent
        The charges, as they are added up for it.
    replaced : Spent
        The same where the unit is replaced by another.
    """

    unit: PrivacyUnit
    spent: Spent
    replaced: Spent

    @classmethod
    def in_ledger(cls, unit: PrivacyUnit, facts: Sequence[Mapping[str, Any]]) -> Cost:
        """Return what charges of a site's ledger cost, as the ledger adds them up."""
        return cls(unit, Spent.of(unit, facts), Spent.of(EXAMPLE, facts))

    @classmethod
    def of_study(cls, unit: PrivacyUnit, charges: Sequence[Charge]) -> Cost:
        """Return what a study costs whose releases were all fixed in advance."""
        entries = tuple(
            (c.sampling_probability, c.noise_multiplier, c.num_releases)
            for c in charges
        )
        others = entries
        if unit.adjacency == "zeroed":
            others = replaced_entries(entries)
        one, other = (
            (tuple(Charge(z, q, count) for q, z, count in found),)
            for found in (entries, others)
        )
        number = sum(charge.num_releases for charge in charges)
        replaced = PrivacyUnit(unit.protects, "replaced")
        return cls(unit, Spent(one, number), Spent(other, number, replaced))

    @property
    def mu(self) -> float | None:
        """Mu of releases that are one Gaussian mechanism; None with sampling."""
        mu = self.spent.mu
        return None if self.spent.is_sampled or math.isinf(mu) else mu

    def best_guess(self) -> float:
        """Return how often the best guess between two likely worlds is right, at most.

        (1 + TV) / 2, where the total variation TV is delta at epsilon 0.
        """
        return (1 + self.spent.total_variation()) / 2

    def profile(self) -> dict[str, float]:
        """Return epsilon at several deltas."""
        return {f"{delta:g}": self.spent.epsilon(delta) for delta in PROFILE}

    def mu_of_group(self, size: int) -> float:
        """Return mu, at most, if so many units are replaced by others."""
        per_unit = 1 if self.unit.adjacency == "replaced" else 2
        return size * per_unit * self.spent.mu

    def epsilon_of_group(self, delta: float, size: int) -> float:
        """Return epsilon if so many units are replaced; a bound with sampling."""
        if size == 1:
            return self.replaced.epsilon(delta)
        mu = self.mu_of_group(size)
        return math.inf if math.isinf(mu) else gaussian_epsilon(delta, mu)


def more_sure(epsilon: float, mu: float) -> tuple[float, float]:
    """Return how sure an observer is at epsilon, and how often one ends surer.

    Of the true one of two worlds that were equally likely, if these are as far apart as
    they can be: the privacy loss is then N(mu^2 / 2, mu^2). Surer than 99.99 % is not
    told apart.
    """
    loss = min(epsilon, _SUREST)
    return 1 / (1 + math.exp(-loss)), float(ndtr(mu / 2 - loss / mu))


def claim(spent: PrivacySpent | None, cost: Cost | None) -> dict[str, Any]:
    """Return an epsilon with its terms, and what it means for an observer."""
    if spent is None:
        return {"epsilon": None}
    mu = None if cost is None else cost.mu
    epsilon, other = spent.epsilon, spent.epsilon_if_replaced
    certainty, share = (None, None)
    if mu is not None and 0 < epsilon < math.inf:
        certainty, share = more_sure(epsilon, mu)
    if other is None and cost is not None and cost.unit.adjacency == "zeroed":
        other = cost.replaced.epsilon(spent.delta)
    return {
        **spent.to_json(),
        "epsilon_if_replaced": other,
        "releases": spent.num_releases,
        "mu": mu,
        "best_guess": None if cost is None else cost.best_guess(),
        "sure": certainty,
        "share_more_sure": share,
        "profile": {} if cost is None else cost.profile(),
    }


def of_patient(
    cost: Cost | None,
    delta: float,
    records: int | None = None,
    hospitals: int | None = None,
) -> list[dict[str, Any]]:
    """Return what follows for a patient whose records had been others.

    Parameters
    ----------
    cost : Cost, optional
        What was spent; None where nothing was, or there is no guarantee.
    delta : float
        Where epsilon is told.
    records : int, optional
        Records of the patient at one hospital; of no effect where a client is
        protected, and so all of them.
    hospitals : int, optional
        Hospitals that have some.
    """
    if cost is None:
        return []
    cases: list[tuple[int | None, int]]
    if cost.unit.protects == "client":
        told = _HOSPITALS if hospitals is None else (1, hospitals)
        cases = [(None, number) for number in dict.fromkeys(told)]
    else:
        sizes = _RECORDS if records is None else (1, records)
        cases = [(size, 1) for size in dict.fromkeys(sizes)]
        if hospitals is not None and hospitals > 1:
            cases.append((records or 1, hospitals))
    found = []
    for size, number in cases:
        units = (size or 1) * number
        about = {
            "records": size,
            "hospitals": number,
            "epsilon": cost.epsilon_of_group(delta, units),
            "delta": delta,
            "at_most": cost.spent.is_sampled,
            "best_guess": None
            if cost.mu is None
            else float(ndtr(cost.mu_of_group(units) / 2)),
        }
        found.append(about)
    return found

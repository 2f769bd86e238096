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
from flwr_fbo.privacy.gaussian import LEAST_NOISE, gaussian_epsilon, poisson_epsilon
from flwr_fbo.privacy.guarantee import (
    CLIENT,
    PROFILE,
    PrivacyUnit,
    Trust,
    replaced_epsilon,
)
from flwr_fbo.privacy.spending_ledger import Charge

NOT_ON_RECORD = "not on record"
# Sizes of a person's group that are shown unless one is asked for: hospitals of whom a
# client is protected, and records where one example is.
_HOSPITALS, _RECORDS = (1, 2, 3), (1, 2, 3, 10)
# The privacy loss at which an observer is 99.99 % sure.
_SUREST = math.log(0.9999 / 0.0001)

Entries = tuple[tuple[float, float, int], ...]


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


def entries_of(charges: Sequence[Charge]) -> Entries:
    """Return charges as sampling probability, noise multiplier and number."""
    return tuple(
        (c.sampling_probability, c.noise_multiplier, c.num_releases) for c in charges
    )


def group_epsilon(entries: Entries, delta: float, steps: int) -> float:
    """Return epsilon of releases between worlds that are so many steps apart.

    A step is the adjacency that the releases are charged for.
    """
    if any(z < LEAST_NOISE for _, z, _ in entries):
        return math.inf
    if steps == 1:
        return poisson_epsilon(entries, delta)
    if steps == 2:
        return replaced_epsilon(entries, delta)
    # As if everybody were in each release: exact without sampling.
    return gaussian_epsilon(delta, steps * math.sqrt(_squares(entries)))


def _squares(entries: Entries) -> float:
    return math.fsum(count / z**2 for _, z, count in entries)


def mu_of(entries: Entries) -> float | None:
    """Return mu of releases that are one Gaussian mechanism; None with sampling."""
    if not entries or any(q < 1 or z < LEAST_NOISE for q, z, _ in entries):
        return None
    return math.sqrt(_squares(entries))


def best_guess(entries: Entries) -> float:
    """Return how often the best guess between two equally likely worlds is right.

    (1 + TV) / 2, where the total variation TV is delta at epsilon 0: an upper bound
    with sampling.
    """
    if any(z < LEAST_NOISE for _, z, _ in entries):
        return 1.0
    mu = mu_of(entries)
    if mu is not None:
        return float(ndtr(mu / 2))
    from flwr_fbo.privacy.loss_distribution import (
        LossDistribution,
        composed_losses,
        joint_delta,
    )

    losses = composed_losses(entries, replaced=False)
    nothing = LossDistribution.nothing(losses[0].step)
    return (1 + max(joint_delta(loss, nothing, 0.0) for loss in losses)) / 2


def more_sure(epsilon: float, mu: float) -> tuple[float, float]:
    """Return how sure an observer is at epsilon, and how often one ends surer.

    Of the true one of two worlds that were equally likely, if these are as far apart as
    they can be: the privacy loss is then N(mu^2 / 2, mu^2). Surer than 99.99 % is not
    told apart.
    """
    loss = min(epsilon, _SUREST)
    return 1 / (1 + math.exp(-loss)), float(ndtr(mu / 2 - loss / mu))


def claim(spent: PrivacySpent | None, entries: Entries) -> dict[str, Any]:
    """Return an epsilon with its terms, and what it means for an observer."""
    if spent is None:
        return {"epsilon": None}
    mu, epsilon, other = mu_of(entries), spent.epsilon, spent.epsilon_if_replaced
    certainty, share = (None, None)
    if mu is not None and 0 < epsilon < math.inf:
        certainty, share = more_sure(epsilon, mu)
    if other is None and entries and spent.guarantee.unit == CLIENT:
        other = group_epsilon(entries, spent.delta, 2)
    return {
        **spent.to_json(),
        "epsilon_if_replaced": other,
        "releases": spent.num_releases,
        "mu": mu,
        "best_guess": best_guess(entries) if entries else None,
        "sure": certainty,
        "share_more_sure": share,
        "profile": profile_of(entries),
    }


def profile_of(entries: Entries) -> dict[str, float]:
    """Return epsilon of releases at several deltas."""
    return {
        f"{delta:g}": group_epsilon(entries, delta, 1) for delta in PROFILE if entries
    }


def of_patient(
    unit: PrivacyUnit,
    entries: Entries,
    delta: float,
    records: int | None = None,
    hospitals: int | None = None,
) -> list[dict[str, Any]]:
    """Return what follows for a patient whose records had been others.

    Parameters
    ----------
    unit : PrivacyUnit
        Whom the charges protect, and how.
    entries : tuple of (float, float, int)
        The charges.
    delta : float
        Where epsilon is told.
    records : int, optional
        Records of the patient at one hospital; of no effect where a client is
        protected, and so all of them.
    hospitals : int, optional
        Hospitals that have some.
    """
    if not entries:
        return []
    cases: list[tuple[int | None, int]]
    per_change = 1 if unit.adjacency == "replaced" else 2
    if unit.protects == "client":
        told = _HOSPITALS if hospitals is None else (1, hospitals)
        cases = [(None, number) for number in dict.fromkeys(told)]
    else:
        sizes = _RECORDS if records is None else (1, records)
        cases = [(size, 1) for size in dict.fromkeys(sizes)]
        if hospitals is not None and hospitals > 1:
            cases.append((records or 1, hospitals))
    found = []
    for size, number in cases:
        steps = per_change * (size or 1) * number
        mu = mu_of(entries)
        about = {
            "records": size,
            "hospitals": number,
            "epsilon": group_epsilon(entries, delta, steps),
            "delta": delta,
            "best_guess": None if mu is None else float(ndtr(steps * mu / 2)),
        }
        found.append(about)
    return found

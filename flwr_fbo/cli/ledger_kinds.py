"""How each kind of ledger is read, added up and shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

from flwr_fbo.algorithms.fed_go_ucb.server import spent_by_neural_agent
from flwr_fbo.algorithms.fed_ucb.server import spent_by_agent
from flwr_fbo.algorithms.linear_bandit.study import LinearBanditStudy
from flwr_fbo.clients.bandits.bandit_journals import LINEAR_KIND as SITE_KIND
from flwr_fbo.clients.bandits.bandit_journals import NEURAL_KIND as NEURAL_SITE_KIND
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.ledger_table import LedgerRow
from flwr_fbo.privacy.accounting import PrivacySpent, ReleaseAccountant
from flwr_fbo.privacy.neural_privacy import NeuralPrivacy
from flwr_fbo.privacy.sampling import Subsampling
from flwr_fbo.privacy.spending import KIND as SPENDING_KIND
from flwr_fbo.privacy.spending import UNPROTECTED, Charge, composed_epsilon
from flwr_fbo.strategies.study_record import (
    BANDIT_KIND,
    KIND,
    NEURAL_KIND,
    PEER_KIND,
    RELAY_KIND,
    read_ledger,
)
from flwr_fbo.tuner.envelope import KIND as TUNER_KIND
from flwr_fbo.tuner.tuner_record import recorded_spent


def _spent(identity: Mapping[str, Any], rows: list[LedgerRow]) -> PrivacySpent | None:
    """Charge the rows again; None where there is nothing that can be charged."""
    charges = [row.facts["noise_multiplier"] for row in rows]
    delta, method = identity.get("delta"), identity.get("accountant", "pld")
    if delta is None or min(charges) <= 0:
        return None
    if all(row.facts["noise_only"] for row in rows):
        return PrivacySpent(0.0, delta, len(rows), "noise-only")
    names = ("sampling", "sample_size", "population_size")
    subsampling = Subsampling(*(rows[0].facts[name] for name in names))
    accountant = ReleaseAccountant(subsampling, delta, method)
    if identity.get("cohorts"):  # a site is in one release: see `FedWarmStartServer`
        charges = charges[:1]
    for charge in charges:
        accountant.charge(charge)
    return accountant.spent()


def _bandit_spent(identity: Mapping[str, Any], rows: list[LedgerRow]) -> PrivacySpent:
    """Return what the agents of FedUCB have spent, as its server counts it."""
    study = LinearBanditStudy.from_dict({**identity, "study_id": "one"})
    return spent_by_agent(study, max(rows[-1].facts["num_releases"]))


def _site_spent(identity: Mapping[str, Any], rows: list[LedgerRow]) -> PrivacySpent:
    """Return what this agent has spent: all of its epsilon, from the first release."""
    return spent_by_agent(LinearBanditStudy.from_dict(identity), len(rows))


def _neural_spent(
    identity: Mapping[str, Any], rows: list[LedgerRow]
) -> PrivacySpent | None:
    """Return what the agents of Fed-GO-UCB have spent; None without privacy."""
    privacy = identity["settings"]["privacy"]
    if privacy is None:
        return None
    return spent_by_neural_agent(NeuralPrivacy.from_dict(privacy), len(rows))


def _all_spent(identity: Mapping[str, Any], rows: list[LedgerRow]) -> PrivacySpent:
    """Return what all studies in a ledger have spent together."""
    charges = [Charge(*row.facts["charge"]) for row in rows]
    count = sum(charge.num_releases for charge in charges)
    delta = identity["delta"]
    return PrivacySpent(composed_epsilon(charges, delta), delta, count, "pld")


def _by_agent(rows: list[LedgerRow]) -> dict[str, list[LedgerRow]]:
    """Return the rows of each agent's data, and of whoever has no number with each."""
    agents = sorted({row.facts["owner"] for row in rows} - {-1})
    return {
        f" of agent {agent}, of all studies together": [
            row for row in rows if row.facts["owner"] in (agent, -1)
        ]
        for agent in agents
    } or {"": rows}


def _agent(row: LedgerRow) -> str:
    return "-" if row.facts["owner"] == -1 else str(row.facts["owner"])


def _number_of(row: LedgerRow) -> str:
    number = row.facts["release"]
    return "unprotected" if number == UNPROTECTED else str(number)


def _norm_of_total(row: LedgerRow) -> str:
    return f"{np.linalg.norm(row.vectors.sum(axis=0)):.4g}"


def _num_messages(row: LedgerRow) -> str:
    return str(int(np.isfinite(row.vectors).all(axis=1).sum()))


def _made(row: LedgerRow) -> str:
    made = row.facts["num_releases"]
    return str(max(made)) if min(made) == max(made) else f"{min(made)} to {max(made)}"


def _noise_of_scores(row: LedgerRow) -> str:
    """Return the standard deviation of a tuner's noise, or epsilon of its winner."""
    if row.facts["mechanism"] == "gaussian":
        return f"{row.facts['noise_std'][0]:.4g}"
    epsilon = row.facts.get("epsilon")
    return "-" if epsilon is None else f"epsilon {epsilon:.4g}"


_COMMON: dict[str, Callable[[LedgerRow], str]] = {
    "iteration": lambda row: str(row.iteration),
    "committed": lambda row: datetime.fromtimestamp(row.committed).isoformat(
        " ", "seconds"
    ),
}
_VERSION: dict[str, Callable[[LedgerRow], str]] = {
    "version": lambda row: str(row.facts["flwr_fbo"])
}


@dataclass(frozen=True)
class LedgerKind:
    """How one kind of ledger is read and shown."""

    rows: Callable[[Journal], list[LedgerRow]]
    spent: Callable[[Mapping[str, Any], list[LedgerRow]], PrivacySpent | None]
    columns: Mapping[str, Callable[[LedgerRow], str]]
    whose: str = ""
    why_not: str = "the noise was seeded, or there was none."
    # The rows that are added up, by whose they are: `whose` unless named.
    parts: Callable[[list[LedgerRow]], dict[str, list[LedgerRow]]] = lambda rows: {
        "": rows
    }


SERVER_KINDS = {
    KIND: LedgerKind(
        lambda journal: read_ledger(journal)[1],
        _spent,
        {
            **_COMMON,
            "noise multiplier": lambda row: f"{row.facts['noise_multiplier']:.4g}",
            "q": lambda row: (
                f"{row.facts['sample_size'] / row.facts['population_size']:g}"
            ),
            "sensitivity": lambda row: f"{row.facts['sensitivity']:.4g}",
            "norm of vectors": lambda row: f"{np.linalg.norm(row.vectors):.4g}",
            **_VERSION,
        },
    ),
    BANDIT_KIND: LedgerKind(
        lambda journal: read_ledger(journal)[1],
        _bandit_spent,
        {
            **_COMMON,
            "releases an agent": _made,
            "norm of total": _norm_of_total,
            **_VERSION,
        },
        " of each agent, for one trial of it",
    ),
    PEER_KIND: LedgerKind(
        lambda journal: read_ledger(journal)[1],
        _bandit_spent,
        {
            **_COMMON,
            "releases an agent": _made,
            "messages": lambda row: str(len(row.facts["senders"])),
            **_VERSION,
        },
        " of each agent, for one trial of it",
    ),
    RELAY_KIND: LedgerKind(
        lambda journal: read_ledger(journal)[1],
        lambda identity, rows: None,
        {**_COMMON, "messages": _num_messages, **_VERSION},
        why_not="every message reached all agents as it was.",
    ),
    NEURAL_KIND: LedgerKind(
        lambda journal: read_ledger(journal)[1],
        _neural_spent,
        {**_COMMON, "phase": lambda row: str(row.facts["phase"]), **_VERSION},
        " of each agent, for one trial of it",
        why_not="gradients and sums were sent without noise, or it was seeded.",
    ),
}
SITE_LEDGER = LedgerKind(
    lambda journal: journal.ledger(),
    _site_spent,
    {
        **_COMMON,
        "norm of release": lambda row: f"{np.linalg.norm(row.vectors):.4g}",
        **_VERSION,
    },
    " of this agent, for one trial of it",
)
NEURAL_SITE_LEDGER = LedgerKind(
    lambda journal: journal.ledger(),
    _neural_spent,
    {
        **_COMMON,
        "norm of release": lambda row: f"{np.linalg.norm(row.vectors):.4g}",
        **_VERSION,
    },
    " of this agent, for one trial of it",
)
SPENDING_LEDGER = LedgerKind(
    lambda journal: journal.ledger(),
    _all_spent,
    {
        "committed": _COMMON["committed"],
        "agent": _agent,
        "study": lambda row: str(row.facts["study_id"]),
        "kind": lambda row: str(row.facts["study_kind"]),
        "release": _number_of,
        "noise multiplier": lambda row: f"{row.facts['charge'][0]:.4g}",
        "q": lambda row: f"{row.facts['charge'][1]:g}",
    },
    " of all studies together",
    parts=_by_agent,
)
TUNER_LEDGER = LedgerKind(
    lambda journal: journal.ledger(),
    recorded_spent,
    {
        "rung": lambda row: str(row.iteration + 1),
        "study": lambda row: str(row.facts.get("study_id", "-")),
        "committed": _COMMON["committed"],
        "round": lambda row: str(row.facts["rounds"]),
        "trials": lambda row: str(len(row.facts["trials"])),
        "mechanism": lambda row: str(row.facts["mechanism"]),
        "noise": _noise_of_scores,
        "survivors": lambda row: ", ".join(map(str, row.facts["survivors"])),
        **_VERSION,
    },
    " by a tuner",
    why_not="the server read exact scores, or the noise was seeded.",
)
LEDGER_KINDS = {
    **SERVER_KINDS,
    TUNER_KIND: TUNER_LEDGER,
    SITE_KIND: SITE_LEDGER,
    NEURAL_SITE_KIND: NEURAL_SITE_LEDGER,
    SPENDING_KIND: SPENDING_LEDGER,
}

"""How each kind of ledger is read, added up and shown: one table, by journal kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np

from flwr_fbo._common.fields import from_json
from flwr_fbo.bandits.fed_go_ucb.server import spent_by_neural_agent
from flwr_fbo.bandits.fed_go_ucb.settings import NeuralPrivacy
from flwr_fbo.bandits.fed_ucb.server import spent_by_agent
from flwr_fbo.bandits.linear.study import LinearBanditStudy
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.privacy.accounting import PrivacySpent, ReleaseAccountant
from flwr_fbo.privacy.conditions import (
    WITHOUT_TRAINING,
    after_epsilon,
    conditions_of,
)
from flwr_fbo.privacy.filters import Spent
from flwr_fbo.privacy.sampling import Subsampling
from flwr_fbo.privacy.spending import KIND as SPENDING_KIND
from flwr_fbo.privacy.spending import MARK, UNPROTECTED
from flwr_fbo.site.study_journals import LINEAR_KIND as SITE_KIND
from flwr_fbo.site.study_journals import NEURAL_KIND as NEURAL_SITE_KIND
from flwr_fbo.strategies.study_record import (
    BANDIT_KIND,
    KIND,
    NEURAL_KIND,
    PEER_KIND,
    RELAY_KIND,
    read_ledger,
)
from flwr_fbo.tuner.envelope import KIND as TUNER_KIND
from flwr_fbo.tuner.records.trials_record import recorded_spent

Cell = Callable[[LedgerRow], str]
Numbering = Mapping[str, Callable[[LedgerRow], int]]


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
    if identity.get("parallel"):  # a site is in one release at most
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


def _local_condition(identity: Mapping[str, Any], rows: list[LedgerRow]) -> str:
    """Return the condition of a linear bandit that uses a site's own data."""
    study = LinearBanditStudy.from_dict({"study_id": "one", **identity})
    return after_epsilon(study.promise.condition)


def _neural_spent(
    identity: Mapping[str, Any], rows: list[LedgerRow]
) -> PrivacySpent | None:
    """Return what the agents of Fed-GO-UCB have spent; None without privacy."""
    privacy = identity["settings"]["privacy"]
    if privacy is None:
        return None
    return spent_by_neural_agent(from_json(NeuralPrivacy, privacy), len(rows))


def _all_spent(identity: Mapping[str, Any], rows: list[LedgerRow]) -> PrivacySpent:
    """Return what all studies in a ledger have spent together."""
    spent, delta = Spent.of(row.facts for row in rows), identity["delta"]
    return PrivacySpent(spent.epsilon(delta), delta, spent.num_releases, "filter")


def _by_agent(rows: list[LedgerRow]) -> dict[str, list[LedgerRow]]:
    """Return the rows of each agent's data, and of whoever has no number with each.

    All rows together of a site's own folder: its data is one, whatever its agent-id.
    """
    if any(MARK in row.facts for row in rows):
        return {"": rows}
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
    if number < UNPROTECTED:
        return "unknown"  # recovered: a receipt says only that there was one
    return "unprotected" if number == UNPROTECTED else str(number)


def _made(row: LedgerRow) -> str:
    made = row.facts["num_releases"]
    return str(max(made)) if min(made) == max(made) else f"{min(made)} to {max(made)}"


def _noise_of_scores(row: LedgerRow) -> str:
    """Return the standard deviation of a tuner's noise, or epsilon of its winner."""
    if row.facts["mechanism"] == "gaussian":
        return f"{row.facts['noise_std'][0]:.4g}"
    epsilon = row.facts.get("epsilon")
    return "-" if epsilon is None else f"epsilon {epsilon:.4g}"


def _norm(row: LedgerRow) -> str:
    return f"{np.linalg.norm(row.vectors):.4g}"


def _fact(name: str, form: str = "") -> Cell:
    """Return what shows a fact of a row."""
    return lambda row: format(row.facts[name], form)


def _columns(**cells: Cell) -> dict[str, Cell]:
    """Return a release's columns between its time and its version, by heading."""
    named = {name.replace("_", " "): cell for name, cell in cells.items()}
    return {"committed": _committed, **named, "version": _fact("flwr_fbo")}


def committed_text(seconds: float) -> str:
    """Return a time of a ledger in this machine's own time zone."""
    return datetime.fromtimestamp(seconds).isoformat(" ", "seconds")


def _committed(row: LedgerRow) -> str:
    return committed_text(row.committed)


# A server's releases are told apart by the round that they were made in, those of a
# bandit's site by their own number.
_ROUND: Numbering = {"round": lambda row: row.made_after + 1}
_RELEASE: Numbering = {"release": lambda row: row.iteration}
_RUNG: Numbering = {"rung": lambda row: row.iteration + 1}


@dataclass(frozen=True)
class LedgerKind:
    """How one kind of ledger is read and shown.

    Attributes
    ----------
    spent : callable
        Adds up some rows; None where they have no epsilon.
    numbering : dict of callable
        Which release a row is, from 1, by heading; empty where ``columns`` say it.
    columns : dict of callable
        What else is shown of a row, by heading.
    whose : str
        Whose epsilon it is, in words.
    why_not : str
        Why releases are not private.
    condition : callable
        Returns what follows the epsilon of some rows: what it does not cover.
    parts : callable
        Returns the rows that are added up, by whose they are: ``whose`` unless named.
    study : str
        What a server's study is of; empty where no server keeps this ledger.
    lengths : callable, optional
        Returns how many numbers an agent sends for a release, and how many each gets
        back; None where the server does not know.
    """

    spent: Callable[[Mapping[str, Any], list[LedgerRow]], PrivacySpent | None]
    numbering: Numbering
    columns: Mapping[str, Cell]
    whose: str = ""
    why_not: str = "the noise was seeded, or there was none."
    condition: Callable[[Mapping[str, Any], list[LedgerRow]], str] = lambda *_: ""
    parts: Callable[[list[LedgerRow]], dict[str, list[LedgerRow]]] = lambda rows: {
        "": rows
    }
    study: str = ""
    lengths: Callable[[LedgerRow], tuple[int, int]] | None = None

    def rows(self, journal: Journal) -> list[LedgerRow]:
        """Return the releases; those of a server once they fit the rest of it."""
        return read_ledger(journal)[1] if self.study else journal.ledger()

    @property
    def headings(self) -> tuple[str, ...]:
        """What is shown of each row."""
        return (*self.numbering, *self.columns)

    def numbers(self, row: LedgerRow) -> dict[str, int]:
        """Return which release a row is, by heading."""
        return {name: number(row) for name, number in self.numbering.items()}

    def cells(self, row: LedgerRow) -> list[str]:
        """Return what is shown of a row, below each heading."""
        shown = [cell(row) for cell in self.columns.values()]
        return [*map(str, self.numbers(row).values()), *shown]


_TUNING = LedgerKind(
    _spent,
    _ROUND,
    _columns(
        noise_multiplier=_fact("noise_multiplier", ".4g"),
        q=lambda row: f"{row.facts['sample_size'] / row.facts['population_size']:g}",
        sensitivity=_fact("sensitivity", ".4g"),
        norm_of_vectors=_norm,
    ),
    study="tuning",
    lengths=lambda row: (row.vectors.shape[-1], row.vectors.size),
)
_BANDIT = LedgerKind(
    _bandit_spent,
    _ROUND,
    _columns(
        releases_an_agent=_made,
        norm_of_total=lambda row: f"{np.linalg.norm(row.vectors.sum(axis=0)):.4g}",
    ),
    " of each agent, for one trial of it",
    condition=_local_condition,
    study="a linear bandit",
    lengths=lambda row: (row.vectors[0].size, row.vectors[0].size),
)
_SITE = LedgerKind(
    _site_spent,
    _RELEASE,
    _columns(norm_of_release=_norm),
    " of this agent, for one trial of it",
    condition=_local_condition,
)
LEDGER_KINDS = {
    KIND: _TUNING,
    RELAY_KIND: replace(
        _TUNING,
        spent=lambda identity, rows: None,
        columns=_columns(
            messages=lambda row: str(int(np.isfinite(row.vectors).all(axis=1).sum()))
        ),
        why_not="every message reached all agents as it was.",
        study="tuning with FTS",
    ),
    BANDIT_KIND: _BANDIT,
    PEER_KIND: replace(
        _BANDIT,
        columns=_columns(
            releases_an_agent=_made, messages=lambda row: str(len(row.facts["senders"]))
        ),
        study="a linear bandit among peers",
        lengths=None,
    ),
    NEURAL_KIND: LedgerKind(
        _neural_spent,
        _ROUND,
        _columns(phase=_fact("phase")),
        " of each agent, for one trial of it",
        "gradients and sums were sent without noise, or it was seeded.",
        study="a bandit with a network",
        lengths=lambda row: (row.vectors.size, row.vectors.size),
    ),
    SITE_KIND: _SITE,
    NEURAL_SITE_KIND: replace(_SITE, spent=_neural_spent, condition=lambda *_: ""),
    SPENDING_KIND: LedgerKind(
        _all_spent,
        {},
        {
            "committed": _committed,
            "agent": _agent,
            "study": _fact("study_id"),
            "kind": _fact("study_kind"),
            "release": _number_of,
            "noise multiplier": lambda row: f"{row.facts['charge'][0]:.4g}",
            "q": lambda row: f"{row.facts['charge'][1]:g}",
        },
        " of all studies together",
        condition=lambda _, rows: conditions_of(row.facts for row in rows),
        parts=_by_agent,
    ),
    TUNER_KIND: LedgerKind(
        recorded_spent,
        _RUNG,
        {
            "study": lambda row: str(row.facts.get("study_id", "-")),
            "committed": _committed,
            "round": _fact("rounds"),
            "trials": lambda row: str(len(row.facts["trials"])),
            "mechanism": _fact("mechanism"),
            "noise": _noise_of_scores,
            "survivors": lambda row: ", ".join(map(str, row.facts["survivors"])),
            "version": _fact("flwr_fbo"),
        },
        " by a tuner",
        "the server read exact scores, or the noise was seeded.",
        condition=lambda *_: after_epsilon(WITHOUT_TRAINING),
    ),
}

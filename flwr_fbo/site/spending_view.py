"""How the ledger of a folder is added up and shown: what all studies have spent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.privacy.accounting import PrivacySpent
from flwr_fbo.privacy.filters import Spent
from flwr_fbo.privacy.guarantee import EXAMPLE
from flwr_fbo.privacy.spending_ledger import MARK, TRAINING, UNPROTECTED, unit_of
from flwr_fbo.study.conditions import protects_example, total_guarantee, totals_of
from flwr_fbo.study.report.ledger_view import LedgerView, committed, fact

_OF_TRAINING = " of training"
# What is told of a ledger, one after another.
_SORTS = (
    _OF_TRAINING,
    " of studies that protect one client",
    " of studies that protect one example",
)


def _all_spent(identity: Mapping[str, Any], rows: list[LedgerRow]) -> PrivacySpent:
    """Return what some studies in a ledger have spent together.

    For a client where all of them protect one; else for an example.
    """
    every = [row.facts for row in rows]
    *_, total = totals_of(every)
    spent, delta = Spent.of(total, every), identity["delta"]
    other = None if total == EXAMPLE else Spent.of(EXAMPLE, every).epsilon(delta)
    return PrivacySpent(
        spent.epsilon(delta),
        delta,
        spent.num_releases,
        "filter",
        guarantee=total_guarantee(every, total),
        epsilon_if_replaced=other,
    )


def _parts(rows: list[LedgerRow]) -> dict[str, list[LedgerRow]]:
    """Return the rows that are added up: of each agent, by what they are, and all.

    What protects an example says nothing of a client, and is left out of its total.
    """
    parts: dict[str, list[LedgerRow]] = {}
    for whose, own in _by_agent(rows).items():
        sorts: dict[str, list[LedgerRow]] = {}
        for row in own:
            sorts.setdefault(_sort(row.facts), []).append(row)
        if len(sorts) == 1 and _OF_TRAINING not in sorts:
            parts[whose] = own
            continue
        parts |= {f"{sort}{whose}": sorts[sort] for sort in _SORTS if sort in sorts}
        if len(sorts) > 1:
            parts[whose or " of all studies together"] = own
    return parts


def _sort(facts: Mapping[str, Any]) -> str:
    if facts["study_kind"] == TRAINING:
        return _OF_TRAINING
    return _SORTS[2 if protects_example(facts) else 1]


def _by_agent(rows: list[LedgerRow]) -> dict[str, list[LedgerRow]]:
    """Return the rows of each agent; a row without an agent counts for every agent.

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


def _unit(row: LedgerRow) -> str:
    unit = unit_of(row.facts)
    return "unknown" if unit is None else unit.protects


def _number_of(row: LedgerRow) -> str:
    number = row.facts["release"]
    if number < UNPROTECTED:
        return "unknown"  # recovered: a receipt says only that there was one
    return "unprotected" if number == UNPROTECTED else str(number)


SPENDING = LedgerView(
    _all_spent,
    {},
    {
        "committed": committed,
        "agent": _agent,
        "study": fact("study_id"),
        "kind": fact("study_kind"),
        "unit": _unit,
        "release": _number_of,
        "noise multiplier": lambda row: f"{row.facts['charge'][0]:.4g}",
        "q": lambda row: f"{row.facts['charge'][1]:g}",
        "steps": lambda row: str(row.facts["charge"][2]),
    },
    " of all studies together",
    parts=_parts,
)

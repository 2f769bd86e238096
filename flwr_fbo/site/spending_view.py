"""How the ledger of a folder is added up and shown: what all studies have spent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.privacy.accounting import PrivacySpent
from flwr_fbo.privacy.filters import Spent
from flwr_fbo.privacy.guarantee import CLIENT, EXAMPLE
from flwr_fbo.privacy.spending_ledger import MARK, UNPROTECTED, unit_of
from flwr_fbo.study.conditions import protects_example, total_guarantee, totals_of
from flwr_fbo.study.report.ledger_view import LedgerView, committed, fact


def _all_spent(identity: Mapping[str, Any], rows: list[LedgerRow]) -> PrivacySpent:
    """Return what some studies in a ledger have spent together.

    For a client where all of them protect one; else for an example.
    """
    every = [row.facts for row in rows]
    total, *others = totals_of(every)
    if others:
        total = EXAMPLE
    spent, delta = Spent.of(total, every), identity["delta"]
    other = Spent.of(EXAMPLE, every).epsilon(delta) if total == CLIENT else None
    return PrivacySpent(
        spent.epsilon(delta),
        delta,
        spent.num_releases,
        "filter",
        guarantee=total_guarantee(every, total),
        epsilon_if_replaced=other,
    )


def _parts(rows: list[LedgerRow]) -> dict[str, list[LedgerRow]]:
    """Return the rows that are added up: of each agent, by unit, and all for examples.

    What protects an example says nothing of a client, and is left out of its total.
    """
    parts: dict[str, list[LedgerRow]] = {}
    for whose, own in _by_agent(rows).items():
        totals = totals_of(row.facts for row in own)
        if len(totals) == 1:
            parts[whose] = own
            continue
        of_agent = whose or " of all studies together"
        for total in totals:
            of_unit = [
                row for row in own if protects_example(row.facts) == (total == EXAMPLE)
            ]
            parts[f" of studies that protect one {total.protects}{whose}"] = of_unit
        parts[of_agent] = own
    return parts


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
    },
    " of all studies together",
    parts=_parts,
)

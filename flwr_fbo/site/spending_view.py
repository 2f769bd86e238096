"""How the ledger of a folder is added up and shown: what all studies have spent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.privacy.accounting import PrivacySpent
from flwr_fbo.privacy.filters import Spent
from flwr_fbo.privacy.spending_ledger import MARK, UNPROTECTED
from flwr_fbo.study.conditions import conditions_of
from flwr_fbo.study.report.ledger_view import LedgerView, committed, fact


def _all_spent(identity: Mapping[str, Any], rows: list[LedgerRow]) -> PrivacySpent:
    """Return what all studies in a ledger have spent together."""
    spent, delta = Spent.of(row.facts for row in rows), identity["delta"]
    return PrivacySpent(spent.epsilon(delta), delta, spent.num_releases, "filter")


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
        "release": _number_of,
        "noise multiplier": lambda row: f"{row.facts['charge'][0]:.4g}",
        "q": lambda row: f"{row.facts['charge'][1]:g}",
    },
    " of all studies together",
    condition=lambda _, rows: conditions_of(row.facts for row in rows),
    parts=_by_agent,
)

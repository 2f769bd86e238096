"""How the ledgers of bandits are added up and shown: of servers and of sites."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from flwr_fbo._common.fields import from_json
from flwr_fbo.bandits.fed_go_ucb.server import spent_by_neural_agent
from flwr_fbo.bandits.fed_go_ucb.settings import NeuralPrivacy
from flwr_fbo.bandits.fed_ucb.server import spent_by_agent
from flwr_fbo.bandits.linear.study import LinearBanditStudy
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.privacy.accounting import PrivacySpent
from flwr_fbo.study.report.ledger_view import (
    RELEASE,
    ROUND,
    LedgerView,
    columns,
    fact,
    norm,
)


def _server_spent(identity: Mapping[str, Any], rows: list[LedgerRow]) -> PrivacySpent:
    """Return what the agents of a study have spent, as its server counts it."""
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
    return spent_by_neural_agent(from_json(NeuralPrivacy, privacy), len(rows))


def _made(row: LedgerRow) -> str:
    made = row.facts["num_releases"]
    return str(max(made)) if min(made) == max(made) else f"{min(made)} to {max(made)}"


def _length(row: LedgerRow) -> tuple[int, int]:
    return row.vectors.size, row.vectors.size


LINEAR_SERVER = LedgerView(
    _server_spent,
    ROUND,
    columns(
        releases_an_agent=_made,
        norm_of_total=lambda row: f"{np.linalg.norm(row.vectors):.4g}",
    ),
    " of each agent",
    study="a linear bandit",
    lengths=_length,
)
PEER_SERVER = replace(
    LINEAR_SERVER,
    columns=columns(
        releases_an_agent=_made, messages=lambda row: str(len(row.facts["senders"]))
    ),
    study="a linear bandit among peers",
    lengths=None,
)
NEURAL_SERVER = LedgerView(
    _neural_spent,
    ROUND,
    columns(phase=fact("phase")),
    " of each agent",
    "gradients and sums were sent without noise, or it was seeded.",
    study="a bandit with a network",
    lengths=_length,
)
LINEAR_SITE = LedgerView(
    _site_spent,
    RELEASE,
    columns(norm_of_release=lambda row: norm(row) if row.vectors.size else "masked"),
    " of this agent",
)
NEURAL_SITE = replace(LINEAR_SITE, spent=_neural_spent)

"""How the ledgers of tuning studies' servers are added up and shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.privacy.accounting import PrivacySpent, ReleaseAccountant
from flwr_fbo.privacy.guarantee import Guarantee, Trust
from flwr_fbo.privacy.sampling import Subsampling
from flwr_fbo.study.report.ledger_view import ROUND, LedgerView, columns, fact, norm


def _spent(identity: Mapping[str, Any], rows: list[LedgerRow]) -> PrivacySpent | None:
    """Charge the rows again; None where there is nothing that can be charged."""
    charges = [row.facts["noise_multiplier"] for row in rows]
    delta, method = identity.get("delta"), identity.get("accountant", "pld")
    if delta is None or min(charges) <= 0:
        return None
    names = ("sampling", "sample_size", "population_size")
    subsampling = Subsampling(*(rows[0].facts[name] for name in names))
    is_summed = rows[0].facts.get("aggregation") == "secure"
    trust: Trust = "sums" if is_summed else "server"
    terms = Guarantee(subsampling.unit, trust)
    if all(row.facts["noise_only"] for row in rows):
        return PrivacySpent(0.0, delta, len(rows), "noise-only", guarantee=terms)
    accountant = ReleaseAccountant(subsampling, delta, method)
    if identity.get("parallel"):  # a site is in one release at most
        charges = charges[:1]
    for charge in charges:
        accountant.charge(charge)
    return accountant.spent(terms)


TUNING = LedgerView(
    _spent,
    ROUND,
    columns(
        noise_multiplier=fact("noise_multiplier", ".4g"),
        q=lambda row: f"{row.facts['sample_size'] / row.facts['population_size']:g}",
        sensitivity=fact("sensitivity", ".4g"),
        norm_of_vectors=norm,
    ),
    study="tuning",
    lengths=lambda row: (row.vectors.shape[-1], row.vectors.size),
)
RELAY = replace(
    TUNING,
    spent=lambda identity, rows: None,
    columns=columns(
        messages=lambda row: str(int(np.isfinite(row.vectors).all(axis=1).sum()))
    ),
    why_not="every message reached all agents as it was.",
    study="tuning with FTS",
)

"""What a site's ledger has."""

from __future__ import annotations

from flwr_fbo.privacy.spending_ledger import Charge, SpendingLedger


def ledger_charges(ledger: SpendingLedger, owner: int = -1) -> list[Charge]:
    """Return the charges to an owner's data, without their studies."""
    return [Charge(*facts["charge"]) for facts in ledger.facts(owner)]

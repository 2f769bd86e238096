"""What a privacy statement says of a tuner's choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.privacy.spending_ledger import Charge
from flwr_fbo.study.report.statement import InLedger, Sent, StudyFacts

_NUM_TRAINED = "num-examples of each reply to a message of training"
_EXACT = (
    "the model update of each round of training, as the app sends it (its size is not "
    "on record)",
    _NUM_TRAINED,
)
# By whom the choice protects: what a site sends, what the server reads of it, and what
# is exact besides.
_RANKS: tuple[str, str, tuple[str, ...]] = (
    "ballot on",
    "how the site ranks the trained models of a rung",
    (),
)
_SUMS: tuple[str, str, tuple[str, ...]] = (
    "sum over validation examples of the scores of",
    "how far apart the trained models of a rung are on the site's validation examples",
    ("the number of the site's validation examples",),
)
_NOT_COVERED = (
    "the training: each model update is computed from the site's records, and the "
    "server reads it",
    "the trained model, which all sites get",
)
# The same where trainings are charged: a ledger does not say of which study.
_EXACT_BESIDE = (
    "the model update of each round of training that the app has not charged, as the "
    "app sends it (its size is not on record)",
    _NUM_TRAINED,
)
_NOT_COVERED_BESIDE = (
    "the training: what the app charges of it has a claim of its own, and is in the "
    "totals; what it does not charge is in none",
    "the trained model, which all sites get: no more than the training is",
)


def study_facts(
    identity: Mapping[str, Any], rows: Sequence[LedgerRow], ledger: InLedger
) -> StudyFacts:
    """Return what a statement says of a tuner, by its record.

    As `flwr_fbo.tuning.report.statement.study_facts` does of tuning.
    """
    if not identity:
        is_of_example = ledger.unit is not None and ledger.unit.protects == "example"
        ballot, reads, exact = _SUMS if is_of_example else _RANKS
        every, not_covered = _EXACT, _NOT_COVERED
        if ledger.has_trainings:
            every, not_covered = _EXACT_BESIDE, _NOT_COVERED_BESIDE
        sent = (Sent(f"{ballot} the trials of a rung", len(ledger.charges)),)
        return StudyFacts(
            "FederationTuner", (), sent, None, reads, every + exact, not_covered
        )
    aggregation = identity.get("aggregation")
    # Masked numbers are as long as a sum needs, which no record has.
    masked, size = ("masked ", None) if aggregation else ("", 8)
    is_private = identity["privacy"] is not None
    is_exact = not is_private and identity["score"] == "clients"
    ballot, reads, exact = _RANKS
    if is_private and identity["privacy"]["protects"] == "example":
        ballot, reads, exact = _SUMS
    elif is_exact:
        exact = ("the scores of all trials",)
    return StudyFacts(
        "FederationTuner",
        tuple(Charge(row.facts["noise_multiplier"]) for row in rows if is_private),
        tuple(
            Sent(f"{masked}{ballot} {num} trials", 1, size and size * num)
            for num in (len(row.facts["trials"]) for row in rows if is_private)
        ),
        "sums" if aggregation else "server",
        "" if aggregation else reads,
        _EXACT + exact,
        _NOT_COVERED,
        groups=(aggregation,) if aggregation else (),
        roster=aggregation["roster"] if aggregation else "",
        is_seeded=identity["noise_seed"] is not None,
    )

"""How a tuner's ledger is added up and shown."""

from __future__ import annotations

from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.study.report.ledger_view import LedgerView, committed, fact
from flwr_fbo.tuner.records.trials_record import recorded_spent


def _noise(row: LedgerRow) -> str:
    """Return the standard deviation of the noise; a dash where there is none."""
    if row.facts["mechanism"] != "gaussian":
        return "-"
    return f"{row.facts['noise_std'][0]:.4g}"


TUNER = LedgerView(
    recorded_spent,
    {"rung": lambda row: row.iteration + 1},
    {
        "study": lambda row: str(row.facts.get("study_id", "-")),
        "committed": committed,
        "round": fact("rounds"),
        "trials": lambda row: str(len(row.facts["trials"])),
        "mechanism": fact("mechanism"),
        "noise": _noise,
        "survivors": lambda row: ", ".join(map(str, row.facts["survivors"])),
        "version": fact("flwr_fbo"),
    },
    " by a tuner",
    "the server read exact scores, or the noise was seeded.",
)

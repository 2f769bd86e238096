"""The kind *federation-tuner*: one training of all sites, tuned."""

from __future__ import annotations

from flwr_fbo.privacy.conditions import WITHOUT_TRAINING
from flwr_fbo.privacy.guarantee import CLIENT, EXAMPLE
from flwr_fbo.study.kinds import JournalKind, Kind

_REPORT = "flwr_fbo.tuner.report"

RECORD = JournalKind(
    "federation-tuner",
    "tuner.sqlite",
    ledger=f"{_REPORT}.ledger:TUNER",
    page=f"{_REPORT}.page:tuner_page",
    listing=f"{_REPORT}.listing:tuner_listing",
    export="flwr_fbo.tuner.records.tuner_export:export_tuner",
    receipts="flwr_fbo.tuner.records.trials_record:recorded_receipts",
    has_ended="flwr_fbo.tuner.records.trials_record:has_ended",
)
TUNER = Kind(
    "federation-tuner",
    (RECORD,),
    units=(CLIENT, EXAMPLE),
    condition=WITHOUT_TRAINING,
    plans={"FederationTuner": f"{_REPORT}.plan:plan_choice"},
    statement=f"{_REPORT}.statement:study_facts",
)

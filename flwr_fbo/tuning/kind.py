"""The kind *tuning*: each site tunes a model of its own."""

from __future__ import annotations

from dataclasses import replace

from flwr_fbo.privacy.guarantee import CLIENT
from flwr_fbo.study.kinds import SERVER_FILE, JournalKind, Kind

_REPORT = "flwr_fbo.tuning.report"

SITE = JournalKind(
    "agent",
    "study-{study_id}-agent-{slot}.sqlite",
    at_site=True,
    note="last-study-agent-{slot}",
    page=f"{_REPORT}.site_page:tuning_page",
    export="flwr_fbo.integrations.optuna_export:export_journal",
)
SERVER = JournalKind(
    "server",
    SERVER_FILE,
    ledger=f"{_REPORT}.ledgers:TUNING",
    findings=f"{_REPORT}.findings:findings",
)
# Of FTS, whose server passes messages on.
RELAY = replace(
    SERVER, name="relay-server", ledger=f"{_REPORT}.ledgers:RELAY", findings=""
)
TUNING = Kind(
    "tuning",
    (SITE, SERVER, RELAY),
    units=(CLIENT,),
    statement=f"{_REPORT}.statement:study_facts",
)

"""The kinds of bandits: linear ones, with a centre or among peers, and neural ones."""

from __future__ import annotations

from flwr_fbo.privacy.guarantee import EXAMPLE
from flwr_fbo.study.kinds import SERVER_FILE, JournalKind, Kind

_REPORT = "flwr_fbo.bandits.report"

LINEAR_SITE = JournalKind(
    "linear-bandit",
    "linear-bandit-{study_id}.sqlite",
    at_site=True,
    note="last-linear-bandit",
    is_irreplaceable=True,
    ledger=f"{_REPORT}.ledgers:LINEAR_SITE",
    page=f"{_REPORT}.site_pages:policy_page",
)
LINEAR_SERVER = JournalKind(
    "bandit-server", SERVER_FILE, ledger=f"{_REPORT}.ledgers:LINEAR_SERVER"
)
PEER_SERVER = JournalKind(
    "peer-server", SERVER_FILE, ledger=f"{_REPORT}.ledgers:PEER_SERVER"
)
LINEAR = Kind(
    "linear-bandit",
    (LINEAR_SITE, LINEAR_SERVER, PEER_SERVER),
    units=(EXAMPLE,),
    plans={"FedUCB": f"{_REPORT}.plan:plan_sharing"},
    statement=f"{_REPORT}.statement:linear_facts",
)

NEURAL_SITE = JournalKind(
    "neural-bandit",
    "neural-bandit-{study_id}.sqlite",
    at_site=True,
    note="last-neural-bandit",
    is_irreplaceable=True,
    ledger=f"{_REPORT}.ledgers:NEURAL_SITE",
    page=f"{_REPORT}.site_pages:neural_page",
)
NEURAL_SERVER = JournalKind(
    "neural-server", SERVER_FILE, ledger=f"{_REPORT}.ledgers:NEURAL_SERVER"
)
NEURAL = Kind(
    "neural-bandit",
    (NEURAL_SITE, NEURAL_SERVER),
    units=(EXAMPLE,),
    statement=f"{_REPORT}.statement:neural_facts",
)

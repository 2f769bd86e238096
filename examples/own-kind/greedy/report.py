"""How the journals of a study are shown."""

from collections.abc import Mapping
from typing import Any

from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.privacy.accounting import PrivacySpent
from flwr_fbo.study.report.ledger_view import RELEASE, ROUND, LedgerView, columns, norm
from flwr_fbo.study.report.page import FOR_THE_SITE, Section, Table, journal_page
from greedy.study import GreedyStudy


def _spent(identity: Mapping[str, Any], rows: list[LedgerRow]) -> PrivacySpent:
    # The identity of a server's record lacks `GreedyStudy.own`.
    whole = {"study_id": "one", "seed": 0, **identity}
    return GreedyStudy.from_dict(whole).spent(len(rows))


_WHOSE = " of {} agent"
SITE_LEDGER = LedgerView(
    _spent, RELEASE, columns(norm_of_release=norm), _WHOSE.format("this")
)
SERVER_LEDGER = LedgerView(
    _spent,
    ROUND,
    columns(norm_of_total=norm),
    _WHOSE.format("each"),
    study="epsilon-greedy",
)


def site_page(journal: Journal) -> str:
    """Return the page of `flwr-fbo report` for a site: it stays there."""
    state = journal.load_state()
    trials, sums = int(state.get("num-trials", 0)), state.get("own-sums")
    sections = []
    if sums is not None:
        rows = [
            (str(arm), f"{sums[arm, arm]:.0f}", f"{sums[arm, -1]:.3f}")
            for arm in range(len(sums) - 1)
        ]
        headings = "arm", "plays", "sum of rewards above the middle"
        sections = [Section("Arms", [Table(headings, rows, "What it has seen.")])]
    about = "A site's epsilon-greedy", f"{trials} trials.", sections
    return journal_page(*about, journal, journal.ledger(), FOR_THE_SITE)

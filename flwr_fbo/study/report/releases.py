"""What a report says of releases: what they have spent, and a table of all."""

from __future__ import annotations

from collections.abc import Sequence

from flwr_fbo._common.text import counted
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.privacy.accounting import PrivacySpent
from flwr_fbo.study.report.ledger_view import LedgerView
from flwr_fbo.study.report.page import Section, Table

NOTHING_RELEASED = "Nothing was released yet."


def spent_lines(
    spent: PrivacySpent | None,
    whose: str,
    ledger: Sequence[LedgerRow],
) -> list[str]:
    """Say what the releases have spent, or why there is no epsilon."""
    if spent is not None:
        return [spent_in_words(spent, whose)]
    return [
        "There is no epsilon: the releases have no privacy guarantee."
        if ledger
        else NOTHING_RELEASED
    ]


def spent_in_words(spent: PrivacySpent, whose: str) -> str:
    """Return what was spent as a sentence, with its terms."""
    releases = counted(spent.num_releases, "release")
    against = spent.guarantee.against
    held = f"; it holds {against}" if against else ""
    return f"{releases}{whose}: {spent.text('.4f')}{held}."


def releases_section(view: LedgerView, ledger: Sequence[LedgerRow]) -> Section:
    """Return a section of all releases, as ``flwr-fbo ledger show`` has them."""
    if not ledger:
        return Section("Releases", [NOTHING_RELEASED])
    caption = "What has left the server, from its ledger."
    rows = [view.cells(row) for row in ledger]
    return Section("Releases", [Table(view.headings, rows, caption)])

"""The page of a study's server: from its record, and nothing of single agents on it.

What is shown is what left the server, counts, and what everybody may know: no raw sum,
no noise, no value of an objective, no setting that an agent has tried.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flwr_fbo._common.text import counted, humanised
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.strategies.study_record import read_ledger
from flwr_fbo.study.kinds import JournalKind, load
from flwr_fbo.study.report import charts
from flwr_fbo.study.report.ledger_view import LedgerView
from flwr_fbo.study.report.page import Section, Table, bytes_text, journal_page
from flwr_fbo.study.report.releases import releases_section, spent_lines

Rounds = Sequence[Mapping[str, Any]]


def server_page(journal: Journal, kind: JournalKind) -> str:
    """Return the page of a server's journal of a kind.

    Raises
    ------
    JournalError
        If it is damaged.
    """
    identity = journal.identity
    view: LedgerView = load(kind.ledger)
    stored, ledger = read_ledger(journal)
    rounds, num_agents = stored["rounds"], identity["num_agents"]
    findings: list[Section] = []
    if kind.findings:
        findings = load(kind.findings)(stored["study"], ledger, journal.load_state())
    sections = [
        *findings,
        _privacy(view, identity, ledger, rounds),
        _participation(rounds, num_agents),
        _communication(view, ledger, rounds, num_agents),
        releases_section(view, ledger),
        Section(
            "What agents found",
            [
                "This page has no values or settings of single agents. Each site sees "
                "its own with `flwr-fbo report` on its folder."
            ],
        ),
    ]
    done = f"{len(rounds)}"
    if "num_rounds" in identity:  # not where their number is open
        done += f" of {identity['num_rounds']}"
    lead = (
        f"The server's record: {num_agents} agents, {done} rounds done, "
        f"{counted(len(ledger), 'release')}. In the ledgers of its sites it is study "
        f"{stored['study']['study_id']}."
    )
    private = all(row.facts["private"] for row in ledger)
    warning = "" if private else f"NOT PRIVATE: {view.why_not}"
    return journal_page(
        f"Study of {view.study}", lead, sections, journal, ledger, warning
    )


def _privacy(
    view: LedgerView,
    identity: Mapping[str, Any],
    ledger: list[LedgerRow],
    rounds: Rounds,
) -> Section:
    spent = view.spent(identity, ledger) if ledger else None
    lines = spent_lines(spent, view.whose, ledger)
    course = [r["epsilon"] for r in rounds]
    known = np.array([math.nan if e is None else float(e) for e in course])
    if spent is None or not np.isfinite(known).any():
        return Section("Privacy", lines)
    caption = f"Chart of epsilon spent against round; {spent.text()} in the end."
    figure = charts.by_round("privacy", caption, "epsilon spent", known)
    return Section("Privacy", [*lines, figure])


def _participation(rounds: Rounds, num_agents: int) -> Section:
    if not rounds:
        return Section("Participation", ["No round is done yet."])
    answered = np.array([float(r["answered"]) for r in rounds])
    caption = (
        f"Chart of how many of the {num_agents} agents answered, by round: "
        f"{answered.mean():.1f} on average, {answered.min():.0f} at least."
    )
    figure = charts.by_round("participation", caption, "agents", answered, whole=True)
    names = ("answered", "failed", "late", "absent")
    row = ("all rounds", *(sum(r[name] for r in rounds) for name in names))
    table = Table(("", *names), [row], "Answers of agents, in all rounds.")
    return Section("Participation", [figure, table])


def _communication(
    view: LedgerView, ledger: Sequence[LedgerRow], rounds: Rounds, num_agents: int
) -> Section:
    if view.lengths is None:
        line = "The server passes messages on and keeps none: they are not counted."
        return Section("Communication", [line])
    if not ledger or not rounds:
        return Section("Communication")
    sent = np.zeros(len(rounds))
    for row in ledger:
        up, down = view.lengths(row)
        made_in = row.made_after
        if made_in < len(rounds):
            sent[made_in] += up * rounds[made_in]["answered"]
        if made_in + 1 < len(rounds):  # the next round brings it to all
            sent[made_in + 1] += down * num_agents
    total = np.cumsum(sent)
    words = f"{humanised(total[-1])} numbers, {bytes_text(total[-1])}"
    caption = f"Chart of numbers sent so far against round; {words} in the end."
    line = (
        "By agents and server together, 8 bytes a number. Enrolment, what Flower adds "
        "to a message, and messages that are sent again, are not counted."
    )
    figure = charts.by_round("communication", caption, "numbers sent", total)
    return Section("Communication", [line, figure])

"""The page of a study's server: from its record, and nothing of single agents on it.

What is shown is what left the server, counts, and what everybody may know: no raw sum,
no noise, no value of an objective, no setting that an agent has tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from flwr_fbo._common.text import counted, humanised
from flwr_fbo.algorithms.search.recommendation import released_function
from flwr_fbo.algorithms.search.study import TuningStudy
from flwr_fbo.cli.ledger_kinds import SERVER_KINDS, LedgerKind
from flwr_fbo.cli.report import page_figures as figures
from flwr_fbo.cli.report.page import (
    Figure,
    Page,
    Section,
    Table,
    bytes_text,
    journal_settings,
    versions_section,
)
from flwr_fbo.cli.report.server_score import score_map, slices
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.privacy.accounting import PrivacySpent
from flwr_fbo.strategies.study_record import (
    BANDIT_KIND,
    KIND,
    NEURAL_KIND,
    PEER_KIND,
    RELAY_KIND,
    read_ledger,
)

_TITLES = {
    KIND: "tuning",
    RELAY_KIND: "tuning with FTS",
    BANDIT_KIND: "a linear bandit",
    PEER_KIND: "a linear bandit among peers",
    NEURAL_KIND: "a bandit with a network",
}
NO_EPSILON = "There is no epsilon: the releases have no privacy guarantee."
NOTHING_RELEASED = "Nothing was released yet."
# Numbers that an agent sends for a release, and that each gets back.
_LENGTHS: dict[str, Callable[[LedgerRow], tuple[int, int]]] = {
    KIND: lambda row: (row.vectors.shape[-1], row.vectors.size),
    RELAY_KIND: lambda row: (row.vectors.shape[-1], row.vectors.size),
    BANDIT_KIND: lambda row: (row.vectors[0].size, row.vectors[0].size),
    NEURAL_KIND: lambda row: (row.vectors.size, row.vectors.size),
}


def server_page(journal: Journal) -> Page:
    """Return the page of a server's journal.

    Raises
    ------
    JournalError
        If it is damaged.
    """
    identity = journal.identity
    name = str(identity["kind"])
    kind = SERVER_KINDS[name]
    stored, ledger = read_ledger(journal)
    rounds, num_agents = stored["rounds"], identity["num_agents"]
    private = all(row.facts["private"] for row in ledger)
    sections = [
        *_recommendation(name, stored, ledger),
        _privacy(kind, identity, ledger, rounds),
        _participation(rounds, num_agents),
        *_communication(name, ledger, rounds, num_agents),
        releases_section(kind, ledger),
        _where_settings_are(),
        journal_settings(identity),
        versions_section(str(row.facts["flwr_fbo"]) for row in ledger),
    ]
    done = f"{len(rounds)}"
    if "num_rounds" in identity:  # not where their number is open
        done += f" of {identity['num_rounds']}"
    lead = (
        f"The server's record: {num_agents} agents, {done} rounds done, "
        f"{counted(len(ledger), 'release')}. In the ledgers of its sites it is study "
        f"{stored['study']['study_id']}."
    )
    warning = "" if private else f"NOT PRIVATE: {kind.why_not}"
    return Page(f"Study of {_TITLES[name]}", lead, sections, warning)


def _recommendation(
    name: str, stored: Mapping[str, Any], ledger: Sequence[LedgerRow]
) -> list[Section]:
    """Return what the releases recommend, with a picture of their function."""
    if name != KIND:
        return []
    study = TuningStudy.from_dict(stored["study"])
    released = released_function(study, ledger)
    if released is None:
        return [Section("Recommendation", [NOTHING_RELEASED])]
    found = released.recommendation
    parts: list[str | Table | Figure] = []
    if found.params is None:
        why = f"{found.reason} ({found.evidence})"
        parts.append(f"{found.purpose}: none, because {why}.")
    else:
        rows = list(found.params.items())
        caption = f"{found.purpose}: {found.evidence}."
        parts.append(Table(("parameter", "value"), rows, caption, numeric=False))
    parts += slices(study.space, released)
    if study.space.dim == 2:
        parts.append(score_map(study.space, released))
    return [Section("Recommendation", parts)]


def _privacy(
    kind: LedgerKind,
    identity: Mapping[str, Any],
    ledger: list[LedgerRow],
    rounds: Sequence[Mapping[str, Any]],
) -> Section:
    spent = kind.spent(identity, ledger) if ledger else None
    if spent is None:
        return Section("Privacy", [NO_EPSILON if ledger else NOTHING_RELEASED])
    lines = [spent_in_words(spent, kind.whose)]
    course = [r["epsilon"] for r in rounds]
    known = np.array([math.nan if e is None else float(e) for e in course])
    if not np.isfinite(known).any():
        return Section("Privacy", lines)
    caption = (
        f"Chart of epsilon spent against round, at delta = {spent.delta:g}; "
        f"{spent.epsilon:.4g} in the end."
    )
    figure = figures.by_round("privacy", caption, "epsilon spent", known)
    return Section("Privacy", [*lines, figure])


def spent_in_words(spent: PrivacySpent, whose: str) -> str:
    """Return what was spent as a sentence."""
    epsilon = "infinite" if math.isinf(spent.epsilon) else f"{spent.epsilon:.4f}"
    releases = counted(spent.num_releases, "release")
    return (
        f"{releases}{whose}: epsilon = {epsilon} at delta = {spent.delta:g} "
        f"({spent.accounting_method})."
    )


def _participation(rounds: Sequence[Mapping[str, Any]], num_agents: int) -> Section:
    if not rounds:
        return Section("Participation", ["No round is done yet."])
    answered = np.array([float(r["answered"]) for r in rounds])
    caption = (
        f"Chart of how many of the {num_agents} agents answered, by round: "
        f"{answered.mean():.1f} on average, {answered.min():.0f} at least."
    )
    about = caption, "agents", answered
    figure = figures.by_round("participation", *about, whole=True)
    names = ("answered", "failed", "late", "absent")
    row = [sum(r[name] for r in rounds) for name in names]
    headings = ("", *names)
    table = Table(headings, [("all rounds", *row)], "Answers of agents, in all rounds.")
    return Section("Participation", [figure, table])


def _communication(
    name: str,
    ledger: Sequence[LedgerRow],
    rounds: Sequence[Mapping[str, Any]],
    num_agents: int,
) -> list[Section]:
    length_of = _LENGTHS.get(name)
    if length_of is None:
        line = "The server passes messages on and keeps none: they are not counted."
        return [Section("Communication", [line])]
    if not ledger or not rounds:
        return []
    sent = np.zeros(len(rounds))
    for row in ledger:
        up, down = length_of(row)
        if row.iteration < len(rounds):
            sent[row.iteration] += up * rounds[row.iteration]["answered"]
        if row.iteration + 1 < len(rounds):  # the next round brings it to all
            sent[row.iteration + 1] += down * num_agents
    total = np.cumsum(sent)
    words = f"{humanised(total[-1])} numbers, {bytes_text(total[-1])}"
    caption = f"Chart of numbers sent so far against round; {words} in the end."
    line = (
        "By agents and server together, 8 bytes a number. Enrolment, what Flower adds "
        "to a message, and messages that are sent again, are not counted."
    )
    figure = figures.by_round("communication", caption, "numbers sent", total)
    return [Section("Communication", [line, figure])]


def releases_section(kind: LedgerKind, ledger: Sequence[LedgerRow]) -> Section:
    """Return a section of all releases, as ``flwr-fbo ledger show`` has them."""
    if not ledger:
        return Section("Releases", [NOTHING_RELEASED])
    rows = [[cell(row) for cell in kind.columns.values()] for row in ledger]
    caption = "What has left the server, from its ledger."
    if "iteration" in kind.columns:
        caption += " Iteration 0 is round 1."
    return Section("Releases", [Table(tuple(kind.columns), rows, caption)])


def _where_settings_are() -> Section:
    return Section(
        "What agents found",
        [
            "This page has no values or settings of single agents. Each site sees its "
            "own with `flwr-fbo report` on its folder."
        ],
    )

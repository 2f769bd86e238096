"""The page of a `FederationTuner`: from its record, which has nothing of one client.

What is shown is what was released, and what everybody may know.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from flwr_fbo._common.pictures import BLUE
from flwr_fbo.cli.ledger_kinds import LEDGER_KINDS
from flwr_fbo.cli.report import figures
from flwr_fbo.cli.report.page import (
    Section,
    Table,
    journal_page,
    params_text,
)
from flwr_fbo.cli.report.server_page import (
    releases_section,
    spent_lines,
)
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.tuner.envelope import KIND
from flwr_fbo.tuner.federation_result import FederationResult, Rung
from flwr_fbo.tuner.tuner_record import not_private_because, recorded_result

_COVERED = (
    "Epsilon covers what the releases reveal of one client's scores, given the models "
    "that it scored. It does not cover the training of these models."
)


def tuner_page(journal: Journal) -> str:
    """Return the page of a tuner's journal.

    Raises
    ------
    JournalError
        If it is damaged.
    """
    identity = journal.identity
    ledger, found = journal.ledger(), recorded_result(journal)
    sections = [
        _choice(found),
        _privacy(identity, ledger, found),
        _scores(found.rungs, is_private=identity["privacy"] is not None),
        Section("Trials", [trials_table(found)]),
        releases_section(LEDGER_KINDS[KIND], ledger),
    ]
    lead = (
        f"The tuner's record: {len(found.settings)} trials, {len(ledger)} of "
        f"{found.num_rungs} rungs decided, at most {identity['num_agents']} clients."
    )
    reason = not_private_because(identity)
    title, warning = (
        "Tuning of a federated training",
        reason and f"NOT PRIVATE: {reason}",
    )
    return journal_page(title, lead, sections, journal, ledger, warning)


def _choice(found: FederationResult) -> Section:
    if not found.is_decided:
        return Section("Choice", ["Nothing is chosen yet."])
    best, settings, runner_up = found.best_trial, found.settings, found.over_runner_up
    told = [f"The app's defaults {found.verdict}."]
    if runner_up is not None and runner_up.other != 0:
        told.append(
            f"Trial {runner_up.trial} is ahead of trial {runner_up.other} by "
            f"{runner_up.deviations:.1f} standard deviations."
        )
    rows = [(name, value, settings[0][name]) for name, value in settings[best].items()]
    headings = ("parameter", "chosen", "the app's default")
    caption = " ".join([f"Trial {best} was chosen.", *told])
    return Section("Choice", [Table(headings, rows, caption, numeric=False)])


def _privacy(
    identity: Mapping[str, Any], ledger: list[LedgerRow], found: FederationResult
) -> Section:
    kind = LEDGER_KINDS[KIND]
    condition = kind.condition(identity, ledger)
    lines = spent_lines(found.privacy_spent, kind.whose, condition, ledger)
    if found.privacy_spent is not None:
        lines.append(_COVERED)
        if identity["privacy"]["noise_only"]:
            lines.append("This is the control noise-only: the choice is random.")
    return Section("Privacy", lines)


def _scores(rungs: Sequence[Rung], is_private: bool) -> Section:
    """Return a chart of what was released; none before there is anything."""
    if not rungs:
        return Section("Scores")
    counts = ", ".join(f"{len(rung.trials)} at round {rung.rounds}" for rung in rungs)
    caption = (
        "Chart of the released score of each trial against the round of its rung; full "
        f"dots went on, and larger is better. Trials: {counts}."
    )
    line = (
        "A score is the mean of the clients' ballots with noise. Ballots are about the "
        "trials of one rung: scores of several rungs cannot be compared. A rung was "
        "decided by its scores plus half of what decided the rung before."
        if is_private
        else "A score is the exact mean, negated where the metric is minimised."
    )

    def draw(axes: Any) -> None:
        for goes_on, face in ((True, BLUE), (False, "none")):
            points = [
                (rung.rounds, score)
                for rung in rungs
                for trial, score in zip(rung.trials, rung.scores, strict=True)
                if (trial in rung.survivors) == goes_on and math.isfinite(score)
            ]
            label = "went on, or was chosen" if goes_on else "ended"
            x, y = [p[0] for p in points], [p[1] for p in points]
            axes.plot(x, y, "o", ms=5, color=BLUE, mfc=face, label=label)

    figure = figures.chart("scores", caption, ("round", "released score"), draw)
    return Section("Scores", [line, figure])


def trials_table(found: FederationResult) -> Table:
    """Return a table of all trials, with what was released of each and its outcome."""
    rungs = found.rungs
    scores = [dict(zip(rung.trials, rung.scores, strict=True)) for rung in rungs]
    rows = [
        (
            trial,
            params_text(setting),
            *(f"{rung[trial]:.4g}" if trial in rung else "-" for rung in scores),
            found.outcome(trial),
        )
        for trial, setting in enumerate(found.settings)
    ]
    by_round = (f"score at round {rung.rounds}" for rung in rungs)
    headings = ("trial", "setting", *by_round, "outcome")
    caption = "All trials, with what was released of each. Trial 0 is the app's own."
    return Table(headings, rows, caption, numeric=False)

"""The page of a `FederationTuner`: from its record, which has nothing of one client.

What is shown is what was released, and what everybody may know.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from flwr_fbo._common.pictures import BLUE, ORANGE
from flwr_fbo._common.text import short_value
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.privacy.guarantee import EXAMPLE
from flwr_fbo.study.report import charts
from flwr_fbo.study.report.page import (
    Section,
    Table,
    journal_page,
)
from flwr_fbo.study.report.releases import releases_section, spent_lines
from flwr_fbo.tuner.federation_result import NOT_TRIED, FederationResult, last_of
from flwr_fbo.tuner.records.trials_record import (
    metric_in_words,
    not_private_because,
    plan_of,
    recorded_result,
    score_in_words,
    unit_of,
)
from flwr_fbo.tuner.report.ledger import TUNER

_COVERED = (
    "Epsilon covers what the releases reveal of {whose} scores, given the models "
    "that were scored. It does not cover the training of these models."
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
    metric = metric_in_words(identity["metric"])
    num_trials = len(found.rungs[0].trials if found.rungs else found.settings)
    curves = found.curves(plan_of(journal), metric)
    sections = [
        _choice(identity, found),
        _course(curves, found, metric),
        _scores(identity, found),
        _privacy(identity, ledger, found),
        Section("Trials", [trials_table(found)]),
        releases_section(TUNER, ledger),
    ]
    lead = (
        f"The tuner's record: {num_trials} trials, {len(ledger)} of "
        f"{found.num_rungs} rungs decided, at most {identity['num_agents']} clients."
    )
    reason = not_private_because(identity)
    title, warning = f"Tuning for {metric}", reason and f"NOT PRIVATE: {reason}"
    return journal_page(title, lead, sections, journal, ledger, warning)


def _choice(identity: Mapping[str, Any], found: FederationResult) -> Section:
    """Return what was chosen beside the app's own settings, and how sure that is."""
    if not found.is_decided:
        return Section("Before and after", ["Nothing is chosen yet."])
    best, settings = found.best_trial, found.settings
    rows = [
        (name, short_value(settings[0][name]), short_value(value))
        for name, value in settings[best].items()
    ]
    both = [rung for rung in found.rungs if {0, best} <= {*rung.trials}]
    metric = metric_in_words(identity["metric"])
    final, plain = found.final(metric), last_of(found.plain, metric)
    if final is not None and plain is not None:
        name = f"{metric} at the end of the training"
        rows.insert(0, (name, short_value(plain[1]), short_value(final[1])))
    elif best and both and not found.defaults_failed:
        last = both[-1]
        before, after = (last.scores[last.trials.index(n)] for n in (0, best))
        name = f"{_score_name(identity)} at round {last.rounds}"
        rows.append((name, short_value(before), short_value(after)))
    told = f"Trial {best} was chosen. The app's defaults {found.verdict}."
    headings = ("", "before: the app's own", "after: chosen")
    table = Table(headings, rows, told, numeric=False)
    return Section("Before and after", [table])


def _course(
    curves: Mapping[str, list[tuple[int, float]]],
    found: FederationResult,
    metric: str,
) -> Section:
    """Return a chart of the metric by work; none where the app does not measure it."""
    if not curves or not found.is_decided:
        return Section("Course")
    best = str(found.best_trial)
    chosen = curves.get(best, [])
    caption = (
        f"Chart of {metric}, as the app measures it, against the rounds in which the "
        "whole federation has worked."
    )
    if chosen:
        caption += f" The tuned training ends with {chosen[-1][1]:.4g}"
        if plain := curves.get("plain"):
            caption += f", that with the app's own settings with {plain[-1][1]:.4g}"
        caption += "."

    def draw(axes: Any) -> None:
        ended = [name for name in curves if name not in (best, "plain")]
        looks = [(name, "0.7", 1.0, "candidates that fell away") for name in ended]
        looks.append(("plain", ORANGE, 2.5, "the app's own settings"))
        looks.append((best, BLUE, 2.5, "tuned"))
        told = set()
        for name, color, width, label in looks:
            points = [point for point in curves.get(name, ()) if point[0] > 0]
            x, y = [p[0] for p in points], [p[1] for p in points]
            shown = None if label in told or not points else label
            told.add(label)
            axes.plot(x, y, "-o", ms=3, color=color, lw=width, label=shown)

    labels = "round of work", metric
    return Section("Course", [charts.chart("course", caption, labels, draw)])


def _score_name(identity: Mapping[str, Any]) -> str:
    """Return what a score is, in a word or two."""
    metric = metric_in_words(identity["metric"])
    if identity["privacy"] is None:
        return metric
    is_mean = unit_of(identity) == EXAMPLE
    return f"{metric} over the mean" if is_mean else f"rank score by {metric}"


def _privacy(
    identity: Mapping[str, Any], ledger: list[LedgerRow], found: FederationResult
) -> Section:
    lines = spent_lines(found.privacy_spent, TUNER.whose, ledger)
    if found.privacy_spent is not None:
        whose = f"one {unit_of(identity).protects}'s"
        lines.append(_COVERED.format(whose=whose))
        if identity["privacy"]["noise_only"]:
            lines.append("This is the control noise-only: the choice is random.")
    return Section("Privacy", lines)


def _scores(identity: Mapping[str, Any], found: FederationResult) -> Section:
    """Return a chart of what was released; none before there is anything."""
    rungs = found.rungs
    if not rungs:
        return Section("Scores")
    counts = ", ".join(f"{len(rung.trials)} at round {rung.rounds}" for rung in rungs)
    caption = (
        f"Chart of each trial's score, {score_in_words(identity)}, at the rounds where "
        f"trials were compared. Trials: {counts}."
    )
    lines = []
    if identity["privacy"] is not None:
        lines.append(
            "Ballots are about the trials of one rung: do not compare the scores of "
            "several rungs. A rung was decided by its scores plus half of what decided "
            "the rung before."
        )
    best = found.best_trial if found.is_decided else None
    style = "-o" if identity["privacy"] is None else "o"

    def draw(axes: Any) -> None:
        others = [n for n in range(len(found.settings)) if n not in (0, best)]
        looks = [(n, "0.6", 1.0, "trials that ended") for n in others]
        if best != 0:
            looks.append((0, ORANGE, 2.0, "the app's defaults"))
        if best is not None:
            name = f"trial {best}, chosen" if best else "the app's defaults, chosen"
            looks.append((best, BLUE, 2.5, name))
        told = set()
        for trial, color, width, name in looks:
            points = [
                (rung.rounds, rung.scores[rung.trials.index(trial)])
                for rung in rungs
                if trial in rung.trials
            ]
            points = [point for point in points if math.isfinite(point[1])]
            x, y = [p[0] for p in points], [p[1] for p in points]
            label = None if name in told else name
            told.add(name)
            # Ranks of several rungs are not to be compared, and so not joined.
            axes.plot(x, y, style, ms=4, color=color, lw=width, label=label)

    labels = "round", _score_name(identity)
    return Section("Scores", [*lines, charts.chart("scores", caption, labels, draw)])


def trials_table(found: FederationResult) -> Table:
    """Return a table of all trials, with what was released of each and its outcome."""
    rungs = found.rungs
    scores = [dict(zip(rung.trials, rung.scores, strict=True)) for rung in rungs]
    rows = [
        (
            trial,
            *map(short_value, setting.values()),
            *(f"{rung[trial]:.4g}" if trial in rung else "-" for rung in scores),
            found.outcome(trial),
        )
        for trial, setting in enumerate(found.settings)
        if found.outcome(trial) != NOT_TRIED
    ]
    num_left = len(found.settings) - len(rows)
    by_round = (f"score at round {rung.rounds}" for rung in rungs)
    names = found.settings[0] if found.settings else ()
    headings = ("trial", *names, *by_round, "outcome")
    caption = (
        "All trials, with what was released of each, and the round at which they "
        "ended. Trial 0 is the app's own."
    )
    if num_left:
        caption += f" {num_left} more settings were not tried: the training is short."
    return Table(headings, rows, caption, numeric=False)

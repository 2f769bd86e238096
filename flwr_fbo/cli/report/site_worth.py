"""The part of a site's page that says whether tuning, and the federation, helped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flwr_fbo._common.pictures import BLUE, ORANGE, VERMILION
from flwr_fbo._common.text import counted
from flwr_fbo.algorithms.search.comparison import Comparison
from flwr_fbo.algorithms.search.settings import Direction
from flwr_fbo.cli.report import page_figures as figures
from flwr_fbo.cli.report.page import Figure, Section, Table, params_text
from flwr_fbo.journal.tables import Trial, TrialSource

# Marker and colour of each source: told apart without colour too.
LOOKS: dict[TrialSource, tuple[str, str]] = {
    "enqueued": ("D", ORANGE),
    "start": ("s", "#7f7f7f"),
    "own search": ("o", BLUE),
    "federation": ("^", VERMILION),
}
_OWN = ("enqueued", "start", "own search")


def worth_section(
    trials: Sequence[Trial], direction: Direction, comparison: Comparison | None
) -> Section:
    """Return what the default, the site's own trials and the federation gave.

    Parameters
    ----------
    trials : sequence of Trial
        All that have ended.
    direction : {"maximize", "minimize"}
    comparison : Comparison, optional
        With the default on held-out data, if one was made.
    """
    default = [trial for trial in trials if trial.source == "enqueued"][:1]
    own = [trial for trial in trials if trial.source in _OWN]
    federation = [trial for trial in trials if trial.source == "federation"]
    rows = [
        ("default (enqueued first)", *_spent(default, direction)),
        ("own trials (enqueued, start, own search)", *_spent(own, direction)),
        ("federation", *_spent(federation, direction)),
    ]
    caption = "Evaluations spent, and the best value of each kind of trials."
    headings = ("trials", "evaluations", "failed", "best value")
    parts = [
        _about_federation(own, federation, direction),
        _about_default(default, [*own, *federation], direction),
        Table(headings, rows, caption),
        *_held_out(comparison, best_of(trials, direction)),
    ]
    return Section("Was it worth it?", parts)


def best_of(trials: Sequence[Trial], direction: Direction) -> Trial | None:
    """Return the trial with the best value, the first of several; None without any."""
    done = [trial for trial in trials if trial.state == "complete"]
    choose = max if direction == "maximize" else min
    return choose(done, key=lambda trial: trial.value) if done else None


def _spent(trials: Sequence[Trial], direction: Direction) -> tuple[int, int, str]:
    best = best_of(trials, direction)
    failed = sum(trial.state == "failed" for trial in trials)
    return len(trials), failed, "-" if best is None else f"{best.value:.6g}"


def _about_federation(
    own: Sequence[Trial], federation: Sequence[Trial], direction: Direction
) -> str:
    if not federation:
        return "No trial came from the federation: this site searched on its own."
    ours, theirs = best_of(own, direction), best_of(federation, direction)
    if theirs is None:
        return f"All trials from the federation failed: {_evaluations(federation)}."
    if ours is None:
        return "All of the site's own trials failed. The best setting is another's."
    spent = (
        f"{theirs.value:.4g} from the federation in {_evaluations(federation)}, "
        f"{ours.value:.4g} from the site's own trials in {_evaluations(own)}. "
        "One study does not say what the site would have found alone."
    )
    if best_of([ours, theirs], direction) is theirs:
        return f"The best setting came from the federation: {spent}"
    return f"The federation brought no better setting: {spent}"


def _about_default(
    default: Sequence[Trial], trials: Sequence[Trial], direction: Direction
) -> str:
    if not default:
        return (
            "No setting was enqueued, so the tuning has not evaluated the default: "
            "`enqueue=[default]` does it first."
        )
    known, best = best_of(default, direction), best_of(trials, direction)
    if known is None:
        return "The default failed in the tuning."
    assert best is not None  # the default is one of them
    if best.value == known.value:
        return f"No trial is better than the default, {known.value:.4g}."
    return (
        f"The best trial has {best.value:.4g}, the default {known.value:.4g}. The best "
        "of many trials looks better than it is: a comparison on held-out data tells."
    )


def _held_out(comparison: Comparison | None, best: Trial | None) -> list[str | Table]:
    if comparison is None:
        return [
            "The tuned setting was not compared with the default on held-out data: "
            "give `compare` to `best_params`, `with_tuning` or `add_tuning`."
        ]
    rows = [
        ("default", _score(comparison.default_score), params_text(comparison.default)),
        ("tuned", _score(comparison.tuned_score), params_text(comparison.tuned)),
    ]
    caption = "Scores on held-out data of this site, before its training."
    table = Table(("setting", "score", "parameters"), rows, caption, numeric=False)
    lines: list[str | Table] = [f"On held-out data: {comparison.outcome}", table]
    if best is not None and best.params != comparison.tuned:
        lines.append("The best setting has changed since this comparison.")
    return lines


def _score(score: float) -> str:
    return "failed" if np.isnan(score) else f"{score:.6g}"


def _evaluations(trials: Sequence[Trial]) -> str:
    return counted(len(trials), "evaluation")


def convergence_figure(done: Sequence[Trial], direction: Direction) -> Figure:
    """Return a chart of all values by source, and of the best so far."""
    values = np.array([trial.value for trial in done])
    better = np.maximum if direction == "maximize" else np.minimum
    best = better.accumulate(values)
    counts = {s: sum(trial.source == s for trial in done) for s in LOOKS}
    words = ", ".join(f"{count} {s}" for s, count in counts.items() if count)
    caption = (
        f"Chart of the value of each trial, marked by its source ({words}), and the "
        f"best so far, as a line; {_which(direction)} is better. "
        f"In the end: {best[-1]:.4g}."
    )

    def draw(axes: Any) -> None:
        numbers = [trial.number for trial in done]
        axes.plot(numbers, best, color=BLUE, ds="steps-post", label="best so far")
        scatter(axes, done, numbers)

    return figures.chart("trials", caption, ("trial", "value"), draw)


def scatter(axes: Any, done: Sequence[Trial], x: Sequence[float]) -> None:
    """Draw the value of each trial against x, marked by its source."""
    for source, (marker, color) in LOOKS.items():
        here = [
            (place, trial.value)
            for place, trial in zip(x, done, strict=True)
            if trial.source == source
        ]
        if here:
            axes.plot(*zip(*here, strict=True), marker, ms=4, color=color, label=source)


def _which(direction: Direction) -> str:
    return "higher" if direction == "maximize" else "lower"

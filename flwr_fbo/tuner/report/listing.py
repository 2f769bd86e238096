"""The table of a tuner's trials with their released scores."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from flwr_fbo._common.text import counted, short_value
from flwr_fbo.journal.journal import Journal
from flwr_fbo.study.report.listing import Listing
from flwr_fbo.study.report.page import params_text
from flwr_fbo.study.report.releases import spent_in_words
from flwr_fbo.tuner.federation_result import NOT_TRIED, FederationResult
from flwr_fbo.tuner.records.trials_record import (
    metric_in_words,
    not_private_because,
    recorded_result,
    score_in_words,
)
from flwr_fbo.tuning.search.settings import Direction


def tuner_listing(journal: Journal) -> Listing:
    """Return the trials of a tuner's journal, and how far it is."""
    identity, found = journal.identity, recorded_result(journal)
    reason = not_private_because(identity)
    rungs, spent, over_defaults = found.rungs, found.privacy_spent, found.over_defaults
    trials = [
        {
            "trial": trial,
            "settings": setting,
            "scores": {
                rung.rounds: rung.scores[rung.trials.index(trial)]
                for rung in rungs
                if trial in rung.trials
            },
            "outcome": found.outcome(trial),
        }
        for trial, setting in enumerate(found.settings)
    ]
    values: dict[str, Any] = {"trials": trials, "private": not reason}
    if over_defaults is not None:
        values["over_defaults"] = asdict(over_defaults)
    metric = metric_in_words(identity["metric"])
    final = found.final(metric) if rungs and found.is_decided else None
    if final is not None:
        values["final"] = {"round": final[0], "value": final[1]}
    values |= {"epsilon": None} if spent is None else spent.to_json()
    notes = [
        f"Trial 0 is the app's own. A score is {score_in_words(identity)}.",
        f"{len(rungs)} of {found.num_rungs} rungs are decided.",
    ]
    if rungs and found.is_decided:
        chosen = params_text(found.best)
        notes.append(f"Chosen: trial {found.best_trial}, {chosen}.")
        notes.append(f"The app's defaults {found.verdict}.")
        if final is not None:
            notes.append(final_in_words(metric, *final))
            notes += best_round_in_words(found, metric, identity["direction"])
        elif found.exact_metrics is False:
            notes.append(f"{metric} of the trained model stays at the clients.")
    if spent is not None:
        notes.append(spent_in_words(spent, ""))
    if reason:
        notes.append(f"NOT PRIVATE: {reason}")
    rows = found.rows()
    shown = [row for row in rows if row["outcome"] != NOT_TRIED]
    if num_left := len(rows) - len(shown):
        notes.insert(0, f"{num_left} more settings were not tried.")
    names = rows[0] if rows else ()
    headings = {name: name.removeprefix("params_") for name in names}
    headings |= {f"score_rung_{n}": f"round {r.rounds}" for n, r in enumerate(rungs, 1)}
    title = "The score of each trial after a rung's last round:"
    return Listing(rows, shown, values, title, headings, notes)


def final_in_words(metric: str, rounds: int, value: float) -> str:
    """Return the score of the trained model, as `FederationResult.final` has it."""
    text = f"{metric} of the trained model, as the app has it, after its own "
    return f"{text}{counted(rounds, 'round')}: {short_value(value)}."


def best_round_in_words(
    result: FederationResult, metric: str, direction: Direction
) -> list[str]:
    """Return a line if the trained model was better before its end."""
    final, best = result.final(metric), result.best_round(metric, direction)
    if final is None or best is None:
        return []
    rounds, value = best
    if short_value(value) == short_value(final[1]):
        return []
    text = (
        f"It was best after {counted(rounds, 'round')} of its own: {short_value(value)}"
    )
    return [f"{text}. The model is that of the last round."]

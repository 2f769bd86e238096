"""The table of a tuner's trials with their released scores."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from flwr_fbo.journal.journal import Journal
from flwr_fbo.privacy.conditions import WITHOUT_TRAINING, after_epsilon
from flwr_fbo.study.report.listing import Listing
from flwr_fbo.study.report.releases import spent_in_words
from flwr_fbo.tuner.records.trials_record import (
    not_private_because,
    recorded_result,
    score_in_words,
)


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
    values["epsilon"] = None if spent is None else spent.epsilon
    values["condition"] = "" if spent is None else WITHOUT_TRAINING
    notes = [
        f"Trial 0 is the app's own. A score is {score_in_words(identity)}.",
        f"{len(rungs)} of {found.num_rungs} rungs are decided.",
    ]
    if rungs and found.is_decided:
        notes.append(f"The app's defaults {found.verdict}.")
    if spent is not None:
        notes.append(spent_in_words(spent, "", after_epsilon(WITHOUT_TRAINING)))
    if reason:
        notes.append(f"NOT PRIVATE: {reason}")
    rows = found.rows()
    names = rows[0] if rows else ()
    headings = {name: name.removeprefix("params_") for name in names}
    headings |= {f"score_rung_{n}": f"round {r.rounds}" for n, r in enumerate(rungs, 1)}
    title = "The score of each trial after a rung's last round:"
    return Listing(rows, values, title, headings, notes)

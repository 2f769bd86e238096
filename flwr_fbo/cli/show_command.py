"""``flwr-fbo show RESULTS``: the table of results that are there already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from flwr_fbo.cli.commands import SHOW_EXPERIMENT, AsCsv, AsJson, loaded
from flwr_fbo.cli.output import RULED, csv_of, json_of, plain_errors, wide_console
from flwr_fbo.cli.report.server_page import spent_in_words
from flwr_fbo.journal.journal import Journal
from flwr_fbo.privacy.conditions import WITHOUT_TRAINING, after_epsilon
from flwr_fbo.strategies.study_record import FILE_NAME as SERVER_FILE_NAME
from flwr_fbo.tuner.records.trials_record import (
    FILE_NAME,
    not_private_because,
    recorded_result,
    score_in_words,
)


def show(
    results: Path,
    until: Annotated[
        int | None,
        typer.Option(help="Last evaluation that counts; all by default."),
    ] = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Print the table of RESULTS: a results.jsonl, or the folder it is in.

    For an incomplete run it shows the seeds that all methods have run. RESULTS may also
    be the `folder` of a FederationTuner: the command lists its trials with their
    released scores.

    JSON has also each method's mean curve by step. CSV has a row for each method and
    seed, or for each trial.

    Examples
    --------
    $ flwr-fbo show results/digits
    $ flwr-fbo show results/digits --json
    $ flwr-fbo show results/digits --csv
    $ flwr-fbo show /var/lib/fbo
    """
    tuner = results / FILE_NAME
    if tuner.is_file() and until is not None:
        raise typer.BadParameter("counts evaluations of a run.", param_hint="--until")
    if as_csv and as_json:
        raise typer.BadParameter("cannot be given with --json.", param_hint="--csv")
    with plain_errors(ValueError):
        if tuner.is_file():
            _show_tuner(tuner, as_json, as_csv)
            return
        if (results / SERVER_FILE_NAME).is_file():
            raise ValueError(
                f"{results} is a study's record: `flwr-fbo report {results}` makes a "
                f"page of it, and `flwr-fbo ledger show {results}` lists its releases."
            )
        loaded(SHOW_EXPERIMENT)(results, until, as_json, as_csv)


def _show_tuner(path: Path, as_json: bool, as_csv: bool) -> None:
    with Journal.snapshot(path) as journal:
        identity = journal.identity
        found, reason = recorded_result(journal), not_private_because(identity)
    rungs, spent, over_defaults = found.rungs, found.privacy_spent, found.over_defaults
    if as_json:
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
        typer.echo(json_of(values))
        return
    if as_csv:
        typer.echo(csv_of(found.rows()), nl=False)
        return
    console = wide_console()
    console.print("The score of each trial after a rung's last round:")
    rounds = {f"score_rung_{n}": f"round {r.rounds}" for n, r in enumerate(rungs, 1)}
    console.print(_trials(found.rows(), rounds))
    console.print(f"Trial 0 is the app's own. A score is {score_in_words(identity)}.")
    console.print(f"{len(rungs)} of {found.num_rungs} rungs are decided.")
    if rungs and found.is_decided:
        console.print(f"The app's defaults {found.verdict}.", soft_wrap=True)
    if spent is not None:
        condition = after_epsilon(WITHOUT_TRAINING)
        console.print(spent_in_words(spent, "", condition), soft_wrap=True)
    if reason:
        console.print(f"NOT PRIVATE: {reason}")


def _trials(rows: Sequence[Mapping[str, Any]], rounds: Mapping[str, str]) -> Table:
    """Return a table with a line a trial; ``rounds`` are the headings of the scores."""
    table = Table(box=RULED, padding=(0, 1, 0, 0))
    for name in rows[0] if rows else ():
        table.add_column(rounds.get(name, name.removeprefix("params_")))
    for row in rows:
        table.add_row(*map(_cell, row.values()))
    return table


def _cell(value: Any) -> str:
    """Return four digits of a number; a dash where there is none."""
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)

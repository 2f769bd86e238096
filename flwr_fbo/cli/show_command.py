"""``flwr-fbo show RESULTS``: the table of results that are there already."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from flwr_fbo._common.text import short_value
from flwr_fbo.cli.commands import SHOW_EXPERIMENT, AsCsv, AsJson, loaded
from flwr_fbo.cli.output import RULED, csv_of, json_of, plain_errors, wide_console
from flwr_fbo.cli.report.page import params_text
from flwr_fbo.cli.report.server_page import spent_in_words
from flwr_fbo.cli.tune_record import check_no_app
from flwr_fbo.cli.tune_summary import best_round_in_words, final_in_words
from flwr_fbo.journal.journal import Journal
from flwr_fbo.privacy.conditions import WITHOUT_TRAINING, after_epsilon
from flwr_fbo.strategies.study_record import FILE_NAME as SERVER_FILE_NAME
from flwr_fbo.tuner.federation_result import NOT_TRIED
from flwr_fbo.tuner.tuner_record import (
    FILE_NAME,
    metric_in_words,
    not_private_because,
    recorded_result,
    score_in_words,
)

# What a table may measure at most: more than any terminal has.
_WIDEST = 10_000


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
        check_no_app(results)
        loaded(SHOW_EXPERIMENT)(results, until, as_json, as_csv)


def _show_tuner(path: Path, as_json: bool, as_csv: bool) -> None:
    with Journal.snapshot(path) as journal:
        identity = journal.identity
        found, reason = recorded_result(journal), not_private_because(identity)
    metric = metric_in_words(identity["metric"])
    final = found.final(metric) if found.rungs and found.is_decided else None
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
        if final is not None:
            values["final"] = {"round": final[0], "value": final[1]}
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
    rows = [row for row in found.rows() if row["outcome"] != NOT_TRIED]
    for table in _tables(rows, rounds, console):
        console.print(table)
    if num_left := len(found.settings) - len(rows):
        console.print(f"{num_left} more settings were not tried.")
    console.print(f"Trial 0 is the app's own. A score is {score_in_words(identity)}.")
    console.print(f"{len(rungs)} of {found.num_rungs} rungs are decided.")
    if rungs and found.is_decided:
        chosen = params_text(found.best)
        console.print(f"Chosen: trial {found.best_trial}, {chosen}.")
        console.print(f"The app's defaults {found.verdict}.")
        if final is not None:
            console.print(final_in_words(metric, *final))
            for line in best_round_in_words(found, metric, identity["direction"]):
                console.print(line)
        elif found.exact_metrics is False:
            console.print(f"{metric} of the trained model stays at the clients.")
    if spent is not None:
        condition = after_epsilon(WITHOUT_TRAINING)
        console.print(spent_in_words(spent, "", condition))
    if reason:
        console.print(f"NOT PRIVATE: {reason}")


def _tables(
    rows: Sequence[Mapping[str, Any]], rounds: Mapping[str, str], console: Console
) -> Iterator[Table]:
    """Yield tables with a line a trial, none wider than the console.

    The first has the scores and the outcome; settings for which there is no room are in
    tables of their own. ``rounds`` are the headings of the scores.
    """
    names = list(rows[0]) if rows else ["trial"]
    settings = [name for name in names if name.startswith("params_")]

    def fits(names: Sequence[str]) -> bool:
        options = console.options.update(width=_WIDEST)
        table = _table(rows, names, rounds)
        return Measurement.get(console, options, table).maximum <= console.width

    if fits(names):
        yield _table(rows, names, rounds)
        return
    yield _table(rows, [name for name in names if name not in settings], rounds)
    while settings:
        number = len(settings)
        while number > 1 and not fits(["trial", *settings[:number]]):
            number -= 1
        yield _table(rows, ["trial", *settings[:number]], rounds)
        settings = settings[number:]


def _table(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], rounds: Mapping[str, str]
) -> Table:
    table = Table(box=RULED, padding=(0, 1, 0, 0))
    for name in names:
        table.add_column(
            rounds.get(name, name.removeprefix("params_")),
            no_wrap=name == "outcome",
        )
    for row in rows:
        cells = (row[name] for name in names)
        table.add_row(*("-" if v is None else short_value(v) for v in cells))
    return table

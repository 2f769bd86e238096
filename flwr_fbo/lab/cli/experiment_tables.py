"""Output of ``run`` and ``show`` on experiments: a table and a verdict, or JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from flwr_fbo._common.text import counted, humanised
from flwr_fbo.cli.output import RULED, TextConsole, csv_of, json_of
from flwr_fbo.lab.experiment_runner.base import Column, Experiment, Run
from flwr_fbo.lab.experiment_runner.curves import (
    common_seeds,
    mean_curves,
    rows_by_seed,
    summarize,
)
from flwr_fbo.lab.experiment_runner.estimates import Estimate, Row
from flwr_fbo.lab.experiment_runner.results import read_results
from flwr_fbo.privacy.guarantee import Guarantee

_WIDEST_HEADING = 20


def show_experiment(
    results: Path, until: int | None, as_json: bool, as_csv: bool
) -> None:
    """Print what is in a results file: ``flwr-fbo show``."""
    experiment, runs = read_results(results)
    if as_json:
        typer.echo(report_json(experiment, runs, until))
    elif as_csv:
        rows = rows_by_seed(experiment, runs, until)
        typer.echo(csv_of(rows), nl=False)
    else:
        print_report(experiment, runs, TextConsole(), until)


def print_report(
    experiment: Experiment,
    runs: Sequence[Run],
    console: Console,
    until: int | None = None,
) -> None:
    """Print the table, how to read it, and what it shows."""
    rows = summarize(experiment, runs, until)
    seeds = common_seeds(experiment.methods, runs)
    title, (first, *notes) = experiment.notes(runs, until)
    # Narrow enough for 80 columns; where a name is too long it is broken, no number is.
    table = Table(title=title, box=RULED, padding=(0, 1, 0, 0))
    name, *others = headings_of(experiment)
    words = [word for row in rows.values() for word in row.label.split()]
    table.add_column(name, min_width=max(map(len, words)))
    for heading in others:
        broken = fill(heading, _WIDEST_HEADING, break_on_hyphens=False)
        table.add_column(broken, justify="right", no_wrap=True)
    for row in rows.values():
        table.add_row(*cells_of(row, experiment))
    needed = console.measure(table).minimum
    console.print(table, width=max(needed, console.width), crop=False)
    over = counted(len(seeds), "seed")
    num_groups = len({experiment.group(seed) for seed in seeds})
    if 1 < num_groups < len(seeds):
        over = f"{num_groups} functions, {over} in all"
    console.print(f"± one standard error over {over}. {first}")
    for note in notes:
        console.print(note)
    console.print()
    for line in experiment.verdict(rows):
        console.print(line)


def report_json(
    experiment: Experiment, runs: Sequence[Run], until: int | None = None
) -> str:
    """Return the same for machines; what JSON lacks, NaN and infinity, is null."""
    rows = summarize(experiment, runs, until)
    steps, curves = mean_curves(experiment, runs, until)
    by_method = {
        name: {
            "mean": [estimate.mean for estimate in estimates],
            "standard_error": [estimate.standard_error for estimate in estimates],
        }
        for name, estimates in curves.items()
    }
    return json_of(
        {
            "experiment": experiment.to_dict(),
            "seeds": common_seeds(experiment.methods, runs),
            "private": all(run.private for run in runs),
            "until": until or experiment.num_steps,
            **experiment.counts(runs),
            "methods": {n: _values_of(row, experiment) for n, row in rows.items()},
            "curves": {"steps": steps, "methods": by_method},
            "notes": experiment.notes(runs, until)[1],
            "verdict": experiment.verdict(rows),
        }
    )


def _values_of(row: Row, experiment: Experiment) -> dict[str, Any]:
    """Return epsilon and the row's estimates, null where nothing is compared."""
    values: dict[str, Any] = {"epsilon": row.epsilon}
    if experiment.privacy is not None:
        # As if the noise were real: see the notes.
        values |= Guarantee(experiment.unit).facts(experiment.privacy.delta)
    for name in experiment.estimates():
        estimate = row.estimates.get(name)
        values[name] = estimate and {
            "mean": estimate.mean,
            "standard_error": estimate.standard_error,
        }
    return values


def headings_of(experiment: Experiment) -> list[str]:
    """Return the headings of the table of an experiment."""
    headings = [column.heading for column in experiment.columns().values()]
    # Where no method is private there is nothing to tell of it.
    private = experiment.privacy is not None
    return ["method", *headings, *(["epsilon"] if private else [])]


def cells_of(row: Row, experiment: Experiment) -> list[str]:
    """Return what a row of that table says, below each heading."""
    columns = experiment.columns()
    cells = [
        _number(row.estimates.get(name), column) for name, column in columns.items()
    ]
    epsilon = "infinite" if math.isinf(row.epsilon) else f"{row.epsilon:.3g}"
    return [row.label, *cells, *([epsilon] if experiment.privacy is not None else [])]


def _number(estimate: Estimate | None, column: Column) -> str:
    if estimate is None:
        return "-"
    if column.humanised:
        return humanised(estimate.mean, estimate.standard_error, column.sign)
    beyond_two = len(f"{abs(estimate.mean):.0f}") - 2
    digits = max(column.digits - max(beyond_two, 0), 0)
    mean = f"{estimate.mean:{column.sign}.{digits}f}"
    if estimate.num_runs < 2:
        return mean
    return f"{mean} ± {estimate.standard_error:.{digits}f}"

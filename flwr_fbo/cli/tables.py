"""What ``run`` and ``show`` say about results: a table and a verdict, or JSON."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flwr_fbo._text import printable
from flwr_fbo.experiment_runner.base import Column, Experiment, Row
from flwr_fbo.experiment_runner.curves import (
    common_seeds,
    mean_curves,
    rows_by_seed,
)
from flwr_fbo.experiment_runner.estimates import Estimate
from flwr_fbo.experiment_runner.runs import Run
from flwr_fbo.experiment_runner.wording import counted, humanised

# A rule below the headings, in characters that any file and terminal has.
RULED = box.Box(str(box.SIMPLE_HEAD).replace("\u2500", "-"), ascii=True)


class TextConsole(Console):
    """A console that prints names as they are: no markup, and nothing invisible."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return the text to print, of every string and every cell of a table."""
        return super().render_str(printable(text), **options)


def wide_console() -> TextConsole:
    """Return one for a table that a program may read: as wide as COLUMNS says.

    Where nobody says so, and there is no terminal, wide enough to cut nothing off.
    """
    console = TextConsole()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 160
    return console


def print_report(
    experiment: Experiment,
    runs: Sequence[Run],
    console: Console,
    until: int | None = None,
) -> None:
    """Print the table, how to read it, and what it shows."""
    rows = experiment.summarize(runs, until)
    num_seeds = len(common_seeds(experiment.methods, runs))
    title, (first, *notes) = experiment.notes(runs, until)
    console.print(_table(title, experiment, rows))
    console.print(f"± one standard error over {counted(num_seeds, 'seed')}. {first}")
    for note in notes:
        console.print(note)
    console.print()
    for line in experiment.verdict(rows):
        console.print(line)


def report_json(
    experiment: Experiment, runs: Sequence[Run], until: int | None = None
) -> str:
    """Return the same for machines; what JSON lacks, NaN and infinity, is null."""
    rows = experiment.summarize(runs, until)
    return json.dumps(
        {
            "experiment": experiment.to_dict(),
            "seeds": common_seeds(experiment.methods, runs),
            "private": all(run.private for run in runs),
            "until": until or experiment.num_steps,
            **experiment.counts(runs),
            "methods": {name: _values_of(row) for name, row in rows.items()},
            "curves": _curves(experiment, runs, until),
            "notes": experiment.notes(runs, until)[1],
            "verdict": experiment.verdict(rows),
        },
        indent=2,
        allow_nan=False,
    )


def report_csv(
    experiment: Experiment, runs: Sequence[Run], until: int | None = None
) -> str:
    """Return a line a method and seed, below headings."""
    return csv_of(rows_by_seed(experiment, runs, until))


def csv_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows with the same keys as CSV; None becomes an empty cell."""
    text = io.StringIO()
    headings = list(rows[0]) if rows else []
    writer = csv.DictWriter(text, headings, lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {name: _cell(value) for name, value in row.items()} for row in rows
    )
    return text.getvalue()


def _cell(value: Any) -> Any:
    """Return what CSV has in place of a bool."""
    return str(value).lower() if isinstance(value, bool) else value


def _curves(
    experiment: Experiment, runs: Sequence[Run], until: int | None
) -> dict[str, Any]:
    """Return each method's curve: mean and standard error by step."""
    steps, curves = mean_curves(experiment, runs, until)
    methods = {
        name: {
            "mean": [finite(one.mean) for one in estimates],
            "standard_error": [finite(one.standard_error) for one in estimates],
        }
        for name, estimates in curves.items()
    }
    return {"steps": steps, "methods": methods}


def _values_of(row: Row) -> dict[str, Any]:
    """Return the row's estimates, and epsilon."""
    values: dict[str, Any] = {"epsilon": finite(row.epsilon)}
    for field in fields(row):
        value = getattr(row, field.name)
        if isinstance(value, Estimate):
            mean, error = finite(value.mean), finite(value.standard_error)
            values[field.name] = {"mean": mean, "standard_error": error}
        elif value is None:
            values[field.name] = None
    return values


def finite(value: float) -> float | None:
    """Return what JSON has in place of a number: null for infinity and NaN."""
    return value if math.isfinite(value) else None


def _table(title: str, experiment: Experiment, rows: Mapping[str, Row]) -> Table:
    # Narrow enough for 80 columns; where a name is too long it is broken, no number is.
    table = Table(title=title, box=RULED, padding=(0, 1, 0, 0))
    first, *others = headings_of(experiment)
    table.add_column(first)
    for heading in others:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows.values():
        table.add_row(*cells_of(row, experiment))
    return table


def headings_of(experiment: Experiment) -> list[str]:
    """Return the headings of the table of an experiment."""
    headings = [column.heading for column in experiment.columns().values()]
    # Where no method is private there is nothing to tell of it.
    private = experiment.privacy is not None
    return ["method", *headings, *(["epsilon"] if private else [])]


def cells_of(row: Row, experiment: Experiment) -> list[str]:
    """Return what a row of that table says, below each heading."""
    columns = experiment.columns()
    cells = [_number(getattr(row, name), column) for name, column in columns.items()]
    private = experiment.privacy is not None
    return [row.label, *cells, *([_epsilon(row)] if private else [])]


def _epsilon(row: Row) -> str:
    return "infinite" if math.isinf(row.epsilon) else f"{row.epsilon:.3g}"


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

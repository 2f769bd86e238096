"""``flwr-fbo show RESULTS``: the table of results that are there already."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from flwr_fbo._common.text import short_value
from flwr_fbo.cli.commands import SHOW_EXPERIMENT, AsCsv, AsJson, loaded
from flwr_fbo.cli.output import RULED, csv_of, json_of, plain_errors, wide_console
from flwr_fbo.cli.tune_record import check_no_app
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import has_journal
from flwr_fbo.study.kinds import journal_kinds, load
from flwr_fbo.study.report.listing import Listing

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
    # The records that a folder has one of, as a server's: those of a site are many.
    files = (
        (results / kind.files, kind) for kind in journal_kinds() if kind.is_of_one_study
    )
    records = {path: kind for path, kind in files if has_journal(path)}
    listed = [path for path, kind in records.items() if kind.listing]
    if listed and until is not None:
        raise typer.BadParameter("counts evaluations of a run.", param_hint="--until")
    if as_csv and as_json:
        raise typer.BadParameter("cannot be given with --json.", param_hint="--csv")
    with plain_errors(ValueError):
        for path in listed:
            with Journal.snapshot(path) as journal:
                listing = load(records[path].listing)(journal)
            _print(listing, as_json, as_csv)
            return
        if records:
            raise ValueError(
                f"{results} is a study's record: `flwr-fbo report {results}` makes a "
                f"page of it, and `flwr-fbo ledger show {results}` lists its releases."
            )
        check_no_app(results)
        loaded(SHOW_EXPERIMENT)(results, until, as_json, as_csv)


def _print(listing: Listing, as_json: bool, as_csv: bool) -> None:
    if as_json:
        typer.echo(json_of(listing.values))
        return
    if as_csv:
        typer.echo(csv_of(listing.rows), nl=False)
        return
    console = wide_console()
    console.print(listing.title)
    for table in _tables(listing, console):
        console.print(table)
    for note in listing.notes:
        console.print(note)


def _tables(listing: Listing, console: Console) -> Iterator[Table]:
    """Yield tables with a line per trial, none wider than the console.

    The first has the scores and the outcome; settings for which there is no room are in
    tables of their own.
    """
    names = list(listing.shown[0]) if listing.shown else ["trial"]
    settings = [name for name in names if name.startswith("params_")]

    def fits(names: Sequence[str]) -> bool:
        options = console.options.update(width=_WIDEST)
        table = _table(listing, names)
        return Measurement.get(console, options, table).maximum <= console.width

    if fits(names):
        yield _table(listing, names)
        return
    yield _table(listing, [name for name in names if name not in settings])
    while settings:
        number = len(settings)
        while number > 1 and not fits(["trial", *settings[:number]]):
            number -= 1
        yield _table(listing, ["trial", *settings[:number]])
        settings = settings[number:]


def _table(listing: Listing, names: Sequence[str]) -> Table:
    table = Table(box=RULED, padding=(0, 1, 0, 0))
    for name in names:
        table.add_column(listing.headings.get(name, name), no_wrap=name == "outcome")
    for row in listing.shown:
        cells = (row[name] for name in names)
        table.add_row(*("-" if v is None else short_value(v) for v in cells))
    return table

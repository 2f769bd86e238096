"""``flwr-fbo show RESULTS``: the table of results that are there already."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from flwr_fbo.cli.commands import SHOW_EXPERIMENT, AsCsv, AsJson, loaded
from flwr_fbo.cli.output import RULED, csv_of, json_of, plain_errors, wide_console
from flwr_fbo.journal.journal import Journal
from flwr_fbo.study.kinds import journal_kinds, load
from flwr_fbo.study.report.listing import Listing


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
    records = {path: kind for path, kind in files if path.is_file()}
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
        loaded(SHOW_EXPERIMENT)(results, until, as_json, as_csv)


def _print(listing: Listing, as_json: bool, as_csv: bool) -> None:
    if as_json:
        typer.echo(json_of(listing.values))
        return
    if as_csv:
        typer.echo(csv_of(listing.rows), nl=False)
        return
    table = Table(box=RULED, padding=(0, 1, 0, 0))
    for name in listing.rows[0] if listing.rows else ():
        table.add_column(listing.headings.get(name, name))
    for row in listing.rows:
        table.add_row(*map(_cell, row.values()))
    console = wide_console()
    console.print(listing.title)
    console.print(table)
    for note in listing.notes:
        console.print(note, soft_wrap=True)


def _cell(value: Any) -> str:
    """Return four digits of a number; a dash where there is none."""
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)

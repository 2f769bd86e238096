"""``flwr-fbo show RESULTS``: the table of results that are there already."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flwr_fbo.cli.commands import AsJson
from flwr_fbo.cli.errors import plain_errors
from flwr_fbo.cli.tables import TextConsole, print_report, report_json
from flwr_fbo.experiment_runner.results import read_results


def show(
    results: Annotated[Path, typer.Argument()],
    until: Annotated[
        int | None,
        typer.Option(help="The last evaluation that counts; all unless given."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the table of RESULTS: a results.jsonl, or the folder it is in.

    Of a run that is not complete it shows the seeds that all methods have run.

    Examples
    --------
    $ flwr-fbo show results/digits
    $ flwr-fbo show results/digits --json
    """
    with plain_errors(ValueError):
        experiment, runs = read_results(results)
        if as_json:
            typer.echo(report_json(experiment, runs, until))
        else:
            print_report(experiment, runs, TextConsole(), until)

"""``flwr-fbo portfolio``: settings that finished studies lead to, for other studies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flwr_fbo._common.text import counted
from flwr_fbo.cli.output import check_output, plain_errors
from flwr_fbo.tuner.records.portfolio_of_studies import portfolio_of_studies
from flwr_fbo.tuning.search.study_portfolio import SIZE


def portfolio(
    file: Path,
    folders: Annotated[list[Path], typer.Argument()],
    size: Annotated[int, typer.Option(help="Settings at most.")] = SIZE,
    exact: Annotated[
        bool,
        typer.Option("--exact", help="Allow studies that were not private."),
    ] = False,
) -> None:
    """Write settings that finished studies lead to, for others to begin with.

    FOLDERS are those of FederationTuners, or of strategies that recommend a setting,
    all of one search space. FILE gets what they have chosen, then their runners-up, and
    no scores. That costs no epsilon beyond what these studies have spent. A study that
    is not finished, or was not private, is refused.

    FederationTuner takes FILE as enqueue=, the strategies as portfolio=.

    Examples
    --------
    $ flwr-fbo portfolio cnn.json /var/lib/tuner-north /var/lib/tuner-south
    """
    with plain_errors(ValueError):
        check_output("file", file)
        found = portfolio_of_studies(folders, size, exact)
        found.save(file)
    for source in found.sources:
        typer.echo(str(source))
    if not found.private:
        typer.echo("NOT PRIVATE: the order depends on clients' exact scores.")
    typer.echo(f"{counted(len(found.settings), 'setting')} in {file}")

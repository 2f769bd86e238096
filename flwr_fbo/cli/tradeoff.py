"""``flwr-fbo tradeoff RESULTS...``: what more epsilon buys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flwr_fbo.cli.errors import plain_errors
from flwr_fbo.study.base import Run
from flwr_fbo.study.experiment import TuningExperiment
from flwr_fbo.study.results import read_results


def tradeoff(
    results: Annotated[list[Path], typer.Argument()],
    until: Annotated[
        int, typer.Option(help="Utility is the mean best value over 1 to this.")
    ] = 20,
    figure: Annotated[
        Path, typer.Option(dir_okay=False, help="The picture, a PNG.")
    ] = Path("tradeoff.png"),
) -> None:
    """Draw utility against epsilon from the RESULTS of one task at several epsilons.

    They come from: flwr-fbo run NAME, flwr-fbo run NAME --epsilon 8, and so on; results
    of the published preset may be among them.
    """
    with plain_errors(ValueError):
        read = [_of_tuning(path) for path in results]
        from flwr_fbo.study.figure import draw_tradeoff

        draw_tradeoff(read, until, figure)
    typer.echo(f"Figure: {figure}")


def _of_tuning(path: Path) -> tuple[TuningExperiment, list[Run]]:
    experiment, runs = read_results(path)
    if not isinstance(experiment, TuningExperiment):
        raise ValueError(f"results={str(path)!r} is not allowed: results of tuning.")
    return experiment, runs

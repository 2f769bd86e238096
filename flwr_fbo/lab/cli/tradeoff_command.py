"""``flwr-fbo tradeoff RESULTS...``: what more epsilon buys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import typer

from flwr_fbo._common.validation import require
from flwr_fbo.cli.output import plain_errors
from flwr_fbo.lab.experiment_runner.base import Run
from flwr_fbo.lab.experiment_runner.results import read_results
from flwr_fbo.lab.experiment_runner.tuning_experiment import TuningExperiment


def tradeoff(
    results: Annotated[list[Path], typer.Argument()],
    until: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Last evaluation of the mean best value that is drawn; all "
            "by default.",
        ),
    ] = None,
    figure: Annotated[
        Path, typer.Option(dir_okay=False, help="PNG file to write.")
    ] = Path("tradeoff.png"),
) -> None:
    """Draw utility against epsilon from the RESULTS of one task at several epsilons.

    Make them with: flwr-fbo run NAME, flwr-fbo run NAME --epsilon 8, and so on. Results
    of the published preset may be among them.

    Examples
    --------
    $ flwr-fbo tradeoff results/digits-start*
    """
    with plain_errors(ValueError):
        read = [read_results(path) for path in results]
        from flwr_fbo.lab.experiment_runner.figure import draw_tradeoff

        tuning: list[tuple[TuningExperiment, list[Run]]] = []
        for path, (experiment, runs) in zip(results, read, strict=True):
            of_tuning = isinstance(experiment, TuningExperiment)
            require(of_tuning, "results", str(path), "results of tuning")
            tuning.append((cast(TuningExperiment, experiment), runs))
        draw_tradeoff(tuning, until, figure)
    typer.echo(f"Figure: {figure}")

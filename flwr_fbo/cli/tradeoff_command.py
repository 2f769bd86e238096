"""``flwr-fbo tradeoff RESULTS...``: what more epsilon buys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import typer

from flwr_fbo._validation import require
from flwr_fbo.cli.errors import plain_errors
from flwr_fbo.experiment_runner.results import read_results
from flwr_fbo.experiment_runner.runs import Run
from flwr_fbo.experiment_runner.transfer_experiment import TransferExperiment
from flwr_fbo.experiment_runner.tuning_experiment import TuningExperiment


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
    time: Annotated[
        bool, typer.Option("--time", help="For FTS: draw against run time.")
    ] = False,
) -> None:
    """Draw utility against epsilon from the RESULTS of one task at several epsilons.

    Make them with: flwr-fbo run NAME, flwr-fbo run NAME --epsilon 8, and so on. Results
    of the published preset may be among them. FTS has no epsilon: the figure shows the
    last best value against the length of a message. With --time it shows the best value
    against run time, of one results file.

    Examples
    --------
    $ flwr-fbo tradeoff results/digits-start*
    """
    with plain_errors(ValueError):
        read = [read_results(path) for path in results]
        from flwr_fbo.experiment_runner.tradeoff import (
            draw_lengths,
            draw_times,
            draw_tradeoff,
        )

        of_fts = isinstance(read[0][0], TransferExperiment)
        kind = TransferExperiment if of_fts else TuningExperiment
        allowed = "results of FTS, as the first" if of_fts else "results of tuning"
        for path, (experiment, _) in zip(results, read, strict=True):
            require(isinstance(experiment, kind), "results", str(path), allowed)
        ok = not time or (of_fts and len(read) == 1)
        require(ok, "results", [str(p) for p in results], "one of FTS, with --time")
        if of_fts:
            fts = cast(list[tuple[TransferExperiment, list[Run]]], read)
            if time:
                draw_times(*fts[0], figure)
            else:
                draw_lengths(fts, figure)
        else:
            tuning = cast(list[tuple[TuningExperiment, list[Run]]], read)
            draw_tradeoff(tuning, until, figure)
    typer.echo(f"Figure: {figure}")

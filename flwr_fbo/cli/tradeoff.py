"""``flwr-fbo tradeoff RESULTS...``: what more epsilon buys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flwr_fbo._validation import require
from flwr_fbo.cli.errors import plain_errors
from flwr_fbo.study.experiment import TuningExperiment
from flwr_fbo.study.results import read_results
from flwr_fbo.study.transfer import TransferExperiment


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
    of the published preset may be among them. Of FTS, which has no epsilon: the best
    value in the end against the length of a message.
    """
    with plain_errors(ValueError):
        read = [read_results(path) for path in results]
        from flwr_fbo.study.figure import draw_lengths, draw_tradeoff

        tuning = [(e, runs) for e, runs in read if isinstance(e, TuningExperiment)]
        transfer = [(e, runs) for e, runs in read if isinstance(e, TransferExperiment)]
        one_kind = len(read) in (len(tuning), len(transfer))
        require(one_kind, "results", [*map(str, results)], "all of tuning, or of FTS")
        if transfer:
            draw_lengths(transfer, figure)
        else:
            draw_tradeoff(tuning, until, figure)
    typer.echo(f"Figure: {figure}")

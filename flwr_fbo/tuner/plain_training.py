"""The app's own training, as it is without a tuner: for a comparison."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, cast

from flwr.app import Context
from flwr.serverapp import Grid

from flwr_fbo.tuner.trial_context import Overlay, trial_context
from flwr_fbo.tuner.trials.parked_arrays import ParkedArrays
from flwr_fbo.tuner.trials.trial_grid import Main, TrialGrid, most_clients
from flwr_fbo.tuner.trials.trial_thread import Send, TrialThread
from flwr_fbo.tuner.trials.tuned_grid import TunedGrid


def plain_training(
    main: Main, grid: Grid, context: Context, *, is_hidden: bool
) -> dict[int, dict[str, float]]:
    """Train an app with its own settings, and return what the server then knows.

    Parameters
    ----------
    main : callable
    grid : Grid
        Of clients with `tuner_mod`.
    context : Context
    is_hidden : bool
        Whether the clients' metrics stay at the clients.

    Returns
    -------
    dict of int to dict
        Metrics by name, by round: those of the server's own evaluation, and means over
        the clients unless they are hidden.

    Raises
    ------
    Exception
        What `main` has raised.
    """
    grids: list[TrialGrid] = []
    own = trial_context(context, Overlay(context.run_config, {}))
    told = TunedGrid(grid, {}, is_hidden=is_hidden)

    def run(send: Send) -> Any:
        grids.append(TrialGrid(grid, send, is_hidden, note=lambda _metrics: None))
        try:
            main(cast(Grid, grids[0]), own)
            grids[0].finish()
        finally:
            grids[0].close()

    most = most_clients(grid)
    with tempfile.TemporaryDirectory() as folder:  # main may write files
        place = Path(folder) / "0"
        trial = TrialThread(0, run, place, ParkedArrays(), most_clients=most)
        trial.begin()
        while trial.pending:
            replies = told.send_and_receive(trial.pending, timeout=trial.timeout)
            trial.answer(list(replies))
    if trial.error is not None:
        raise trial.error
    return grids[0].measured()

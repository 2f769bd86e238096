"""The app's own training, as it is without a tuner: for a comparison."""

from __future__ import annotations

import tempfile
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid

from flwr_fbo.tuner.lone_trial import LoneTrial
from flwr_fbo.tuner.trials.trial_grid import Main
from flwr_fbo.tuner.trials.tuned_grid import TunedGrid


def plain_training(
    main: Main, grid: Grid, context: Context, *, is_hidden: bool
) -> dict[int, dict[str, float]]:
    """Train an app with its own settings, and return what the server then knows.

    Parameters
    ----------
    main : callable
        The app's server.
    grid : Grid
        Of clients with `tuner_mod`.
    context : Context
        Context of the ServerApp.
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
    told = TunedGrid(grid, {}, is_hidden=is_hidden)
    with tempfile.TemporaryDirectory() as folder:  # main may write files
        place = Path(folder) / "0"
        trial = LoneTrial(main, grid, context, place, is_hidden=is_hidden)
        trial.begin()
        while trial.pending:
            replies = told.send_and_receive(trial.pending, timeout=trial.timeout)
            trial.answer(list(replies))
    if trial.error is not None:
        raise trial.error
    return trial.grid.watched.measured()

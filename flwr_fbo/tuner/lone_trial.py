"""A trial without others: to look at an app, or to train it as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from flwr.app import Context
from flwr.serverapp import Grid

from flwr_fbo.tuner.trial_context import Overlay, trial_context
from flwr_fbo.tuner.trials.parked_arrays import ParkedArrays
from flwr_fbo.tuner.trials.trial_grid import Main, ShareOf, TrialGrid, most_clients
from flwr_fbo.tuner.trials.trial_thread import Send, TrialThread


class LoneTrial(TrialThread):
    """`main` in a thread, which ends without a comparison with others.

    Parameters
    ----------
    main : callable
        The app's server.
    grid : Grid
        Grid of the app's clients.
    context : Context
        Context of the ServerApp.
    folder : Path or None
        The working directory.
    settings : mapping, optional
        That `main` is run with; the app's own by default.
    is_hidden : bool
        Whether the clients' metrics stay at the clients.
    note : callable, optional
        Gets what the server measures, and what `main` returns.
    share : callable, optional
        Says which clients `main` sees. None: all.

    Attributes
    ----------
    grid : TrialGrid
        That `main` was given, once it has begun.
    """

    grid: TrialGrid

    def __init__(
        self,
        main: Main,
        grid: Grid,
        context: Context,
        folder: Path | None,
        *,
        settings: Mapping[str, Any] | None = None,
        is_hidden: bool = False,
        note: Callable[[Any], None] = lambda _metrics: None,
        share: ShareOf | None = None,
    ) -> None:
        own = trial_context(context, Overlay(context.run_config, settings or {}))

        def run(send: Send) -> None:
            self.grid = TrialGrid(
                grid, send, is_hidden, note, share=share, note_round=self.note_round
            )
            try:
                returned = main(cast(Grid, self.grid), own)
                self.grid.finish()
                note(returned)
            finally:
                self.grid.close()

        most = most_clients(grid)
        super().__init__(0, run, folder, ParkedArrays(), most_clients=most)

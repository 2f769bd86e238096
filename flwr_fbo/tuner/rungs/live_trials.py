"""The trials under way: of each a call of the app's `main` with a Grid of its own."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, cast

from flwr.app import Context
from flwr.serverapp import Grid

from flwr_fbo.space.search_space import Params
from flwr_fbo.tuner.choosers.chooser import Chooser
from flwr_fbo.tuner.records.trials_record import TrialsRecord
from flwr_fbo.tuner.rungs.kept_trials import KeptTrials
from flwr_fbo.tuner.rungs.standings import Standings
from flwr_fbo.tuner.trial_context import FederationTrial, Overlay, trial_context
from flwr_fbo.tuner.trials.parked_arrays import ParkedArrays
from flwr_fbo.tuner.trials.trial_grid import Main, Share, TrialGrid, most_clients
from flwr_fbo.tuner.trials.trial_thread import THREAD_NAME, Send, TrialThread


@dataclass(frozen=True)
class Federation:
    """The app and its clients, as `FederationTuner.start` gets them.

    Attributes
    ----------
    main : callable
        The app's own.
    grid : Grid
        The Grid of the ServerApp.
    context : Context
        The context of the ServerApp.
    """

    main: Main
    grid: Grid
    context: Context


class LiveTrials:
    """The trials that have begun and not ended, by number.

    Parameters
    ----------
    app : Federation
        The app that each trial calls.
    standings : Standings
        Says which rung a trial is trained for, and by whom.
    chooser : Chooser
        Says who scores the trials, and whether metrics are hidden.
    record : TrialsRecord
        Keeps what the server's own evaluation gives.
    metrics : collection of str
        Names of the metrics that the score is made of.

    Attributes
    ----------
    kept : KeptTrials
        The rounds of trials that are kept in files.
    """

    def __init__(
        self,
        app: Federation,
        standings: Standings,
        chooser: Chooser,
        record: TrialsRecord,
        metrics: Collection[str],
    ) -> None:
        self.kept = KeptTrials(record)
        self._app = app
        self._standings = standings
        self._chooser = chooser
        self._record = record
        self._metrics = metrics
        # From the app's own generator, so that an app which seeds it repeats.
        self._sample_seed = random.getrandbits(64)
        self._parked = ParkedArrays()
        self._overlays: dict[int, Overlay] = {}
        self._threads: dict[int, TrialThread] = {}
        self._grids: dict[int, TrialGrid] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._threads

    @property
    def read_keys(self) -> set[str]:
        """Tuned keys that any `main` has read from its run config."""
        return set[str]().union(*(overlay.read for overlay in self._overlays.values()))

    def get(self, number: int, settings: Params) -> TrialThread:
        """Return a trial, new unless it is under way, that knows its rung."""
        if number not in self._threads:
            own, plan = self._app.context.run_config, self._standings.plan
            self._overlays[number] = Overlay({**own, **plan.overrides}, settings)
            self._threads[number] = self._begin(number, self._overlays[number])
        current, planned = None, self._standings.planned
        if planned is not None:
            rung = self._standings.number + 1
            current = FederationTrial(number, rung, planned.rounds, dict(settings))
        self._overlays[number].trial = current
        return self._threads[number]

    def _begin(self, number: int, overlay: Overlay) -> TrialThread:
        """Return a trial that has not begun: a call of `main` with its own Grid."""
        chooser, context = self._chooser, trial_context(self._app.context, overlay)

        def note(measured: Any) -> None:
            score = chooser.server_score(measured)
            if score is not None:
                trial.note_score(score)

        def share(grid: Grid, round_number: int) -> Share:
            planned = self._standings.planned
            if planned is not None:
                # Who trains it in the next rung is not known before this one is
                # decided.
                trial.hold(planned.rounds)
            nodes = list(grid.get_node_ids())
            return self._standings.share(number, nodes, round_number)

        def run(send: Send) -> Any:
            plan = self._standings.plan
            grid = TrialGrid(
                self._app.grid,
                send,
                is_hidden=chooser.adds_noise,
                note=note,
                wanted=self._metrics,
                share=share if plan.is_shared or plan.hands_over else None,
                kept=self.kept.rounds(number),
                note_round=trial.note_round,
                sample_seed=self._sample_seed,
            )
            self._grids[number] = grid
            try:
                returned = self._app.main(cast(Grid, grid), context)
                grid.finish()
            except Exception as error:
                # What main raises may follow from NaN that it was given.
                grid.check_error(error)
                raise
            finally:
                grid.close()
            # A main with a loop of its own may return its score.
            note(returned)
            return returned

        folder = self._record.folder
        trial = TrialThread(
            number,
            run,
            folder=folder and folder / f"{THREAD_NAME}{number}",
            parked=self._parked,
            clients_score=chooser.clients_score,
            most_clients=most_clients(self._app.grid),
        )
        return trial

    def save_measured(self) -> None:
        """Record what the server's own evaluation gave in the trials under way."""
        found = {trial: grid.watched.measured() for trial, grid in self._grids.items()}
        self._record.save_measured({t: rounds for t, rounds in found.items() if rounds})

    def end_all_but(self, alive: Collection[int]) -> None:
        """Let all other trials end."""
        for number in [number for number in self._threads if number not in alive]:
            self._threads.pop(number).end()
            self._grids.pop(number, None)

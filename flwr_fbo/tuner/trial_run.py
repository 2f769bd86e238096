"""The trials under way, rung by rung: trained, compared, and ended."""

from __future__ import annotations

import copy
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message
from flwr.serverapp import Grid
from flwr.serverapp.exception import AggregationError

from flwr_fbo._common.errors import log_once
from flwr_fbo.privacy.secure_release import SecureTotal
from flwr_fbo.space.search_space import Params
from flwr_fbo.study.callbacks import Callback, DecidedRung, tell
from flwr_fbo.study.codec import to_json
from flwr_fbo.tuner.choice import Chooser
from flwr_fbo.tuner.choice import survivors as best_of
from flwr_fbo.tuner.envelope import BallotHeader, TrialsHeader
from flwr_fbo.tuner.evidence import check_evidence
from flwr_fbo.tuner.federation_result import Rung
from flwr_fbo.tuner.overlay import Overlay
from flwr_fbo.tuner.random_states import RandomStates
from flwr_fbo.tuner.rung_progress import Progress
from flwr_fbo.tuner.schedule import Halving
from flwr_fbo.tuner.secure_rungs import SecureRungs
from flwr_fbo.tuner.shared_sends import SharedSends, slots_of
from flwr_fbo.tuner.trial_grid import TrainingFailedError, TrialGrid
from flwr_fbo.tuner.trial_thread import THREAD_NAME, Send, TrialThread
from flwr_fbo.tuner.tuner_record import TunerRecord
from flwr_fbo.tuner.turn_state import TurnState

_log = logging.getLogger("flwr.fbo")

# In Flower's line about a reply that is an error.
_ERROR_REPLY = "Received error in reply from node"

Main = Callable[[Grid, Context], Any]


@dataclass(frozen=True)
class Comparison:
    """What clients compare trials by.

    Attributes
    ----------
    metric : str
        The key of the score in a reply to ``evaluate``.
    maximize : bool
    tie_seed : int or None
        Breaks ties, in an experiment that is to repeat.
    num_agents : int
        N >= 1, the most clients that compare.
    """

    metric: str
    maximize: bool
    tie_seed: int | None
    num_agents: int


class TrialRun:
    """The trials of one call of `FederationTuner.start`, as far as they have come.

    Parameters
    ----------
    main : callable
        The user's own.
    grid : Grid
    context : Context
    settings : sequence of dict
        One a trial.
        Has the settings of all trials.
    schedule : Halving
    chooser : Chooser
    comparison : Comparison
    folder : Path or None
        In which each trial has its working directory.
    callbacks : sequence of Callback
        Told of each rung that is decided.
    """

    def __init__(
        self,
        main: Main,
        grid: Grid,
        context: Context,
        settings: Sequence[Params],
        schedule: Halving,
        chooser: Chooser,
        comparison: Comparison,
        folder: Path | None,
        callbacks: Sequence[Callback],
    ) -> None:
        self._main, self._grid, self._context = main, grid, context
        self._settings = settings
        self._schedule = schedule
        self._chooser = chooser
        self._comparison = comparison
        self._folder = folder
        self._callbacks = callbacks
        self._attempt = secrets.token_hex(8)
        self._first_rung = 0
        self._overlays: list[Overlay] = []
        self._alive: list[int] = []
        self._trials: dict[int, TrialThread] = {}
        # The failures of trials that the log has already.
        self._said: dict[int, str] = {}
        self._secure: SecureRungs | None = None
        self._sends = SharedSends(
            grid, self._header, schedule.parallel, comparison.num_agents
        )

    def climb(self, record: TunerRecord, rungs: list[Rung]) -> None:
        """Decide the rungs that are left, and add them to record and list."""
        alive = tuple(range(self._schedule.trials))
        _log.info("study %s, as the ledger of each site has it", self._attempt)
        plan = self._chooser.sum_plan
        if plan is not None:
            self._secure = SecureRungs(self._sends, record, plan.roster)
        self._first_rung = len(rungs)
        progress = Progress(self._schedule, len(rungs))
        flower = logging.getLogger("flwr")
        flower.addFilter(_name_trial)
        try:
            for number in range(len(self._schedule.rungs)):
                if number == len(rungs):
                    self._decide(record, rungs, number, alive, progress)
                alive = rungs[number].survivors
        finally:
            self._end_all_but(())
            flower.removeFilter(_name_trial)

    def _decide(
        self,
        record: TunerRecord,
        rungs: list[Rung],
        number: int,
        alive: tuple[int, ...],
        progress: Progress,
    ) -> None:
        began = time.monotonic()
        planned = self._schedule.rungs[number]
        rounds = planned.rounds
        self._alive = list(alive)
        self._end_all_but(alive)
        trials: list[TrialThread] = []

        def say(sent: Sequence[TrialThread]) -> None:
            progress.say(number, trials, sent, self._sends.num_sends)

        asked = None if self._secure is None else self._secure.open_ballot()
        if asked is None:
            trials += [self._trial(t) for t in alive]
            self._sends.advance(trials, rounds, say)
            asked = self._ballot_header(number, self._failed(trials))
        messages = self._messages(asked)
        choice = self._chooser.choose(number, messages, len(alive))
        if np.isneginf(choice.scores).all():
            raise AggregationError(
                f"No client has a finite {self._comparison.metric!r}, with a positive "
                f"weight, in any trial of rung {number + 1}."
            )
        # As the ledger of each site has it.
        facts = {**choice.facts, "study_id": asked.attempt}
        choice = choice._replace(facts=facts)
        order = best_of(choice.scores, planned.num_survivors)
        survivors = tuple(alive[i] for i in order)
        rung = Rung(rounds, alive, tuple(choice.scores.tolist()), survivors)
        record.add(number, rung, choice)
        rungs.append(rung)
        _log.info(
            "rung %d of %d: %d trials at round %d after %d sends, %.0f s; %s go on; %s",
            number + 1,
            len(self._schedule.rungs),
            len(alive),
            rounds,
            self._sends.num_sends,
            time.monotonic() - began,
            list(survivors),
            progress.left(number, trials),
        )
        if trials:
            self._warn(trials, rounds)
        else:  # an earlier run trained them, and promised that release
            self._first_rung = len(rungs)
        tell(self._callbacks, "on_rung", self._decided(number, rung))
        check_evidence(number, *choice, self._comparison.num_agents)

    def _messages(self, asked: BallotHeader) -> dict[int, Any] | SecureTotal:
        """Return the clients' ballots by slot, or their sum."""
        sums = self._chooser.sums(len(asked.trials))
        if sums is None:
            return slots_of(self._sends.ballots(asked))
        assert self._secure is not None
        return self._secure.sum_of(asked, sums)

    def _decided(self, number: int, rung: Rung) -> DecidedRung:
        spent = self._chooser.spent(number + 1)
        settings = [dict(self._settings[trial]) for trial in rung.trials]
        return DecidedRung(
            number=number + 1,
            settings=tuple(settings),
            epsilon=None if spent is None else spent.epsilon,
            **vars(rung),
        )

    def _trial(self, number: int) -> TrialThread:
        """Return a trial, new unless it is under way."""
        if number not in self._trials:
            context = copy.copy(self._context)
            context.state = copy.deepcopy(self._context.state)
            overlay = Overlay(self._context.run_config, self._settings[number])
            context.run_config = overlay

            def run(send: Callable[[Send], list[Message]]) -> None:
                grid = TrialGrid(self._grid, send, self._is_hidden)
                try:
                    self._main(grid, context)
                except Exception as error:
                    grid.check_error(error)
                    raise

            self._overlays.append(overlay)
            folder = self._folder and self._folder / f"{THREAD_NAME}{number}"
            state = TurnState(RandomStates.drawn(), folder)
            self._trials[number] = TrialThread(number, run, state)
        return self._trials[number]

    def _end_all_but(self, alive: Sequence[int]) -> None:
        for number in [number for number in self._trials if number not in alive]:
            self._trials.pop(number).end()

    def _failed(self, trials: Sequence[TrialThread]) -> list[int]:
        """Return the trials that cannot be compared; raise why if none can."""
        failures = {t.number: t.failure for t in trials if t.failure is not None}
        for number, failure in failures.items():
            if repr(failure) == self._said.get(number):
                continue
            self._said[number] = repr(failure)
            if isinstance(failure, TrainingFailedError):
                _log.warning("trial %d: %s", number, failure)
            else:
                _log.warning("main has failed in trial %d: %r", number, failure)
        if len(failures) == len(trials):
            raise next(iter(failures.values()))
        return list(failures)

    def _header(self, numbers: list[int]) -> TrialsHeader:
        sums = self._chooser.sums(len(self._alive))
        return TrialsHeader(
            attempt=self._attempt,
            trials=numbers,
            settings=[self._settings[number] for number in numbers],
            alive=self._alive,
            metric=self._comparison.metric,
            is_hidden=self._is_hidden,
            promise=self._promise,
            sums=to_json(sums),
        )

    def _ballot_header(self, rung: int, failed: list[int]) -> BallotHeader:
        return BallotHeader(
            attempt=self._attempt,
            rung=rung,
            trials=self._alive,
            failed=failed,
            form=self._chooser.form(rung),
            maximize=self._comparison.maximize,
            tie_seed=self._comparison.tie_seed,
            promise=self._promise,
            release=rung - self._first_rung + 1,
        )

    @property
    def _is_hidden(self) -> bool:
        """Whether the clients' metrics stay at the clients."""
        return self._chooser.form(0) != "exact"

    @property
    def _promise(self) -> dict[str, Any]:
        return self._chooser.promise(self._first_rung).to_dict()

    def _warn(self, trials: Sequence[TrialThread], rounds: int) -> None:
        """Say which keys nothing reads, and that trials ended before their rung."""
        keys = {key for settings in self._settings for key in settings}
        read = self._sends.read.union(*(overlay.read for overlay in self._overlays))
        if unread := sorted(keys - read):
            _log.warning(
                "Nothing has read %s from a run config so far, at the server or at a "
                "client: do they change anything?",
                unread,
            )
        short = [t.number for t in trials if t.num_train < rounds and not t.failure]
        if short:
            _log.warning(
                "main ended before round %d in trials %s: the app's number of rounds "
                "should be at least that of the schedule.",
                rounds,
                short,
            )


def _name_trial(record: logging.LogRecord) -> bool:
    """Say in Flower's log which trial a line is of; count error replies that repeat."""
    name = record.threadName or ""
    if not name.startswith(THREAD_NAME):
        return True
    line = f"[{name}] {record.getMessage()}"
    if _ERROR_REPLY in line:
        reason = line.partition(": ")[2]
        log_once(f"error reply {reason}: the same", line, record.levelno)
        return False
    record.msg, record.args = line, None
    return True

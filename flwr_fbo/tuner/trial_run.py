"""The trials under way, rung by rung: trained, compared, and ended."""

from __future__ import annotations

import copy
import logging
import math
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid
from flwr.serverapp.exception import AggregationError

from flwr_fbo._common.errors import log_once
from flwr_fbo._common.fields import to_json
from flwr_fbo.privacy.secure_release import SecureTotal
from flwr_fbo.space.search_space import Params
from flwr_fbo.study.callbacks import Callback, DecidedRung, tell
from flwr_fbo.tuner.choice import Choice, Chooser, decision_scores
from flwr_fbo.tuner.choice import survivors as best_of
from flwr_fbo.tuner.envelope import BallotHeader, TrialsHeader
from flwr_fbo.tuner.evidence import check_evidence
from flwr_fbo.tuner.federation_result import Rung
from flwr_fbo.tuner.schedule import Halving
from flwr_fbo.tuner.secure_rungs import SecureRungs
from flwr_fbo.tuner.shared_sends import SharedSends
from flwr_fbo.tuner.trial_context import Overlay
from flwr_fbo.tuner.trial_grid import TrainingFailedError, TrialGrid
from flwr_fbo.tuner.trial_thread import THREAD_NAME, Send, TrialThread, TurnState
from flwr_fbo.tuner.tuner_record import TunerRecord

_log = logging.getLogger("flwr.fbo")

# In Flower's line about a reply that is an error.
_ERROR_REPLY = "Received error in reply from node"

# Seconds, at least, from one line of the log to the next.
_SECONDS_A_LINE = 30.0

Main = Callable[[Grid, Context], Any]


@dataclass
class TrialRun:
    """The trials of one call of `FederationTuner.start`, as far as they have come.

    Attributes
    ----------
    main : callable
        The user's own.
    grid : Grid
    context : Context
    settings : sequence of dict
        What each trial overlays the run config with.
    schedule : Halving
    chooser : Chooser
    metric : str
        The key of the score in a reply to ``evaluate``.
    maximize : bool
    tie_seed : int or None
        Breaks ties, in an experiment that is to repeat.
    keeps_defaults : bool
        Whether trial 0 goes on to the last rung in any case.
    record : TunerRecord
    rungs : list of Rung
        Those that are decided; `climb` adds the others, to the record too.
    folder : Path or None
        In which each trial has its working directory.
    callbacks : sequence of Callback
        Told of each rung that is decided.
    """

    main: Main
    grid: Grid
    context: Context
    settings: Sequence[Params]
    schedule: Halving
    chooser: Chooser
    metric: str
    maximize: bool
    tie_seed: int | None
    keeps_defaults: bool
    record: TunerRecord
    rungs: list[Rung]
    folder: Path | None
    callbacks: Sequence[Callback]

    def __post_init__(self) -> None:
        self._attempt = secrets.token_hex(8)
        self._first_rung = len(self.rungs)
        self._overlays: list[Overlay] = []
        self._alive = list(range(self.schedule.trials))
        self._trials: dict[int, TrialThread] = {}
        # The failures of trials that the log has already.
        self._said: dict[int, str] = {}
        self._progress = Progress(self.schedule, len(self.rungs))
        num_agents, parallel = self.chooser.num_clients, self.schedule.parallel
        self._sends = SharedSends(self.grid, self._header, parallel, num_agents)
        self._secure: SecureRungs | None = None
        if self.chooser.group is not None:
            roster = self.chooser.roster
            self._secure = SecureRungs(self._sends, self.record, roster)

    def climb(self) -> None:
        """Decide the rungs that are left."""
        _log.info("study %s, as the ledger of each site has it", self._attempt)
        flower = logging.getLogger("flwr")
        flower.addFilter(_name_trial)
        try:
            for number in range(len(self.schedule.rungs)):
                if number == len(self.rungs):
                    self._decide(number)
                self._alive = list(self.rungs[number].survivors)
        finally:
            self._end_all_but(())
            flower.removeFilter(_name_trial)

    def _decide(self, number: int) -> None:
        """Train the trials of a rung, compare them, and record what that gave."""
        began = time.monotonic()
        planned, alive = self.schedule.rungs[number], self._alive
        self._end_all_but(alive)
        trials: list[TrialThread] = []

        def say(sent: Sequence[TrialThread]) -> None:
            self._progress.say(number, trials, sent, self._sends.num_sends)

        # A sum that may have been unmasked is finished as it was asked for.
        asked = self._secure.open_ballot() if self._secure else None
        if asked is None:
            trials += [self._trial(t) for t in alive]
            self._sends.advance(trials, planned.rounds, say)
            asked = self._ballot_header(number, self._failed(trials))
        sums = self.chooser.sums(len(alive))
        messages: dict[int, Any] | SecureTotal
        if self._secure is None or sums is None:
            messages = self._sends.ballots(asked)
        else:
            messages = self._secure.sum_of(asked, sums)
        choice = self.chooser.choose(number, messages, len(alive))
        if np.isneginf(choice.scores).all():
            raise AggregationError(
                f"No client has a finite {self.metric!r}, with a positive weight, in "
                f"any trial of rung {number + 1}."
            )
        # The study's name, as the ledger of each site has it.
        facts = {**choice.facts, "study_id": asked.attempt, "failed": asked.failed}
        choice = choice._replace(facts=facts)
        kept = None
        if self.keeps_defaults and planned.num_survivors > 1 and 0 in alive:
            # Defaults with which main fails are no choice.
            kept = alive.index(0) if 0 not in asked.failed else None
        compared = decision_scores(
            [*(rung.trials for rung in self.rungs), alive],
            [*(Choice(row.vectors, row.facts) for row in self.record.ledger()), choice],
        )
        order = best_of(compared, planned.num_survivors, kept)
        survivors = tuple(alive[i] for i in order)
        scores = tuple(choice.scores.tolist())
        rung = Rung(planned.rounds, tuple(alive), scores, survivors)
        self.record.add(number, rung, choice)
        self.rungs.append(rung)
        _log.info(
            "rung %d of %d: %d trials at round %d after %d sends, %.0f s; %s go on; %s",
            number + 1,
            len(self.schedule.rungs),
            len(alive),
            planned.rounds,
            self._sends.num_sends,
            time.monotonic() - began,
            list(survivors),
            self._progress.left(number, trials),
        )
        if trials:
            self._warn(trials, planned.rounds)
        else:  # an earlier run trained them, and promised that release
            self._first_rung = len(self.rungs)
        spent = self.chooser.spent(number + 1)
        tell(
            self.callbacks,
            "on_rung",
            DecidedRung(
                number=number + 1,
                settings=tuple(dict(self.settings[trial]) for trial in alive),
                epsilon=None if spent is None else spent.epsilon,
                **vars(rung),
            ),
        )
        check_evidence(number, *choice, self.chooser.num_clients)

    def _trial(self, number: int) -> TrialThread:
        """Return a trial, new unless it is under way."""
        if number not in self._trials:
            context = copy.copy(self.context)
            context.state = copy.deepcopy(self.context.state)
            overlay = Overlay(self.context.run_config, self.settings[number])
            context.run_config = overlay

            def run(send: Send) -> None:
                grid = TrialGrid(self.grid, send, self.chooser.hides_metrics)
                try:
                    self.main(cast(Grid, grid), context)
                except Exception as error:
                    grid.check_error(error)
                    raise

            self._overlays.append(overlay)
            folder = self.folder and self.folder / f"{THREAD_NAME}{number}"
            self._trials[number] = TrialThread(number, run, TurnState(folder))
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
        sums = self.chooser.sums(len(self._alive))
        return TrialsHeader(
            attempt=self._attempt,
            trials=numbers,
            settings=[self.settings[number] for number in numbers],
            alive=self._alive,
            metric=self.metric,
            is_hidden=self.chooser.hides_metrics,
            promise=self.chooser.promise(self._first_rung).to_dict(),
            sums=to_json(sums),
        )

    def _ballot_header(self, rung: int, failed: list[int]) -> BallotHeader:
        return BallotHeader(
            attempt=self._attempt,
            rung=rung,
            trials=self._alive,
            failed=failed,
            form=self.chooser.form(rung),
            maximize=self.maximize,
            tie_seed=self.tie_seed,
            promise=self.chooser.promise(self._first_rung).to_dict(),
            release=rung - self._first_rung + 1,
        )

    def _warn(self, trials: Sequence[TrialThread], rounds: int) -> None:
        """Say which keys nothing reads, and that trials ended before their rung."""
        keys = {key for settings in self.settings for key in settings}
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


class Progress:
    """Logs trials, rung, round and the time left, a line in half a minute at most.

    The time left is estimated from the time that shared rounds have taken so far: a
    round of training of all trials that share their sends.

    Parameters
    ----------
    schedule : Halving
    first_rung : int
        From 0, where this run begins: its trials are trained from the start.
    clock : callable
        Returns seconds.
    """

    def __init__(
        self,
        schedule: Halving,
        first_rung: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._schedule = schedule
        self._clock = clock
        rounds = [rung.rounds for rung in schedule.rungs]
        # Of each rung: where its trials start.
        self._starts = [0, *rounds[:-1]]
        self._starts[first_rung] = 0
        self._shared_rounds = {
            rung: math.ceil(schedule.rungs[rung].num_trials / schedule.parallel)
            * (schedule.rungs[rung].rounds - self._starts[rung])
            for rung in range(first_rung, len(schedule.rungs))
        }
        self._began = self._last_line = clock()

    def say(
        self,
        rung: int,
        trials: Sequence[TrialThread],
        sent: Sequence[TrialThread],
        num_sends: int,
    ) -> None:
        """Log a line, unless the last one was just now.

        Parameters
        ----------
        rung : int
            From 0.
        trials : sequence of TrialThread
            Of the rung.
        sent : sequence of TrialThread
            Those that shared the last send.
        num_sends : int
            So far.
        """
        now = self._clock()
        if now - self._last_line < _SECONDS_A_LINE:
            return
        self._last_line = now
        _log.info(
            "rung %d of %d, round %d of %d, trials %s: %d sends so far, %s",
            rung + 1,
            len(self._schedule.rungs),
            max(trial.num_train for trial in sent),
            self._schedule.rungs[rung].rounds,
            ", ".join(str(trial.number) for trial in sent),
            num_sends,
            self.left(rung, trials),
        )

    def left(self, rung: int, trials: Sequence[TrialThread]) -> str:
        """Return the time left, in words."""
        done = self._done(rung, trials)
        total = sum(self._shared_rounds.values())
        if done == 0:
            return "the time left is not known yet"
        seconds = (self._clock() - self._began) * (total - done) / done
        return f"about {_duration(seconds)} left"

    def _done(self, rung: int, trials: Sequence[TrialThread]) -> float:
        """Return the shared rounds that are done, in parts."""
        planned = self._schedule.rungs[rung]
        end, num = planned.rounds, planned.num_trials
        left = sum(max(end - t.num_train, 0) for t in trials if not t.has_ended)
        part = 1 - left / (num * (end - self._starts[rung]))
        before = sum(n for r, n in self._shared_rounds.items() if r < rung)
        return before + part * self._shared_rounds[rung]


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


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"

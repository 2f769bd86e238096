"""The trials under way, rung by rung: trained, compared, and ended."""

from __future__ import annotations

import logging
import math
import random
import secrets
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid
from flwr.serverapp.exception import AggregationError

from flwr_fbo._common.errors import log_once
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.privacy.secure_release import SecureTotal
from flwr_fbo.space.search_space import Params
from flwr_fbo.strategies.round_progress import duration
from flwr_fbo.study.callbacks import Callback, DecidedRung, tell
from flwr_fbo.tuner.candidates import Candidates
from flwr_fbo.tuner.choice import Chooser, server_choice, survivors_of
from flwr_fbo.tuner.envelope import BallotHeader, TrialsHeader
from flwr_fbo.tuner.evidence import check_evidence
from flwr_fbo.tuner.hidden_metrics import score_of
from flwr_fbo.tuner.parked_arrays import ParkedArrays
from flwr_fbo.tuner.proposed_trials import ProposedTrials
from flwr_fbo.tuner.schedule import Plan
from flwr_fbo.tuner.secure_rungs import open_ballot, summed_ballots
from flwr_fbo.tuner.shared_sends import SharedSends
from flwr_fbo.tuner.trial_context import (
    FederationTrial,
    Overlay,
    trial_context,
)
from flwr_fbo.tuner.trial_grid import (
    Main,
    TrainingFailedError,
    TrialGrid,
    TunedGrid,
)
from flwr_fbo.tuner.trial_thread import (
    THREAD_NAME,
    EvaluationFailedError,
    Send,
    TrialThread,
)
from flwr_fbo.tuner.tuner_record import TunerRecord, rung_of

_log = logging.getLogger("flwr.fbo")

# In Flower's line about a reply that is an error.
_ERROR_REPLY = "Received error in reply from node"

_EARLY_STOPPING = (
    " Does main stop early on aggregated metrics? They are NaN while trials are "
    "compared privately, so it stops too soon: let it stop early only where "
    "current_trial(context) is None."
)

# Seconds, at least, from one line of the log to the next.
_SECONDS_A_LINE = 30.0
# Sends that say nothing of how long others take: a training and an evaluation.
_NUM_FIRST_SENDS = 2

_SERVER = "the server's evaluation"


@dataclass(frozen=True)
class Federation:
    """The app and its clients, as `FederationTuner.start` gets them."""

    main: Main
    grid: Grid
    context: Context


@dataclass(frozen=True)
class Score:
    """What trials are compared by.

    Attributes
    ----------
    weights : dict of str to float
        Weight of each metric in a score.
    maximize : bool
        Whether larger scores are better.
    """

    weights: dict[str, float]
    maximize: bool


@dataclass(kw_only=True)
class TrialRun:
    """The trials of one call of `FederationTuner.start`, as far as they have come.

    Attributes
    ----------
    app : Federation
    candidates : Candidates
        What each trial overlays the run config with, as far as it is known: `proposed`
        adds the others.
    plan : Plan
    chooser : Chooser
    score : Score
    record : TunerRecord
        `climb` adds the rungs that are left.
    folder : Path or None
        In which each trial has its working directory.
    callbacks : sequence of Callback
        Told of each rung that is decided.
    proposed : ProposedTrials, optional
        Proposes the settings of the first rung, and shows its scores.
    """

    app: Federation
    candidates: Candidates
    plan: Plan
    chooser: Chooser
    score: Score
    record: TunerRecord
    folder: Path | None
    callbacks: Sequence[Callback]
    proposed: ProposedTrials | None = None

    def __post_init__(self) -> None:
        self._rungs = self.record.rungs()
        self._attempt = secrets.token_hex(8)
        # From the app's own generator, so that an app which seeds it repeats.
        self._sample_seed = random.getrandbits(64)
        self._first_rung = len(self._rungs)
        self._overlays: dict[int, Overlay] = {}
        self._alive = list(range(self.plan.rungs[0].num_trials))
        # Whether the trial that was chosen goes on to the end of its main.
        self._is_final = False
        self._trials: dict[int, TrialThread] = {}
        self._parked = ParkedArrays()
        # The failures of trials that the log has already.
        self._said: dict[int, str] = {}
        self._progress = Progress(self.plan, len(self._rungs))
        num_agents, parallel = self.chooser.num_clients, self.plan.parallel
        source, is_shared = self.chooser.score_source, self.plan.is_shared
        self._ledgers = self.record.site_ledgers()
        about = self._header, parallel, num_agents, self._ledgers, source, is_shared
        self._sends = SharedSends(self.app.grid, *about)

    @property
    def _settings(self) -> list[Params]:
        return self.candidates.settings

    def climb(self, exact_metrics: bool = False) -> Any:
        """Decide the rungs that are left, and train the chosen trial to its end.

        Parameters
        ----------
        exact_metrics : bool
            Whether the clients send their metrics in that last part.

        Returns
        -------
        object
            What `main` has returned in that trial; None where the plan is only to
            choose.
        """
        _log.info("study %s, as the ledger of each site has it", self._attempt)
        flower = logging.getLogger("flwr")
        flower.addFilter(_name_trial)
        try:
            for number in range(len(self.plan.rungs)):
                if number == len(self._rungs):
                    self._decide(number)
                self._alive = list(self._rungs[number].survivors)
            return self._finish(exact_metrics) if self.plan.hands_over else None
        finally:
            self._end_all_but(())
            if self.proposed is not None:
                self.proposed.end()
            flower.removeFilter(_name_trial)

    def _decide(self, number: int) -> None:
        """Train the trials of a rung, compare them, and record what that gave."""
        began = time.monotonic()
        planned, alive = self.plan.rungs[number], self._alive
        self._end_all_but(alive)
        trials: list[TrialThread] = []
        # A sum that may have been unmasked is finished as it was asked for.
        asked = open_ballot(self._sends, self.record)
        if asked is None:
            trials = self._trained(number)
            self._sends.check_answers()
            self._say_failures(trials)
            asked = self._ballot_header(number, trials)
        row = self._choice(asked, trials)
        if np.isneginf(row.vectors).all():
            who = "server" if self.chooser.score_source == "server" else "client"
            metric = " + ".join(self.score.weights)
            raise AggregationError(
                f"metric={metric!r}: no {who} has a finite score, "
                f"with a positive weight, in any trial of rung {number + 1}."
            )
        # The study's name, as the ledger of each site has it.
        row.facts.update(study_id=asked.attempt, failed=list(asked.failed))
        row.facts.update(rounds=planned.rounds, trials=alive)
        rows = [*self.record.ledger(), row]
        order = survivors_of(rows, planned.num_survivors)
        row.facts["survivors"] = survivors = [alive[i] for i in order]
        rung = rung_of(row, "maximize" if self.score.maximize else "minimize")
        if self.proposed is not None:
            going_on = survivors if planned.num_survivors > 1 else ()
            scores = dict(zip(alive, rung.scores, strict=True))
            self.proposed.report(planned.rounds, scores, going_on)
        self.record.add(row, self._ledgers)
        self._rungs.append(rung)
        goes_on = f"{survivors} go on; {self._progress.left(number, trials)}"
        is_last = number + 1 == len(self.plan.rungs)
        _log.info(
            "rung %d of %d: %d trials at round %d after %d sends, %.0f s; %s",
            number + 1,
            len(self.plan.rungs),
            len(alive),
            planned.rounds,
            self._sends.num_sends,
            time.monotonic() - began,
            f"trial {survivors[0]} has the best score" if is_last else goes_on,
        )
        if trials:
            self._warn(trials, planned.rounds)
        else:  # an earlier run trained them, and promised that release
            self._first_rung = len(self._rungs)
        spent = self.record.spent()
        tell(
            self.callbacks,
            "on_rung",
            DecidedRung(
                number=number + 1,
                settings=tuple(dict(self._settings[trial]) for trial in alive),
                epsilon=None if spent is None else spent.epsilon,
                rounds=rung.rounds,
                trials=rung.trials,
                scores=rung.scores,
                survivors=rung.survivors,
            ),
        )
        check_evidence(row, self.chooser.num_clients)

    def _trained(self, number: int) -> list[TrialThread]:
        """Return the trials of a rung, trained.

        In the first rung a sampler proposes as many trials as share a send, and learns
        their scores before it proposes the next.
        """
        rounds, trials = self.plan.rungs[number].rounds, list[TrialThread]()

        def say(sent: Sequence[TrialThread]) -> None:
            self._progress.say(number, trials, sent, self._sends.num_sends)

        is_proposed = self.proposed is not None and number == 0
        batches = [range(len(self._alive))]
        if is_proposed and self.plan.is_shared:
            batches = self.plan.turns(number)
        elif is_proposed:
            size, num = self.plan.parallel, len(self._alive)
            batches = [range(i, min(i + size, num)) for i in range(0, num, size)]
        self._sends.begin_rung()
        for places in batches:
            numbers = [self._alive[place] for place in places]
            self._propose(numbers)
            batch = [self._trial(trial) for trial in numbers]
            trials += batch
            self._sends.advance(batch, rounds, say)
            if self.proposed is not None and is_proposed:
                found = self._choice(self._ballot_header(number, batch), batch)
                scores = self._signed(found.vectors)
                for trial, score in zip(numbers, scores, strict=True):
                    self.proposed.learn(trial, self._settings[trial], score)
        return trials

    def _propose(self, numbers: Sequence[int]) -> None:
        """Have settings for trials, on record before training, and show them."""
        if self.proposed is None:
            return
        missing = range(len(self._settings), numbers[-1] + 1)
        for number in missing:
            self.proposed.propose(number, self.candidates)
        if missing:
            self.record.save_settings(self._settings)
        for number in numbers:
            if number not in self._trials:
                self.proposed.show(number, self._settings[number])

    def _signed(self, scores: Iterable[float]) -> list[float]:
        """Return scores of which larger ones are better in the metric's unit."""
        return [float(score if self.score.maximize else -score) for score in scores]

    def _choice(self, asked: BallotHeader, trials: Sequence[TrialThread]) -> LedgerRow:
        """Return the scores of some trials of a rung, from whoever has them."""
        if self.chooser.score_source == "server":
            sign = 1.0 if self.score.maximize else -1.0
            lost = {trial.number: math.nan for trial in trials if trial.failure}
            scores = [sign * lost.get(t.number, t.server_score) for t in trials]
            return server_choice(asked.rung, scores)
        num_trials = len(asked.trials)
        sums = self.chooser.sums(num_trials)
        messages: dict[int, Any] | SecureTotal
        if sums is None:
            messages = self._sends.ballots(asked)
        else:
            roster = self.chooser.roster
            messages = summed_ballots(self._sends, self.record, roster, asked, sums)
        return self.chooser.choose(asked.rung, messages, num_trials)

    def _trial(self, number: int) -> TrialThread:
        """Return a trial, new unless it is under way."""
        if number not in self._trials:
            run_config = {**self.app.context.run_config, **self.plan.overrides}
            overlay = Overlay(run_config, self._settings[number])
            context = trial_context(self.app.context, overlay)
            source = self.chooser.score_source

            def note(metrics: Any) -> None:
                if isinstance(metrics, tuple) and len(metrics) == 2:
                    metrics = metrics[1]  # loss and metrics, in Flower's older API
                if source == "server" and isinstance(metrics, Mapping):
                    trial.note_score(score_of(metrics, self.score.weights, _SERVER))

            def share(grid: Grid, round_number: int) -> tuple[Sequence[int], int]:
                return self._share_of(trial, grid, round_number)

            def run(send: Send) -> Any:
                is_hidden, plan = self.chooser.hides_metrics, self.plan
                shared = share if plan.is_shared or plan.hands_over else None
                about = is_hidden, note, shared, self._sample_seed
                grid = TrialGrid(self.app.grid, send, *about)
                try:
                    returned = self.app.main(cast(Grid, grid), context)
                except Exception as error:
                    grid.check_error(error)
                    raise
                finally:
                    grid.close()
                note(returned)
                return returned

            self._overlays[number] = overlay
            folder = self.folder and self.folder / f"{THREAD_NAME}{number}"
            trial = TrialThread(number, run, folder, self._parked, source)
            self._trials[number] = trial
        rung, settings = len(self._rungs), dict(self._settings[number])
        current = None
        if rung < len(self.plan.rungs):
            rounds = self.plan.rungs[rung].rounds
            current = FederationTrial(number, rung + 1, rounds, settings)
        self._overlays[number].trial = current
        return self._trials[number]

    def _share_of(
        self, trial: TrialThread, grid: Grid, round_number: int
    ) -> tuple[Sequence[int], int]:
        """Return who trains a trial in a round; wait at the end of a rung.

        A trial that is trained again has the groups of its first training, so that a
        run which goes on comes to the same models.
        """
        if not self._is_final:
            trial.hold(self.plan.rungs[len(self._rungs)].rounds)
        nodes = list(grid.get_node_ids())
        ends = [planned.rounds for planned in self.plan.rungs]
        rung = bisect_left(ends, round_number)
        if not self._is_final:  # main may train on before it is scored
            rung = min(rung, len(self._rungs))
        if rung == len(ends) or not self.plan.is_shared:
            return nodes, 0
        is_decided = rung < len(self._rungs)
        trials = self._rungs[rung].trials if is_decided else self._alive
        place = trials.index(trial.number)
        share = self.plan.share(nodes, rung, place, round_number)
        return share, self.plan.min_clients

    def _finish(self, exact_metrics: bool) -> Any:
        """Train the trial that was chosen to the end of its main, with all clients."""
        self._is_final = True
        (number,) = self._alive
        self._end_all_but(self._alive)
        is_kept = number in self._trials
        trial = self._trial(number)
        _log.info(
            "trial %d is trained to the end of main, by all clients%s",
            number,
            "" if is_kept else ", from its start: an earlier run has chosen it",
        )
        trial.move()
        trial.come_forward()
        is_hidden = self.chooser.settings is not None and not exact_metrics
        settings = {**self._settings[number], **self.plan.overrides}
        about = settings, is_hidden, self._attempt, number
        grid = TunedGrid(self.app.grid, *about)
        trial.begin()
        while trial.pending:
            replies = grid.send_and_receive(trial.pending, timeout=trial.timeout)
            trial.answer(list(replies))
        if trial.error is not None:
            raise trial.error
        return trial.returned

    def _end_all_but(self, alive: Sequence[int]) -> None:
        for number in [number for number in self._trials if number not in alive]:
            self._trials.pop(number).end()

    def _say_failures(self, trials: Sequence[TrialThread]) -> None:
        """Log why trials cannot be compared; raise it if none can."""
        failures = {t.number: t.failure for t in trials if t.failure is not None}
        for number, failure in failures.items():
            if repr(failure) == self._said.get(number):
                continue
            self._said[number] = repr(failure)
            if isinstance(failure, TrainingFailedError | EvaluationFailedError):
                _log.warning("trial %d: %s", number, failure)
            else:
                _log.warning("main has failed in trial %d: %r", number, failure)
        if len(failures) == len(trials):
            raise next(iter(failures.values()))

    def _header(self, numbers: list[int]) -> TrialsHeader:
        sums, number = self.chooser.sums(len(self._alive)), len(self._rungs)
        return TrialsHeader(
            attempt=self._attempt,
            trials=tuple(numbers),
            settings=tuple(
                {**self._settings[number], **self.plan.overrides} for number in numbers
            ),
            alive=tuple(self._alive),
            metric={} if self.chooser.score_source == "server" else self.score.weights,
            is_hidden=self.chooser.hides_metrics,
            promise=self.chooser.promise(self._first_rung),
            sums=sums,
            rung=number + 1,
            rounds=self.plan.rungs[number].rounds,
        )

    def _ballot_header(self, rung: int, trials: Sequence[TrialThread]) -> BallotHeader:
        return BallotHeader(
            attempt=self._attempt,
            rung=rung,
            trials=tuple(trial.number for trial in trials),
            failed=tuple(t.number for t in trials if t.failure is not None),
            is_exact=self.chooser.settings is None,
            maximize=self.score.maximize,
            promise=self.chooser.promise(self._first_rung),
            release=rung - self._first_rung + 1,
        )

    def _warn(self, trials: Sequence[TrialThread], rounds: int) -> None:
        """Say which keys nothing reads, and that trials ended before their rung."""
        keys = {key for settings in self._settings for key in settings}
        overlays = self._overlays.values()
        read = self._sends.read.union(*(overlay.read for overlay in overlays))
        if unread := sorted(keys - read):
            _log.warning(
                "Nothing has read %s from a run config so far, at the server or at a "
                "client: do they change anything?",
                unread,
            )
        short = [t.number for t in trials if t.num_train < rounds and not t.failure]
        if short:
            _log.warning(
                "main ended before round %d in trials %s, which are compared as they "
                "are: the app's number of rounds should be at least that of the "
                "schedule.%s",
                rounds,
                short,
                _EARLY_STOPPING if self.chooser.hides_metrics else "",
            )


class Progress:
    """Logs trials, rung, round and the time left, a line in half a minute at most.

    The time left is estimated from the time that shared rounds have taken after the
    first two sends, in which an engine may have to start. A shared round is one round
    of training of all trials that share their sends.

    Parameters
    ----------
    plan : Plan
    first_rung : int
        From 0, where this run begins: its trials are trained from the start.
    clock : callable
        Returns seconds.
    """

    def __init__(
        self,
        plan: Plan,
        first_rung: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plan = plan
        self._clock = clock
        rounds = [rung.rounds for rung in plan.rungs]
        # Of each rung: where its trials start.
        self._starts = [0, *rounds[:-1]]
        self._starts[first_rung : first_rung + 1] = [0]
        self._shared_rounds = {
            rung: math.ceil(plan.rungs[rung].num_trials / plan.parallel)
            * (plan.rungs[rung].rounds - self._starts[rung])
            for rung in range(first_rung, len(plan.rungs))
        }
        self._began = self._last_line = clock()
        self._done_before = 0.0  # shared rounds, when the clock was read

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
        if num_sends <= _NUM_FIRST_SENDS:
            self._began, self._done_before = now, self._done(rung, trials)
        if now - self._last_line < _SECONDS_A_LINE:
            return
        self._last_line = now
        _log.info(
            "rung %d of %d, round %d of %d, trials %s: %d sends so far, %s",
            rung + 1,
            len(self._plan.rungs),
            max(trial.num_train for trial in sent),
            self._plan.rungs[rung].rounds,
            ", ".join(str(trial.number) for trial in sent),
            num_sends,
            self.left(rung, trials),
        )

    def left(self, rung: int, trials: Sequence[TrialThread]) -> str:
        """Return the time left, in words."""
        left = sum(self._shared_rounds.values()) - self._done(rung, trials)
        done = self._done(rung, trials) - self._done_before
        if done <= 0:
            return "the time left is not known yet"
        seconds = (self._clock() - self._began) * left / done
        return f"about {duration(seconds)} left"

    def _done(self, rung: int, trials: Sequence[TrialThread]) -> float:
        """Return the shared rounds that are done, in parts."""
        planned = self._plan.rungs[rung]
        end, num = planned.rounds, planned.num_trials
        length = end - self._starts[rung]
        left = sum(max(end - t.num_train, 0) for t in trials if not t.has_ended)
        if trials:  # without any, an earlier run trained them
            left += (num - len(trials)) * length
        part = 1 - left / (num * length)
        before = sum(n for r, n in self._shared_rounds.items() if r < rung)
        return before + part * self._shared_rounds[rung]


def _name_trial(record: logging.LogRecord) -> bool:
    """Say in Flower's log which trial a line is of; count error replies that repeat.

    Below a warning it is at level DEBUG: sixteen trainings would fill the log.
    """
    name = record.threadName or ""
    if not name.startswith(THREAD_NAME):
        return True
    line = f"[{name}] {record.getMessage()}"
    if _ERROR_REPLY in line:
        reason = line.partition(": ")[2]
        log_once(f"error reply {reason}: the same", line, record.levelno)
        return False
    record.msg, record.args = line, None
    if record.levelno < logging.WARNING:
        record.levelno, record.levelname = logging.DEBUG, "DEBUG"
    return True

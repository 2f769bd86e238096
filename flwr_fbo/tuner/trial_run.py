"""The trials under way, rung by rung: trained, compared, and ended."""

from __future__ import annotations

import logging
import random
import secrets
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid
from flwr.serverapp.exception import AggregationError

from flwr_fbo.space.search_space import Params
from flwr_fbo.study.callbacks import Callback, DecidedRung, tell
from flwr_fbo.tuner.candidates import Candidates
from flwr_fbo.tuner.choice import survivors_of
from flwr_fbo.tuner.choosers.chooser import Chooser
from flwr_fbo.tuner.envelope import BallotHeader, TrialsHeader
from flwr_fbo.tuner.evidence import check_evidence
from flwr_fbo.tuner.federation_result import Rung
from flwr_fbo.tuner.kept_trials import KeptTrials
from flwr_fbo.tuner.parked_arrays import ParkedArrays
from flwr_fbo.tuner.progress import IS_PROGRESS, Progress, TrialLog
from flwr_fbo.tuner.proposed_trials import ProposedTrials
from flwr_fbo.tuner.schedule import Plan
from flwr_fbo.tuner.score import Score
from flwr_fbo.tuner.shared_sends import SharedSends
from flwr_fbo.tuner.trial_context import (
    FederationTrial,
    Overlay,
    trial_context,
)
from flwr_fbo.tuner.trial_grid import (
    Main,
    Share,
    TrainingFailedError,
    TrialGrid,
    TunedGrid,
    most_clients,
)
from flwr_fbo.tuner.trial_thread import (
    THREAD_NAME,
    EvaluationFailedError,
    Send,
    TrialThread,
)
from flwr_fbo.tuner.tuner_record import TunerRecord, rung_of

_log = logging.getLogger("flwr.fbo")

_EARLY_STOPPING = (
    " Does the server stop early on aggregated metrics? They are NaN while trials are "
    "compared privately, so it stops too soon: let it stop early only where "
    "current_trial(context) is None."
)


@dataclass(frozen=True)
class Federation:
    """The app and its clients, as `FederationTuner.start` gets them."""

    main: Main
    grid: Grid
    context: Context


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
        # Of each trial under way, what its training has come to.
        self._grids: dict[int, TrialGrid] = {}
        self._parked = ParkedArrays()
        # The failures of trials that the log has already.
        self._said: dict[int, str] = {}
        self._log_of_trials = TrialLog()
        self._progress = Progress(self.plan, len(self._rungs))
        self._kept = KeptTrials(self.folder, self.record)
        self._ledgers = self.record.site_ledgers()
        self._sends = SharedSends(
            self.app.grid,
            self._header,
            parallel=self.plan.parallel,
            num_agents=self.chooser.num_clients,
            ledgers=self._ledgers,
            asks_all=self.chooser.clients_score,
            skips=self.plan.is_shared,
            hear_state=self._kept.stop,
        )

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
        with self._log_of_trials:
            try:
                for number in range(len(self.plan.rungs)):
                    if number == len(self._rungs):
                        self._decide(number)
                    self._alive = list(self._rungs[number].survivors)
                returned = self._finish(exact_metrics) if self.plan.hands_over else None
                self._kept.end_all_but(())
                return returned
            finally:
                self._end_all_but(())
                if self.proposed is not None:
                    self.proposed.end()

    def _decide(self, number: int) -> None:
        """Train the trials of a rung, compare them, and record what that gave."""
        began = time.monotonic()
        self._end_all_but(self._alive)
        self._kept.end_all_but(self._alive)
        trials: list[TrialThread] = []
        asked = self.chooser.open_ballot(self._sends, self.record)
        if asked is None:
            trials = self._trained(number)
            self._sends.check_answers()
            self._say_failures(trials)
            asked = self._ballot_header(number, trials)
        row = self.chooser.compare(asked, trials, self._sends, self.record)
        if np.isneginf(row.vectors).all():
            raise AggregationError(
                f"metric={str(self.score)!r}: there is no finite score, with a "
                f"positive weight, in any trial of rung {number + 1}."
            )
        planned = self.plan.rungs[number]
        # The study's name, as the ledger of each site has it.
        row.facts.update(study_id=asked.attempt, failed=list(asked.failed))
        row.facts.update(rounds=planned.rounds, trials=self._alive)
        order = survivors_of([*self.record.ledger(), row], planned.num_survivors)
        row.facts["survivors"] = [self._alive[place] for place in order]
        rung = rung_of(row, self.score.direction)
        if self.proposed is not None:
            going_on = rung.survivors if planned.num_survivors > 1 else ()
            scores = dict(zip(rung.trials, rung.scores, strict=True))
            self.proposed.report(rung.rounds, scores, going_on)
        self._measure()
        self.record.add(row, self._ledgers)
        self._rungs.append(rung)
        self._say_decided(trials, time.monotonic() - began)
        if trials:
            self._warn(trials, planned.rounds)
        else:  # an earlier run trained them, and promised that release
            self._first_rung = len(self._rungs)
        self._tell_of(rung)
        check_evidence(row, self.chooser.num_clients)

    def _say_decided(self, trials: Sequence[TrialThread], seconds: float) -> None:
        """Log what the last rung has given."""
        rung, number = self._rungs[-1], len(self._rungs)
        left = self._progress.left(number - 1, trials)
        outcome = f"{list(rung.survivors)} go on; {left}"
        if number == len(self.plan.rungs):
            outcome = f"trial {rung.survivors[0]} has the best score"
        _log.info(
            "rung %d of %d: %d trials at round %d after %d sends, %.0f s; %s",
            number,
            len(self.plan.rungs),
            len(rung.trials),
            rung.rounds,
            self._sends.num_sends,
            seconds,
            outcome,
            extra={IS_PROGRESS: "rung"},
        )

    def _tell_of(self, rung: Rung) -> None:
        """Tell the callbacks of the last rung."""
        spent = self.record.spent()
        decided = DecidedRung(
            number=len(self._rungs),
            settings=tuple(dict(self._settings[trial]) for trial in rung.trials),
            epsilon=None if spent is None else spent.epsilon,
            rounds=rung.rounds,
            trials=rung.trials,
            scores=rung.scores,
            survivors=rung.survivors,
        )
        tell(self.callbacks, "on_rung", decided)

    def _trained(self, number: int) -> list[TrialThread]:
        """Return the trials of a rung, trained.

        In the first rung a sampler proposes as many trials as share a send, and learns
        their scores before it proposes the next.
        """
        rounds, trials = self.plan.rungs[number].rounds, list[TrialThread]()

        def say(sent: Sequence[TrialThread]) -> None:
            for trial in sent:
                self._log_of_trials.forget(trial)
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
                asked = self._ballot_header(number, batch)
                found = self.chooser.compare(asked, batch, self._sends, self.record)
                scores = self.score.signed(found.vectors)
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

    def _trial(self, number: int) -> TrialThread:
        """Return a trial, new unless it is under way, that knows its rung."""
        if number not in self._trials:
            run_config = {**self.app.context.run_config, **self.plan.overrides}
            self._overlays[number] = Overlay(run_config, self._settings[number])
            self._trials[number] = self._new_trial(number, self._overlays[number])
        current, rung = None, len(self._rungs)
        if rung < len(self.plan.rungs):
            rounds, settings = self.plan.rungs[rung].rounds, self._settings[number]
            current = FederationTrial(number, rung + 1, rounds, dict(settings))
        self._overlays[number].trial = current
        return self._trials[number]

    def _new_trial(self, number: int, overlay: Overlay) -> TrialThread:
        """Return a trial that has not begun: a call of `main` with its own Grid."""
        context = trial_context(self.app.context, overlay)

        def note(measured: Any) -> None:
            score = self.chooser.server_score(measured)
            if score is not None:
                trial.note_score(score)

        def share(grid: Grid, round_number: int) -> Share:
            return self._share_of(trial, grid, round_number)

        def run(send: Send) -> Any:
            grid = TrialGrid(
                self.app.grid,
                send,
                is_hidden=self.chooser.adds_noise,
                note=note,
                wanted=self.score.weights,
                share=share if self.plan.is_shared or self.plan.hands_over else None,
                kept=self._kept.rounds(number),
                note_round=trial.note_round,
                sample_seed=self._sample_seed,
            )
            self._grids[number] = grid
            try:
                returned = self.app.main(cast(Grid, grid), context)
                grid.finish()
            except Exception as error:
                grid.check_error(error)
                raise
            finally:
                grid.close()
            note(returned)
            return returned

        trial = TrialThread(
            number,
            run,
            folder=self.folder and self.folder / f"{THREAD_NAME}{number}",
            parked=self._parked,
            clients_score=self.chooser.clients_score,
            most_clients=most_clients(self.app.grid),
        )
        return trial

    def _share_of(self, trial: TrialThread, grid: Grid, round_number: int) -> Share:
        """Return who trains a trial in a round; wait at the end of a rung.

        A trial that is trained again has the groups of its first training, so that a
        run which goes on comes to the same models.
        """
        if not self._is_final and len(self._rungs) < len(self.plan.rungs):
            trial.hold(self.plan.rungs[len(self._rungs)].rounds)
        nodes = list(grid.get_node_ids())
        ends = [planned.rounds for planned in self.plan.rungs]
        rung = bisect_left(ends, round_number)
        if not self._is_final:  # main may train on before it is scored
            rung = min(rung, len(self._rungs))
        if rung == len(ends) or not self.plan.is_shared:
            return Share(nodes)
        is_decided = rung < len(self._rungs)
        trials = self._rungs[rung].trials if is_decided else self._alive
        place = trials.index(trial.number)
        share = self.plan.share(nodes, rung, place, round_number)
        spares = self.plan.spares(nodes, rung, place, round_number)
        return Share(share, self.plan.min_clients, spares)

    def _finish(self, exact_metrics: bool) -> Any:
        """Train the trial that was chosen to the end of its main, with all clients."""
        self._is_final = True
        (number,) = self._alive
        self._end_all_but(self._alive)
        self._kept.end_all_but(self._alive)
        trial = self._trial(number)
        # Where the last rung ends with the app's last round, metrics stayed hidden.
        has_ended = trial.has_ended
        shows_metrics = not self.chooser.adds_noise or (exact_metrics and not has_ended)
        if has_ended:
            hidden = "" if shows_metrics else ", whose metrics stayed at the clients"
            text = "trial %d came to its end in a rung%s"
            _log.info(text, number, hidden, extra={IS_PROGRESS: "rung"})
            self._log_of_trials.show(trial)
        else:
            text = "trial %d is trained to its end, by all clients"
            _log.info(text, number, extra={IS_PROGRESS: "rung"})
        trial.come_forward()
        grid = TunedGrid(
            self.app.grid,
            {**self._settings[number], **self.plan.overrides},
            is_hidden=not shows_metrics,
            attempt=self._attempt,
            trial=number,
        )
        trial.begin()
        while trial.pending:
            replies = grid.send_and_receive(trial.pending, timeout=trial.timeout)
            self._progress.say_last(trial)
            trial.answer(list(replies))
        if trial.error is not None:
            raise trial.error
        self._measure()
        self.record.hand_over(shows_metrics)
        return trial.returned

    def _measure(self) -> None:
        """Record what the server's own evaluation gave in the trials under way."""
        found = {trial: grid.measured() for trial, grid in self._grids.items()}
        self.record.save_measured({t: rounds for t, rounds in found.items() if rounds})

    def _end_all_but(self, alive: Sequence[int]) -> None:
        for number in [number for number in self._trials if number not in alive]:
            self._trials.pop(number).end()
            self._grids.pop(number, None)

    def _say_failures(self, trials: Sequence[TrialThread]) -> None:
        """Log why trials cannot be compared; raise it if none can."""
        failures = {t.number: t.failure for t in trials if t.failure is not None}
        if len(failures) == len(trials):  # that is the end: the error says it
            raise next(iter(failures.values()))
        alike: dict[str, list[int]] = {}
        for number, failure in failures.items():
            text = f"the app has failed: {failure!r}"
            if isinstance(failure, TrainingFailedError | EvaluationFailedError):
                text = str(failure)
            if text != self._said.get(number):
                self._said[number] = text
                alike.setdefault(text, []).append(number)
        for text, numbers in alike.items():
            names = ", ".join(map(str, numbers))
            _log.warning("trial%s %s: %s", "s" * (len(numbers) > 1), names, text)

    def _header(self, numbers: list[int]) -> TrialsHeader:
        number = len(self._rungs)
        return TrialsHeader(
            attempt=self._attempt,
            trials=tuple(numbers),
            settings=tuple(
                {**self._settings[number], **self.plan.overrides} for number in numbers
            ),
            alive=tuple(self._alive),
            metric=self.score.weights if self.chooser.clients_score else {},
            is_hidden=self.chooser.adds_noise,
            promise=self.chooser.promise(self._first_rung),
            sums=self.chooser.sums(len(self._alive)),
            rung=number + 1,
            rounds=self.plan.rungs[number].rounds,
        )

    def _ballot_header(self, rung: int, trials: Sequence[TrialThread]) -> BallotHeader:
        return BallotHeader(
            attempt=self._attempt,
            rung=rung,
            trials=tuple(trial.number for trial in trials),
            failed=tuple(t.number for t in trials if t.failure is not None),
            is_exact=not self.chooser.adds_noise,
            maximize=self.score.maximize,
            promise=self.chooser.promise(self._first_rung),
            release=rung - self._first_rung + 1,
        )

    def _warn(self, trials: Sequence[TrialThread], rounds: int) -> None:
        """Say which keys nothing reads, and that trials ended before their rung."""
        overlays = self._overlays.values()
        read = self._sends.read.union(*(overlay.read for overlay in overlays))
        if unread := sorted(self.candidates.keys - read):
            _log.warning(
                "Nothing has read %s from a run config so far, at the server or at a "
                "client: do they change anything?",
                unread,
            )
        short = [t.number for t in trials if t.num_train < rounds and not t.failure]
        if short:
            _log.warning(
                "The training ended before round %d in trials %s, which are compared "
                "as they are: the app's number of rounds should be at least that of "
                "the schedule.%s",
                rounds,
                short,
                _EARLY_STOPPING if self.chooser.adds_noise else "",
            )

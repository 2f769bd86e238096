"""The trials of one run of a tuner, rung by rung: trained, compared, and ended."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.serverapp.exception import AggregationError

from flwr_fbo.study.callbacks import Callback, DecidedRung, tell
from flwr_fbo.tuner.candidates.candidates import Candidates
from flwr_fbo.tuner.candidates.proposed_trials import ProposedTrials
from flwr_fbo.tuner.choosers.chooser import Chooser, Comparison
from flwr_fbo.tuner.choosers.score import Score
from flwr_fbo.tuner.choosers.tuner_clients import TunerClients
from flwr_fbo.tuner.decisions.survivors import survivors_of
from flwr_fbo.tuner.federation_result import Rung
from flwr_fbo.tuner.message_headers import BallotHeader, TrialsHeader
from flwr_fbo.tuner.records.trials_record import (
    HANDED_OVER,
    SETTINGS,
    TrialsRecord,
    recorded_site_ledgers,
    recorded_spent,
    rung_of,
)
from flwr_fbo.tuner.rungs.live_trials import Federation, LiveTrials
from flwr_fbo.tuner.rungs.progress import IS_PROGRESS, Progress
from flwr_fbo.tuner.rungs.shared_sends import SharedSends
from flwr_fbo.tuner.rungs.standings import Standings
from flwr_fbo.tuner.rungs.trial_log import TrialLog
from flwr_fbo.tuner.schedules.schedule import Plan, PlannedRung
from flwr_fbo.tuner.trials.training_rounds import TrainingFailedError
from flwr_fbo.tuner.trials.trial_thread import EvaluationFailedError, TrialThread
from flwr_fbo.tuner.trials.tuned_grid import TunedGrid

_log = logging.getLogger("flwr.fbo")

_EARLY_STOPPING = (
    " Does the server stop early on aggregated metrics? They are NaN while trials are "
    "compared privately, so it stops too soon: let it stop early only where "
    "current_trial(context) is None."
)


@dataclass(kw_only=True)
class TrialRun:
    """The trials of one call of `FederationTuner.start`, as far as they have come.

    Attributes
    ----------
    app : Federation
        The app that is tuned, and its clients.
    candidates : Candidates
        Settings of the trials, as far as they are known: `proposed` adds the others.
    plan : Plan
        The rungs.
    chooser : Chooser
        Compares the trials of a rung.
    score : Score
        Weighted sum of metrics that trials are compared by.
    record : TrialsRecord
        Where `climb` adds the rungs that are left.
    callbacks : sequence of Callback
        Objects that are told of each rung that is decided.
    proposed : ProposedTrials, optional
        Proposes the settings of the first rung, and shows its scores.
    """

    app: Federation
    candidates: Candidates
    plan: Plan
    chooser: Chooser
    score: Score
    record: TrialsRecord
    callbacks: Sequence[Callback]
    proposed: ProposedTrials | None = None

    def __post_init__(self) -> None:
        self._attempt = secrets.token_hex(8)
        journal = self.record.journal
        rungs = [rung_of(row, self.score.direction) for row in journal.ledger()]
        self._standings = Standings(self.plan, rungs)
        # Rungs from here on are what this run promises to release.
        self._first_rung = self._standings.number
        self._trials = LiveTrials(
            self.app, self._standings, self.chooser, self.record, self.score.weights
        )
        self._ledgers = recorded_site_ledgers(journal)
        self._clients = TunerClients(
            self.app.grid, self.chooser.num_clients, self._ledgers
        )
        self._sends = SharedSends(
            self._clients,
            self._header,
            parallel=self.plan.parallel,
            asks_all=self.chooser.clients_score,
            skips=self.plan.is_shared,
            hear_state=self._trials.kept.stop,
        )
        self._log_of_trials = TrialLog()
        self._progress = Progress(self.plan, self._first_rung)
        # The failures of trials that the log has already.
        self._said: dict[int, str] = {}

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
                while (planned := self._standings.planned) is not None:
                    self._decide(planned)
                returned = self._finish(exact_metrics) if self.plan.hands_over else None
                self._trials.kept.end_all_but(())
                return returned
            finally:
                self._trials.end_all_but(())
                if self.proposed is not None:
                    self.proposed.end()

    def _decide(self, planned: PlannedRung) -> None:
        """Train the trials of a rung, compare them, and record what that gave."""
        began, alive = time.monotonic(), self._standings.alive
        self._trials.end_all_but(alive)
        self._trials.kept.end_all_but(alive)
        trials: list[TrialThread] = []
        # A sum that may have been unmasked is asked for again, and no trial is trained.
        asked = self.chooser.open_ballot(self._clients, self.record)
        if asked is None:
            trials = self._trained(planned)
            self._sends.check_answers()
            self._say_failures(trials)
            asked = self._ballot_header(trials)
        compared = Comparison(asked, trials, self._clients, self.record)
        row = self.chooser.compare(compared)
        # To choose among trials without a score would be to choose at random.
        if np.isneginf(row.vectors).all():
            raise AggregationError(
                f"metric={str(self.score)!r}: there is no finite score, with a "
                f"positive weight, in any trial of rung {asked.rung + 1}."
            )
        # The study's name, as the ledger of each site has it.
        row.facts.update(study_id=asked.attempt, failed=list(asked.failed))
        row.facts.update(rounds=planned.rounds, trials=alive)
        # By what was released alone: which trials go on is public.
        rows = [*self.record.journal.ledger(), row]
        order = survivors_of(rows, planned.num_survivors)
        row.facts["survivors"] = [alive[place] for place in order]
        rung = rung_of(row, self.score.direction)
        if self.proposed is not None:
            going_on = rung.survivors if planned.num_survivors > 1 else ()
            scores = dict(zip(rung.trials, rung.scores, strict=True))
            self.proposed.report(rung.rounds, scores, going_on)
        self._trials.save_measured()
        # From here on the rung is decided, also if this process ends.
        self.record.add(row, self._ledgers)
        self._standings.decide(rung)
        self._say_decided(trials, time.monotonic() - began)
        if not trials:  # an earlier run trained them, and promised that release
            self._first_rung = self._standings.number
        self._tell_of(rung)
        self.chooser.say_of(row, self.plan.sizes)

    def _say_decided(self, trials: Sequence[TrialThread], seconds: float) -> None:
        """Log what the last rung has given, and what is odd about its trials."""
        number, rung = self._standings.number, self._standings.rungs[-1]
        outcome = f"trial {rung.survivors[0]} has the best score"
        if self._standings.planned is not None:
            left = self._progress.left(number - 1, trials)
            outcome = f"{list(rung.survivors)} go on; {left}"
        _log.info(
            "rung %d of %d: %d trials at round %d after %d sends, %.0f s; %s",
            number,
            len(self.plan.rungs),
            len(rung.trials),
            rung.rounds,
            self._clients.num_sends,
            seconds,
            outcome,
            extra={IS_PROGRESS: "rung"},
        )
        read = self._sends.read | self._trials.read_keys
        unread = sorted(self.candidates.keys - read)
        if trials and unread:
            _log.warning(
                "Nothing has read %s from a run config so far, at the server or at a "
                "client: do they change anything?",
                unread,
            )
        short = [
            t.number for t in trials if t.num_train < rung.rounds and not t.failure
        ]
        if short:
            _log.warning(
                "The training ended before round %d in trials %s, which are compared "
                "as they are: the app's number of rounds should be at least that of "
                "the schedule.%s",
                rung.rounds,
                short,
                _EARLY_STOPPING if self.chooser.adds_noise else "",
            )

    def _tell_of(self, rung: Rung) -> None:
        """Tell the callbacks of the last rung."""
        journal, settings = self.record.journal, self.candidates.settings
        spent = recorded_spent(journal.identity, journal.ledger())
        decided = DecidedRung(
            number=self._standings.number,
            settings=tuple(dict(settings[trial]) for trial in rung.trials),
            epsilon=None if spent is None else spent.epsilon,
            rounds=rung.rounds,
            trials=rung.trials,
            scores=rung.scores,
            survivors=rung.survivors,
        )
        tell(self.callbacks, "on_rung", decided)

    def _trained(self, planned: PlannedRung) -> list[TrialThread]:
        """Return the trials of a rung, trained.

        In the first rung a sampler proposes as many trials as share a send, and learns
        their scores before it proposes the next.
        """
        alive, trials = self._standings.alive, list[TrialThread]()
        rung = self._standings.number

        def say(sent: Sequence[TrialThread]) -> None:
            for trial in sent:
                self._log_of_trials.forget(trial)
            self._progress.say(rung, trials, sent, self._clients.num_sends)

        sampler = self.proposed if rung == 0 else None
        batches = [range(len(alive))]
        if sampler is not None and self.plan.is_shared:
            batches = self.plan.turns(rung)
        elif sampler is not None:
            size, num = self.plan.parallel, len(alive)
            batches = [range(i, min(i + size, num)) for i in range(0, num, size)]
        for places in batches:
            numbers = [alive[place] for place in places]
            # On record before they are trained: a killed run goes on with the same
            # settings.
            self._propose(numbers)
            settings = self.candidates.settings
            batch = [self._trials.get(trial, settings[trial]) for trial in numbers]
            trials += batch
            self._sends.advance(batch, planned.rounds, say)
            if sampler is not None:
                asked = self._ballot_header(batch)
                compared = Comparison(asked, batch, self._clients, self.record)
                scores = self.score.signed(self.chooser.compare(compared).vectors)
                for trial, score in zip(numbers, scores, strict=True):
                    sampler.learn(trial, settings[trial], score)
        return trials

    def _propose(self, numbers: Sequence[int]) -> None:
        """Have settings for trials, on record before training, and show them."""
        if self.proposed is None:
            return
        settings = self.candidates.settings
        missing = range(len(settings), numbers[-1] + 1)
        for number in missing:
            self.proposed.propose(number, self.candidates)
        if missing:
            self.record.save(SETTINGS, settings)
        for number in numbers:
            if number not in self._trials:
                self.proposed.show(number, settings[number])

    def _finish(self, exact_metrics: bool) -> Any:
        """Train the trial that was chosen to the end of its main, with all clients."""
        (number,) = self._standings.alive
        self._trials.end_all_but([number])
        self._trials.kept.end_all_but([number])
        settings = self.candidates.settings[number]
        trial = self._trials.get(number, settings)
        # Where the last rung ends with the app's last round, metrics stayed hidden.
        has_ended = trial.has_ended
        # With noise an exact metric of the chosen setting would undo the private
        # choice.
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
            {**settings, **self.plan.overrides},
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
        self._trials.save_measured()
        self.record.save(HANDED_OVER, shows_metrics)
        return trial.returned

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
        """Return the header of a message with what some trials ask."""
        planned, settings = self._standings.planned, self.candidates.settings
        assert planned is not None  # then no trial shares a message
        return TrialsHeader(
            attempt=self._attempt,
            trials=tuple(numbers),
            settings=tuple({**settings[n], **self.plan.overrides} for n in numbers),
            alive=tuple(self._standings.alive),
            metric=self.score.weights if self.chooser.clients_score else {},
            is_hidden=self.chooser.adds_noise,
            promise=self.chooser.promise(self._first_rung),
            sums=self.chooser.sums(len(self._standings.alive)),
            rung=self._standings.number + 1,
            rounds=planned.rounds,
            examples=self.chooser.examples,
        )

    def _ballot_header(self, trials: Sequence[TrialThread]) -> BallotHeader:
        """Return the header of a message that asks for a ballot on trials."""
        rung = self._standings.number
        return BallotHeader(
            attempt=self._attempt,
            rung=rung,
            trials=tuple(trial.number for trial in trials),
            failed=tuple(t.number for t in trials if t.failure is not None),
            is_exact=not self.chooser.adds_noise,
            maximize=self.score.direction == "maximize",
            promise=self.chooser.promise(self._first_rung),
            release=rung - self._first_rung + 1,
            examples=self.chooser.examples,
        )

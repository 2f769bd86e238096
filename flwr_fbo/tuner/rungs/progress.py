"""Progress of a tuner in the log: how far trials are, and the time that is left."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence

from flwr_fbo._common.text import counted
from flwr_fbo.strategies.round_progress import duration
from flwr_fbo.tuner.schedules.schedule import Plan
from flwr_fbo.tuner.trials.trial_thread import TrialThread

_log = logging.getLogger("flwr.fbo")

# What progress is marked with in the log: "passing", of a rung under way, or "rung".
IS_PROGRESS = "fbo_progress"
# Seconds, at least, from one line of the log to the next.
_SECONDS_A_LINE = 30.0
# Sends that say nothing of how long others take: a training and an evaluation.
_NUM_FIRST_SENDS = 2


class Progress:
    """Logs trials, rung, round and the time left, a line in half a minute at most.

    The time left is estimated from the time that shared rounds have taken after the
    first two sends, in which an engine may have to start. A shared round is one round
    of training of all trials that share their sends.

    Parameters
    ----------
    plan : Plan
        The rungs, and how many trials share a send.
    first_rung : int
        Number of the rung, from 0, where this run begins: its trials are trained from
        the start.
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
            number: (
                rung.turns
                if plan.hands_over
                else math.ceil(rung.num_trials / plan.parallel)
            )
            * (rung.rounds - self._starts[number])
            for number, rung in enumerate(plan.rungs)
            if number >= first_rung
        }
        # Rounds of the chosen trial after the rungs; 0 where it is not known.
        end = plan.app_rounds if plan.num_rounds is None else plan.num_rounds
        self._end = end if plan.hands_over and end is not None else 0
        self._num_last = max(self._end - rounds[-1], 0)
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
            Number of the rung, from 0.
        trials : sequence of TrialThread
            All trials of the rung.
        sent : sequence of TrialThread
            Trials that shared the last send.
        num_sends : int
            Number of sends so far.
        """
        now = self._clock()
        # An engine may start its workers in these sends.
        if num_sends <= _NUM_FIRST_SENDS:
            self._began, self._done_before = now, self._done(rung, trials)
        level = logging.DEBUG  # for who shows one line that moves
        if now - self._last_line >= _SECONDS_A_LINE:
            self._last_line, level = now, logging.INFO
        if not _log.isEnabledFor(level):
            return
        _log.log(
            level,
            "rung %d of %d, round %d of %d, %s: %s so far, %s",
            rung + 1,
            len(self._plan.rungs),
            max(trial.num_train for trial in sent),
            self._plan.rungs[rung].rounds,
            counted(len(sent), "trial"),
            counted(num_sends, "send"),
            self.left(rung, trials),
            extra={IS_PROGRESS: "passing"},
        )

    def say_last(self, trial: TrialThread) -> None:
        """Log a line of the training after the rungs, unless the last was just now."""
        now = self._clock()
        level = logging.DEBUG
        if now - self._last_line >= _SECONDS_A_LINE:
            self._last_line, level = now, logging.INFO
        if not self._end:
            text, left = f"round {trial.num_train}", "the time left is not known"
        else:
            rounds = self._end - self._num_last
            trained = min(max(trial.num_train - rounds, 0), self._num_last)
            text = f"round {trial.num_train} of {self._end}"
            left = self._left(sum(self._shared_rounds.values()) + trained)
        about = trial.number, text, left
        extra = {IS_PROGRESS: "passing"}
        _log.log(level, "trial %s to its end, %s: %s", *about, extra=extra)

    def left(self, rung: int, trials: Sequence[TrialThread]) -> str:
        """Return the time left, in words."""
        return self._left(self._done(rung, trials))

    def _left(self, all_done: float) -> str:
        left = sum(self._shared_rounds.values()) + self._num_last - all_done
        done = all_done - self._done_before
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

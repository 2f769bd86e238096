"""How far the trials of a tuner have come, and how long the rest will take."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence

from flwr_fbo.tuner.schedule import Halving
from flwr_fbo.tuner.trial_thread import TrialThread

_log = logging.getLogger("flwr.fbo")

# Seconds, at least, from one line of the log to the next.
_SECONDS_A_LINE = 30.0


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


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"

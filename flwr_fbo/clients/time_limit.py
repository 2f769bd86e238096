"""How long the trials of one message may take: a trial that is late does not begin."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import cast

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.algorithms.search.trial import Objective, OutOfTimeError, Trial
from flwr_fbo.clients.bandits.environment import BanditEnvironment


class TimeLimit:
    """Until when trials of a message may begin.

    What was played before that is in the journal, and a message that asks again goes on
    from there.

    Parameters
    ----------
    seconds : float
        From the first trial on.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._began: float | None = None

    def check(self) -> None:
        """Raise `OutOfTimeError` if the time is over."""
        now = time.monotonic()
        self._began = now if self._began is None else self._began
        if now - self._began > self._seconds:
            raise OutOfTimeError(
                f"The trials of this message took longer than max_seconds="
                f"{self._seconds:g}: the next message continues them."
            )

    def on_objective(self, objective: Objective) -> Objective:
        """Return the objective, as one that begins no trial too late."""

        def limited(trial: Trial) -> float:
            self.check()
            return objective(trial)

        return limited

    def on_environment(self, environment: BanditEnvironment) -> BanditEnvironment:
        """Return the environment, as one that begins no trial too late."""

        def contexts(t: int) -> FloatArray:
            self.check()
            return environment.contexts(t)

        limited = SimpleNamespace(contexts=contexts, reward=environment.reward)
        return cast(BanditEnvironment, limited)

"""The clock of rewards: which of them come too late, by the study's `RewardTimeout`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from flwr_fbo.bandits.linear.settings import RewardTimeout
from flwr_fbo.journal.tables import Trial


class LateRewardError(ValueError):
    """A reward came after the study's `RewardTimeout`, and nothing is recorded.

    Examples
    --------
    >>> from flwr_fbo.bandits import LateRewardError
    >>> print(LateRewardError(7, 0.0))
    ticket=7 is not allowed: its time is over, and its reward was taken to be 0.
    """

    def __init__(self, ticket: int, reward: float) -> None:
        text = f"its time is over, and its reward was taken to be {reward:g}"
        super().__init__(f"ticket={ticket} is not allowed: {text}.")


@dataclass(frozen=True)
class RewardClock:
    """Compares decisions with the clock of this machine.

    Attributes
    ----------
    timeout : RewardTimeout, optional
        That of the study; without one no reward is ever late.
    """

    timeout: RewardTimeout | None

    def is_late(self, trial: Trial) -> bool:
        """Return whether a reward is awaited whose time is over."""
        return trial.state == "running" and self._is_over(time.time() - trial.started)

    def is_early(self, trial: Trial) -> bool:
        """Return whether a decision has a date that is still to come."""
        return trial.started > time.time()

    def came_late(self, trial: Trial) -> bool:
        """Return whether a decision got its reward only when its time was over."""
        # A trial that has not ended has NaN for its end, and so does not compare.
        return self._is_over(trial.finished - trial.started)

    def settled(self, trials: Sequence[Trial]) -> list[Trial]:
        """Return the decisions whose time is over, rewarded or not."""
        if self.timeout is None:
            return [*trials]
        now = time.time()
        is_over = [self._is_over(now - trial.started) for trial in trials]
        last = max((k for k, over in enumerate(is_over) if over), default=-1)
        # A date that is still to come was written by a clock that was ahead: such a
        # decision is older than the next one.
        return [
            trial
            for k, trial in enumerate(trials)
            if is_over[k] or (trial.started > now and k < last)
        ]

    def _is_over(self, seconds: float) -> bool:
        return self.timeout is not None and seconds >= self.timeout.seconds

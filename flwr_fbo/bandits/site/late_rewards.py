"""The clock of rewards: which of them come too late, by the study's `RewardTimeout`."""

from __future__ import annotations

import time
from collections.abc import Iterable
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

    def settled(self, begun: Iterable[tuple[int, float]]) -> list[int]:
        """Return the numbers of decisions whose time is over, rewarded or not.

        Given in their order, each with the time of its choice.
        """
        now, over, ahead = time.time(), list[int](), list[int]()
        for number, started in begun:
            if self._is_over(now - started):
                over += [*ahead, number]
                ahead.clear()
            # A date that is still to come was written by a clock that was ahead: such a
            # decision is older than the next one.
            elif started > now:
                ahead.append(number)
        return over

    def _is_over(self, seconds: float) -> bool:
        return self.timeout is not None and seconds >= self.timeout.seconds

"""How many trials there are, and how many of them go on: successive halving."""

from __future__ import annotations

from dataclasses import dataclass

from flwr_fbo._common.conversion import take_plain
from flwr_fbo._common.validation import require, require_int


@dataclass(frozen=True)
class PlannedRung:
    """A rung before it is decided.

    Attributes
    ----------
    rounds : int
        Of training, at its end.
    num_trials : int
        That are compared.
    num_survivors : int
        That go on.
    """

    rounds: int
    num_trials: int
    num_survivors: int


@dataclass(frozen=True)
class Halving:
    """Successive halving (Jamieson & Talwalkar, 2016).

    All trials are trained for ``rounds[0]`` rounds. The best of them go on to
    ``rounds[1]`` rounds, and so on; the best after the last rung is the result. From
    one rung to the next the number of trials falls as the number of rounds grows.

    Examples
    --------
    >>> from flwr_fbo import Halving
    >>> for rung in Halving(trials=16, rounds=(3, 9, 27)).rungs:
    ...     print(rung.num_trials, "trials at round", rung.rounds)
    16 trials at round 3
    5 trials at round 9
    2 trials at round 27

    Attributes
    ----------
    trials : int
        K >= 2 at the first rung, from which the app's defaults are one.
    rounds : tuple of int
        Rounds of training at the end of each rung, growing, each >= 1. One number is
        one rung, after which the best trial is chosen.
    parallel : int
        Trials, >= 1, that share a send: each node gets one message for all of them.
        Results do not depend on it.

    Raises
    ------
    ValueError
        If an argument is not allowed; the message names it.
    """

    trials: int
    rounds: tuple[int, ...]
    parallel: int = 4

    def __post_init__(self) -> None:
        take_plain(self)
        require_int("trials", self.trials, 2)
        ok = isinstance(self.rounds, tuple) and len(self.rounds) > 0
        require(ok, "rounds", self.rounds, "a tuple of at least one integer")
        for rounds in self.rounds:
            require_int("rounds", rounds, 1)
        grows = list(self.rounds) == sorted(set(self.rounds))
        require(grows, "rounds", self.rounds, "growing from rung to rung")
        require_int("parallel", self.parallel, 1)
        last = self._num_alive(self.rounds[-1])
        allowed = (
            f"short enough that two of {self.trials} trials are left at the last rung"
        )
        require(last >= 2, "rounds", self.rounds, allowed)

    @property
    def rungs(self) -> tuple[PlannedRung, ...]:
        """All rungs: one for each number of rounds."""
        alive = [self.trials, *map(self._num_alive, self.rounds[1:]), 1]
        return tuple(map(PlannedRung, self.rounds, alive, alive[1:]))

    def _num_alive(self, rounds: int) -> int:
        return round(self.trials * self.rounds[0] / rounds)

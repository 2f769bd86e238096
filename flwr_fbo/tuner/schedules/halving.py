"""Successive halving: trials that all clients train, and fewer of them rung by rung."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from flwr_fbo._common.fields import check_fields, integer, ruled
from flwr_fbo._common.validation import require, require_int
from flwr_fbo.tuner.schedules.schedule import AppShape, Plan, PlannedRung


def _check_rounds(name: str, rounds: Any) -> None:
    is_valid = isinstance(rounds, tuple) and len(rounds) > 0
    require(is_valid, name, rounds, "a tuple of at least one integer")
    for number in rounds:
        require_int(name, number, 1)
    grows = list(rounds) == sorted(set(rounds))
    require(grows, name, rounds, "growing from rung to rung")


@dataclass(frozen=True)
class Halving:
    """Successive halving (Jamieson & Talwalkar, 2016).

    All trials are trained for ``rounds[0]`` rounds. The best of them go on to
    ``rounds[1]`` rounds, and so on; the best after the last rung is the result. From
    one rung to the next the number of trials falls as the number of rounds grows.

    It only chooses: the training with the settings that were chosen comes after it, by
    ``main(*result.apply(grid, context))``. With `OneTraining` there is one training.

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
        K >= 2 at the first rung, from which the app's defaults are one. Where the space
        has fewer settings, so many are tried.
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

    Notes
    -----
    Fewer rungs share epsilon between fewer releases. ``Halving(18, (3, 27))`` trains
    for 102 rounds, all trials together, and ``Halving(16, (3, 9, 27))`` for 114. At
    epsilon 2 with 20 clients the best score of the former is as good: on two tasks on
    which nothing was chosen its loss of accuracy differs by 0.0001, with a standard
    error of 0.0001. Printed by `python -m benchmarks.halving_variants`.
    """

    trials: int = field(metadata=integer(2))
    rounds: tuple[int, ...] = field(metadata=ruled(_check_rounds))
    parallel: int = field(default=4, metadata=integer(1))

    def __post_init__(self) -> None:
        check_fields(self)
        last = self.rungs[-1].num_trials
        first, most = self.rounds[0], int(self.trials * self.rounds[0] / 1.5)
        works = (first, most) if most > first else (first,)
        allowed = (
            f"short enough that two of {self.trials} trials are left at the last rung, "
            f"as with {works}"
        )
        require(last >= 2, "rounds", self.rounds, allowed)

    @property
    def rungs(self) -> tuple[PlannedRung, ...]:
        """All rungs: one for each number of rounds."""
        return self._rungs(self.trials)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of trials of each rung."""
        return tuple(rung.num_trials for rung in self.rungs)

    @property
    def is_shaped(self) -> bool:
        """False: it is the same for any app."""
        return False

    def identity(self) -> dict[str, Any]:
        """Return what may not change while a tuner goes on, as JSON values."""
        return {"trials": self.trials, "rounds": list(self.rounds)}

    def min_group(self, shape: AppShape) -> int:
        """Return 0: all clients train each trial."""
        return 0

    def plan(self, num_trials: int, shape: AppShape) -> Plan:
        """Return the plan for so many distinct trials."""
        return Plan(self._rungs(num_trials), self.parallel)

    def _rungs(self, num_trials: int) -> tuple[PlannedRung, ...]:
        first = self.trials * self.rounds[0]
        alive = [self.trials, *(round(first / rounds) for rounds in self.rounds[1:])]
        alive = [min(num, num_trials) for num in alive] + [1]
        return tuple(map(PlannedRung, self.rounds, alive, alive[1:]))

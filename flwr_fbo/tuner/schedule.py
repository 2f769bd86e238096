"""How many trials there are, and how many of them go on: successive halving."""

from __future__ import annotations

from dataclasses import dataclass

from flwr_fbo._validation import require, require_int


@dataclass(frozen=True)
class Halving:
    """Successive halving (Jamieson & Talwalkar, 2016).

    All trials are trained for ``rounds[0]`` rounds. The best of them go on to
    ``rounds[1]`` rounds, and so on; the best after the last rung is the result. From
    one rung to the next the number of trials falls as the number of rounds grows.

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

    Examples
    --------
    >>> Halving(trials=16, rounds=(3, 9, 27)).num_trials
    (16, 5, 2)
    """

    trials: int
    rounds: tuple[int, ...]
    parallel: int = 4

    def __post_init__(self) -> None:
        require_int("trials", self.trials, 2)
        ok = isinstance(self.rounds, tuple) and len(self.rounds) > 0
        require(ok, "rounds", self.rounds, "a tuple of at least one integer")
        for rounds in self.rounds:
            require_int("rounds", rounds, 1)
        grows = list(self.rounds) == sorted(set(self.rounds))
        require(grows, "rounds", self.rounds, "growing from rung to rung")
        require_int("parallel", self.parallel, 1)
        last = self.num_trials[-1]
        allowed = (
            f"short enough that two of {self.trials} trials are left at the last rung"
        )
        require(last >= 2, "rounds", self.rounds, allowed)

    @property
    def num_trials(self) -> tuple[int, ...]:
        """How many trials there are at each rung."""
        first = self.rounds[0]
        return tuple(round(self.trials * first / rounds) for rounds in self.rounds)

    @property
    def num_survivors(self) -> tuple[int, ...]:
        """How many trials go on after each rung; 1 after the last."""
        return (*self.num_trials[1:], 1)

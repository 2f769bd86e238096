"""Standings of a tuner: decided rungs, trials that are left, who trains them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from flwr_fbo.tuner.federation_result import Rung
from flwr_fbo.tuner.schedules.schedule import Plan, PlannedRung
from flwr_fbo.tuner.trials.trial_grid import Share


class Standings:
    """The rungs that are decided, and the trials that are left.

    Parameters
    ----------
    plan : Plan
        The rungs of the tuner.
    rungs : sequence of Rung
        Those that are decided, in order.

    Attributes
    ----------
    plan : Plan
        The rungs of the tuner.
    rungs : list of Rung
        Those that are decided, in order.
    alive : list of int
        The trials that are left, the best first.
    """

    def __init__(self, plan: Plan, rungs: Sequence[Rung]) -> None:
        self.plan = plan
        self.rungs = list(rungs)
        self.alive = list(range(plan.rungs[0].num_trials))
        if rungs:
            self.alive = list(rungs[-1].survivors)

    @property
    def number(self) -> int:
        """Number of decided rungs: the next one, from 0."""
        return len(self.rungs)

    @property
    def planned(self) -> PlannedRung | None:
        """The rung that is decided next; None once one trial is left."""
        if self.number == len(self.plan.rungs):
            return None
        return self.plan.rungs[self.number]

    def decide(self, rung: Rung) -> None:
        """Let the survivors of the next rung go on."""
        self.rungs.append(rung)
        self.alive = list(rung.survivors)

    def share(self, trial: int, nodes: Sequence[int], round_number: int) -> Share:
        """Return who trains a trial in a round, from 1, of its training.

        A trial that is trained again has the groups of its first training, so that a
        run which goes on comes to the same models.
        """
        ends = [planned.rounds for planned in self.plan.rungs]
        # A main may train on before it is scored: no rung is ahead of the next one.
        rung = min(bisect_left(ends, round_number), self.number)
        if rung == len(ends) or not self.plan.is_shared:
            return Share(nodes)
        is_decided = rung < self.number
        trials = self.rungs[rung].trials if is_decided else self.alive
        # Its place among all trials of that rung, also of those that have ended since.
        place = trials.index(trial)
        share = self.plan.share(nodes, rung, place, round_number)
        spares = self.plan.spares(nodes, rung, place, round_number)
        return Share(share, self.plan.min_clients, spares)

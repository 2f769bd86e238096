"""Schedules of trials: which of them are trained, by which clients, and for how long.

A schedule makes a `Plan` from what it is told of the app and its federation. A plan is
public: it does not depend on any client's data. `OneTraining` and `Halving` are
schedules; another one is a class with the same attributes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from flwr_fbo._common.fields import holds

NOT_SHARED = "Clients are not shared out between trials"


@dataclass(frozen=True)
class PlannedRung:
    """A rung before it is decided.

    Attributes
    ----------
    rounds : int
        Rounds of training of each trial, from its start, at the end of the rung.
    num_trials : int
        Number of trials that are compared.
    num_survivors : int
        Number of trials that go on.
    groups : int
        Number of groups into which clients are shared out, one trial each. 1: all
        clients train each trial.
    """

    rounds: int
    num_trials: int
    num_survivors: int
    groups: int = 1

    @property
    def turns(self) -> int:
        """Rounds of the app in which each trial is trained for one round."""
        return -(-self.num_trials // self.groups)


@dataclass(frozen=True)
class AppShape:
    """An app's own training, as far as a schedule depends on it.

    Attributes
    ----------
    num_nodes : int
        Number of connected nodes.
    num_asked : int
        Number of nodes that `main` asks to train in its first round; 0: not known.
    num_rounds : int or None
        Rounds that `main` trains for; None: not known.
    rounds_key : str
        Key of the run config that has this number; empty without one.
    reason : str
        Why the clients cannot be shared out; empty where they can.
    """

    num_nodes: int
    num_asked: int = 0
    num_rounds: int | None = None
    rounds_key: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Plan:
    """The trials of one tuner: settled before the first message.

    Attributes
    ----------
    rungs : tuple of PlannedRung
        Comparisons, in order.
    parallel : int
        Trials that share a send.
    hands_over : bool
        Whether the trial that is chosen is trained to the end of its `main`.
    group_size : int
        Nodes that a group has at least. 0: clients are not shared out.
    min_clients : int
        Nodes that train a trial in each round at least, where clients are shared out.
    num_rounds : int or None
        Rounds that `main` is told to train for in a trial; None: its own number.
    rounds_key : str
        Key of the run config that tells it.
    reason : str
        Why clients are not shared out, for the log; empty where they are.
    app_rounds : int or None
        Rounds of the app's own training; None: not known.
    num_asked : int
        Number of nodes that train in a round of it; 0: not known.
    """

    rungs: tuple[PlannedRung, ...] = field(metadata=holds(PlannedRung))
    parallel: int
    hands_over: bool = False
    group_size: int = 0
    min_clients: int = 0
    num_rounds: int | None = None
    rounds_key: str = ""
    reason: str = ""
    app_rounds: int | None = None
    num_asked: int = 0

    @property
    def num_trainings(self) -> tuple[int, int] | None:
        """Trainings of one client in one round: of all trials, and of the app alone.

        None where it is not known how the app trains.
        """
        if self.app_rounds is None or self.num_asked == 0:
            return None
        rounds = self.num_rung_rounds
        if self.hands_over:
            end = self.app_rounds if self.num_rounds is None else self.num_rounds
            rounds += max(end - self.rungs[-1].rounds, 0)
        return rounds * self.num_asked, self.app_rounds * self.num_asked

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of trials of each rung."""
        return tuple(rung.num_trials for rung in self.rungs)

    @property
    def is_shared(self) -> bool:
        """Whether clients are shared out among the trials."""
        return self.group_size > 0

    @property
    def num_rung_rounds(self) -> int:
        """Rounds of the app that the rungs take, all turns together."""
        return num_rung_rounds(self.rungs)

    def work(self, rounds: int) -> int:
        """Return the rounds of the app until a trial has been trained for so many.

        Within a rung a trial's turn counts as all turns: at the rung's end it is exact.
        """
        work, before = 0, 0
        for rung in self.rungs:
            end = min(rung.rounds, rounds)
            work += rung.turns * max(end - before, 0)
            before = end
        return work + rounds - before

    @property
    def overrides(self) -> dict[str, int]:
        """Values that the run config of a trial has in place of the app's own."""
        return {} if self.num_rounds is None else {self.rounds_key: self.num_rounds}

    def share(
        self, nodes: Sequence[int], rung: int, place: int, round_number: int
    ) -> list[int]:
        """Return the nodes that train a trial in a round.

        They follow from the sorted ids of the nodes and from the round, and from
        nobody's data. In each turn the groups are disjoint, and have all nodes. A trial
        moves on by a group in each round.

        Parameters
        ----------
        nodes : sequence of int
            The connected nodes.
        rung : int
            Number of the rung, from 0.
        place : int
            Place of the trial among those of the rung, from 0.
        round_number : int
            Round of the trial's training, from 1.
        """
        nodes = sorted(nodes)
        if not self.is_shared:
            return nodes
        turns = self.turns(rung)
        (turn,) = (turn for turn, places in enumerate(turns) if place in places)
        seat, num = place - turns[turn].start, len(turns[turn])
        # Where nodes have left, fewer groups: two trials have the same one.
        # A group may not be smaller than planned: its model would show more of each.
        num = max(1, min(num, len(nodes) // self.group_size))
        # Each trial moves on, so that no group's data decides about it alone.
        group = (seat + turn + round_number) % num
        return nodes[group::num]

    def spares(
        self, nodes: Sequence[int], rung: int, place: int, round_number: int
    ) -> list[int]:
        """Return who trains a trial, in this order, where nodes of `share` do not.

        It begins at another node for each trial and in each round. Parameters are those
        of `share`.
        """
        share = set(self.share(nodes, rung, place, round_number))
        others = [node for node in sorted(nodes) if node not in share]
        # Not always the same spares: they would train more than others.
        first = (place + round_number) % max(len(others), 1)
        return others[first:] + others[:first]

    def turns(self, rung: int) -> list[range]:
        """Return the places of a rung's trials that are trained at the same time."""
        planned = self.rungs[rung]
        small, rest = divmod(planned.num_trials, planned.turns)
        sizes = [small + (turn < rest) for turn in range(planned.turns)]
        ends = [sum(sizes[: turn + 1]) for turn in range(planned.turns)]
        return [range(end - size, end) for end, size in zip(ends, sizes, strict=True)]


def num_rung_rounds(rungs: Sequence[PlannedRung]) -> int:
    """Return the rounds of the app that rungs take, all turns together."""
    starts = [0, *(rung.rounds for rung in rungs)]
    return sum(
        rung.turns * (rung.rounds - start)
        for rung, start in zip(rungs, starts, strict=False)
    )


@runtime_checkable
class Schedule(Protocol):
    """Interface of a schedule, as `FederationTuner` needs it."""

    @property
    def trials(self) -> int:
        """Number of trials at most, from which the app's defaults are one."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of trials of each rung at most: what a ballot is about."""

    @property
    def is_shaped(self) -> bool:
        """Whether a plan depends on the app's own training.

        Then the tuner looks at how `main` begins, before the first message.
        """

    def identity(self) -> dict[str, Any]:
        """Return what may not change while a tuner goes on, as JSON values."""

    def min_group(self, shape: AppShape) -> int:
        """Return the nodes that the smallest group has; 0: clients are not shared."""

    def plan(self, num_trials: int, shape: AppShape) -> Plan:
        """Return the plan for so many distinct trials."""

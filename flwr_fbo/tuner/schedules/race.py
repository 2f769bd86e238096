"""A race inside one training: trials share the clients out, and the winner goes on."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from flwr_fbo._common.fields import check_fields, integer
from flwr_fbo.tuner.schedules.schedule import (
    AppShape,
    Plan,
    PlannedRung,
    num_rung_rounds,
)

# Rounds of the app that the first rungs take, and each of the others.
_FIRST_RUNGS, _OTHER_RUNGS = (4, 4), 3
# Trials of the first rung for each that goes on.
_FIRST_CUT = 4
# Part of the app's rounds in which all clients train the trial that was chosen. In a
# short training a trial needs its rounds more than the race does.
_FINISH = 0.5
# Where all clients train each trial: rounds at the end of a rung over those before.
_FULL_GROWTH = 3
# With fewer clients than two groups: trials at most, and rounds of the first rung. They
# are too few to tell more trials apart in more releases.
_FEW_TRIALS, _FEW_ROUNDS = 8, 3


@dataclass(frozen=True)
class OneTraining:
    """A race of trials inside one training, whose winner is trained to the end.

    In a round the clients are shared out: each group trains another trial. At the end
    of a rung all clients score all trials, and give one ballot about them. When one
    trial is left, all clients train it to the end of `main`.

    Examples
    --------
    >>> from flwr_fbo import OneTraining
    >>> OneTraining()
    OneTraining(trials=16, min_clients=5, rounds=None, parallel=4)

    Attributes
    ----------
    trials : int
        K >= 2 at the first rung, from which the app's defaults are one. A quarter of
        them goes on, then half of those, until one is left. It is fewer where the space
        has fewer settings, or the training is too short for so many.
    min_clients : int
        Clients, >= 1, that train a trial in each round at least. All other clients
        evaluate what they trained: with one client this would be that client's own
        model. For each one that does not train, another one is asked in the same round;
        where fewer have trained even so, their models are not aggregated. Trials take
        turns where there are too few clients for all. The server keeps to it; a client
        cannot check that.
    rounds : int, optional
        Rounds of the app's own training, >= 1. Unless given, the number that `main`
        gives to a strategy of Flower, or else that of the run config.
    parallel : int
        Trials, >= 1, that a client trains for one message. Results do not depend on it.

    Raises
    ------
    ValueError
        If an argument is not allowed; the message names it.

    Notes
    -----
    With 20 clients and 16 trials the rungs take 4, 4 and 3 rounds: sixteen trials in
    four turns, four at once, two at once. Then the winner has been trained for 8 rounds
    of its own. The race takes half of the training at most: where that is shorter, its
    rungs are, and it may begin with fewer trials. The `main` of the winner finds a
    smaller number of rounds in the run config, so that all rounds together are as many
    as the app's, if the app has that number there; else `main` trains for its own.

    All clients train each trial where the app cannot be shared out: a strategy that
    needs many models (Krum, a trimmed mean, a median), noise for a fixed number of
    clients, Flower's secure aggregation, ``min_train_nodes`` above a group, or a `main`
    without a strategy of ``flwr.serverapp``. So they do where there are fewer than two
    groups of ``min_clients``; then eight trials are trained for three rounds, and two
    of them for nine. This takes longer than one training, twice as long where `main`
    has 27 rounds, and costs more epsilon where training is charged. The log says so
    before the first message.
    """

    trials: int = field(default=16, metadata=integer(2))
    min_clients: int = field(default=5, metadata=integer(1))
    rounds: int | None = field(default=None, metadata=integer(1, optional=True))
    parallel: int = field(default=4, metadata=integer(1))

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of trials of each rung."""
        return _sizes(self.trials)

    @property
    def is_shaped(self) -> bool:
        """True: the plan follows from the app's own training."""
        return True

    def identity(self) -> dict[str, Any]:
        """Return what may not change while a tuner goes on, as JSON values."""
        return {
            "trials": self.trials,
            "min_clients": self.min_clients,
            "rounds": self.rounds,
        }

    def min_group(self, shape: AppShape) -> int:
        """Return the nodes that the smallest group has; 0: clients are not shared.

        Where `main` asks a part of the nodes, it will ask that part of a group.
        """
        if shape.reason or shape.num_asked < 2 * self.min_clients:
            return 0
        return -(-self.min_clients * shape.num_nodes // shape.num_asked)

    def plan(self, num_trials: int, shape: AppShape) -> Plan:
        """Return the plan for so many distinct trials."""
        num_rounds = shape.num_rounds if self.rounds is None else self.rounds
        group_size = self.min_group(shape)
        # One group is no race: all clients train each trial, one after another.
        if group_size == 0 or shape.num_nodes < 2 * group_size:
            reason = shape.reason or (
                f"the server asks {shape.num_asked} clients to train in a round, and "
                f"two groups of min_clients={self.min_clients} are "
                f"{2 * self.min_clients}"
            )
            num, first = min(num_trials, self.trials), 1
            if shape.num_nodes < 2 * self.min_clients:
                num, first = min(num, _FEW_TRIALS), _FEW_ROUNDS
            return Plan(
                _full_rungs(num, first, num_rounds),
                self.parallel,
                hands_over=True,
                reason=reason,
                app_rounds=num_rounds,
                num_asked=shape.num_asked,
            )
        num_groups = shape.num_nodes // group_size
        # The last rounds are for all clients.
        most = None
        if num_rounds is not None:
            most = num_rounds - max(1, round(_FINISH * num_rounds))
        rungs = _race(min(num_trials, self.trials), num_groups, most)
        told = None
        if num_rounds is not None and shape.rounds_key:
            # The winner trains for what is left of the app's rounds once the rungs are
            # paid.
            told = max(num_rounds - num_rung_rounds(rungs) + rungs[-1].rounds, 1)
        return Plan(
            rungs,
            self.parallel * num_groups,
            hands_over=True,
            group_size=group_size,
            min_clients=self.min_clients,
            num_rounds=told,
            rounds_key="" if told is None else shape.rounds_key,
            app_rounds=num_rounds,
            num_asked=shape.num_asked,
        )


def _sizes(num_trials: int) -> tuple[int, ...]:
    """Return the trials of each rung: a quarter, then halves, and two at last."""
    sizes = [num_trials]
    while sizes[-1] > 2:
        cut = _FIRST_CUT if len(sizes) == 1 else 2
        sizes.append(max(2, sizes[-1] // cut))
    return tuple(sizes)


def _race(
    num_trials: int, num_groups: int, most: int | None
) -> tuple[PlannedRung, ...]:
    """Return the rungs of a race: within so many rounds of the app, if it can be."""
    while most is not None and num_trials > 2:
        least = sum(rung.turns for rung in _rungs(num_trials, num_groups, ()))
        if least <= most:
            break
        num_trials -= 1
    budgets = [*_FIRST_RUNGS, *[_OTHER_RUNGS] * len(_sizes(num_trials))]
    while True:
        rungs = _rungs(num_trials, num_groups, budgets)
        if most is None or num_rung_rounds(rungs) <= most or max(budgets) <= 1:
            return rungs
        # The longest rung gives a round, the last one of several.
        longest = max(range(len(rungs)), key=lambda place: (budgets[place], place))
        budgets[longest] -= 1


def _rungs(num_trials: int, num_groups: int, budgets: Any) -> tuple[PlannedRung, ...]:
    """Return rungs that take so many rounds of the app; without budgets, the fewest."""
    alive, rungs, rounds = [*_sizes(num_trials), 1], list[PlannedRung](), 0
    for number, (num, left) in enumerate(pairwise(alive)):
        turns = -(-num // num_groups)
        groups = -(-num // turns)
        rounds += max(1, budgets[number] // turns) if budgets else 1
        rungs.append(PlannedRung(rounds, num, left, groups))
    return tuple(rungs)


def _full_rungs(
    num_trials: int, first: int, num_rounds: int | None
) -> tuple[PlannedRung, ...]:
    """Return rungs in which all clients train each trial, the first for few rounds."""
    alive, rungs = [*_sizes(num_trials), 1], list[PlannedRung]()
    for number, (num, left) in enumerate(pairwise(alive)):
        rounds = first * _FULL_GROWTH**number
        if num_rounds is not None and rounds >= num_rounds:
            # main ends here: there is no later rung.
            return (*rungs, PlannedRung(num_rounds, num, 1))
        rungs.append(PlannedRung(rounds, num, left))
    return tuple(rungs)

"""What a client keeps of each trial: the app's own state, and the last score."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import cast

from flwr.app import ConfigRecord, MetricRecord, RecordDict

_PREFIX = "fbo-tuner"
_ATTEMPT, _SCORES = f"{_PREFIX}:attempt", f"{_PREFIX}:scores"
# Where the client's part in secure sums is kept: it is forgotten with the scores.
SUM = f"{_PREFIX}:sum"


class TrialStates:
    """The part of ``context.state`` that belongs to the trials.

    Parameters
    ----------
    state : RecordDict
        ``context.state``; changed in place.
    attempt : str
        What belongs to another run of the tuner is forgotten.
    alive : collection of int
        What belongs to other trials is forgotten.

    Attributes
    ----------
    scores : dict of int to tuple of float
        Score and weight of each trial that has one.
    """

    def __init__(self, state: RecordDict, attempt: str, alive: Collection[int]) -> None:
        known = cast(ConfigRecord, state.get(_ATTEMPT, ConfigRecord()))
        if known.get("attempt") != attempt:
            self.forget(state)
            state[_ATTEMPT] = ConfigRecord({"attempt": attempt})
            state[_SCORES] = MetricRecord()
        self._state, alive = state, frozenset(alive)
        stored = cast(MetricRecord, state[_SCORES])
        for name in [name for name in stored if int(name) not in alive]:
            del stored[name]
        for name in [name for name in state if self._trial_of(name) not in alive]:
            if self._trial_of(name) is not None:
                del state[name]
        self._stored = stored

    @staticmethod
    def forget(state: RecordDict) -> None:
        """Remove all that belongs to trials."""
        for name in [name for name in state if name.startswith(f"{_PREFIX}:")]:
            del state[name]

    @property
    def scores(self) -> dict[int, tuple[float, float]]:
        """Score and weight of each trial that has one."""
        pairs = {int(name): cast(list[float], v) for name, v in self._stored.items()}
        return {trial: (score, weight) for trial, (score, weight) in pairs.items()}

    def score(self, trial: int, score: float, weight: float) -> None:
        """Keep a trial's last score."""
        self._stored[str(trial)] = [score, weight]

    def load(self, trial: int) -> RecordDict:
        """Return the app's state in a trial; at first what it is outside of trials."""
        mine = f"{_PREFIX}:{trial}:"
        if f"{mine}begun" not in self._state:
            self._state[f"{mine}begun"] = ConfigRecord()
            own = [name for name in self._state if not name.startswith(f"{_PREFIX}:")]
            return RecordDict({n: copy.deepcopy(self._state[n]) for n in own})
        names = [name for name in self._state if name.startswith(f"{mine}own:")]
        return RecordDict({n.split(":", 3)[3]: self._state[n] for n in names})

    def save(self, trial: int, state: RecordDict) -> None:
        """Keep the app's state in a trial."""
        mine = f"{_PREFIX}:{trial}:own:"
        for name in [name for name in self._state if name.startswith(mine)]:
            del self._state[name]
        for name, record in state.items():
            self._state[f"{mine}{name}"] = record

    @staticmethod
    def _trial_of(name: str) -> int | None:
        """Return whose record it is; None for the app's own outside of trials."""
        prefix, _, rest = name.partition(":")
        number = rest.partition(":")[0]
        return int(number) if prefix == _PREFIX and number.isdecimal() else None

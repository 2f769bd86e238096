"""A client's memory of trials, in ``context.state``: app states, and last scores."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection
from typing import cast

from flwr.app import ConfigRecord, MetricRecord, RecordDict

from flwr_fbo._compat import SECURE_AGGREGATION_STATE
from flwr_fbo.site.kept_ledger import SPENDING
from flwr_fbo.tuner.ballots.example_ballots import ExampleBallots

_PREFIX = "fbo-tuner"
_ATTEMPT, _SCORES = f"{_PREFIX}:attempt", f"{_PREFIX}:scores"
# Where the client's part in secure sums is kept: it is forgotten with the scores.
KEPT_SUM = f"{_PREFIX}:sum"


class TrialStates:
    """The part of ``context.state`` that is of trials: app states, last scores.

    Parameters
    ----------
    state : RecordDict
        ``context.state``; changed in place.
    attempt : str
        Name of the run of the tuner: what belongs to others is forgotten.
    examples : ExampleBallots, optional
        What ballots on the scores will be. None: they will have ranks.
    alive : collection of int, optional
        Trials whose state stays. None: all.

    Attributes
    ----------
    scores : dict of int to tuple of float
        Score and weight of each trial that has one.
    """

    def __init__(
        self,
        state: RecordDict,
        attempt: str,
        examples: ExampleBallots | None = None,
        alive: Collection[int] | None = None,
    ) -> None:
        known = cast(ConfigRecord, state.get(_ATTEMPT, ConfigRecord()))
        # Another run of the tuner trains anew: scores of old models must not be ranked.
        if known.get("attempt") != attempt:
            self.forget(state)
            state[_ATTEMPT] = ConfigRecord(
                {"attempt": attempt, "ballots": repr(examples)}
            )
            state[_SCORES] = MetricRecord()
        self._state = state
        self._stored = cast(MetricRecord, state[_SCORES])
        if alive is None:
            return
        kept: set[int | None] = {None, *alive}
        for name in [name for name in self._stored if int(name) not in kept]:
            del self._stored[name]
        for name in [name for name in state if self._trial_of(name) not in kept]:
            del state[name]

    @staticmethod
    def fit(state: RecordDict, attempt: str, examples: ExampleBallots | None) -> bool:
        """Return whether the scores of an attempt, if any, are for such ballots."""
        known = cast(ConfigRecord, state.get(_ATTEMPT, ConfigRecord()))
        return known.get("attempt") != attempt or known["ballots"] == repr(examples)

    @classmethod
    def adopt(cls, state: RecordDict, attempt: str, trial: int) -> None:
        """Make the app's state in a trial its own: that trial goes on as no trial.

        Nothing is changed where there is none, as after the first such message.
        """
        known = cast(ConfigRecord, state.get(_ATTEMPT, ConfigRecord()))
        if known.get("attempt") != attempt or f"{_PREFIX}:{trial}:begun" not in state:
            return
        own = cls(state, attempt).load(trial)
        state.clear()
        state.update(own)

    @staticmethod
    def forget(state: RecordDict) -> None:
        """Remove everything that belongs to trials."""
        for name in [name for name in state if name.startswith(f"{_PREFIX}:")]:
            del state[name]

    @property
    def scores(self) -> dict[int, tuple[float, float]]:
        """Score and weight of each trial that has one; see `fail`."""
        pairs = {int(name): cast(list[float], v) for name, v in self._stored.items()}
        return {trial: (score, weight) for trial, (score, weight) in pairs.items()}

    def score(self, trial: int, score: float, weight: float) -> None:
        """Keep a trial's last score."""
        self._stored[str(trial)] = [score, weight]

    def fail(self, trial: int) -> None:
        """Keep that a trial has no score, and the weight that it had; NaN: it had none.

        Whether an app gives an answer says nothing of how many examples it has.
        """
        _, weight = self.scores.get(trial, (math.nan, math.nan))
        # One of 0 would make a failure a trial that the client was not asked about.
        self.score(trial, math.nan, weight or math.nan)

    def load(self, trial: int) -> RecordDict:
        """Return the app's state in a trial; at first what it is outside of trials.

        But for Flower's secure aggregation: a client that answers its last stage twice,
        from two copies of a state, can be asked for the keys of both masks of a model.
        And but for the site's ledger, which all trials share: with a copy each, each
        trial could spend the whole limit.
        """
        mine, not_copied = f"{_PREFIX}:{trial}:", (SECURE_AGGREGATION_STATE, SPENDING)
        if f"{mine}begun" not in self._state:
            self._state[f"{mine}begun"] = ConfigRecord()
            own = RecordDict()
            for name, record in self._state.items():
                is_app = not name.startswith(f"{_PREFIX}:")
                if is_app and name not in not_copied:
                    # Trials must not see what others of them change.
                    own[name] = copy.deepcopy(record)
        else:
            names = [name for name in self._state if name.startswith(f"{mine}own:")]
            own = RecordDict({n.split(":", 3)[3]: self._state[n] for n in names})
        if SPENDING in self._state:
            own[SPENDING] = self._state[SPENDING]
        return own

    def save(self, trial: int, state: RecordDict) -> None:
        """Keep the app's state in a trial, and its charges for all trials."""
        mine = f"{_PREFIX}:{trial}:own:"
        # What the app has removed from its state must not come back.
        for name in [name for name in self._state if name.startswith(mine)]:
            del self._state[name]
        for name, record in state.items():
            self._state[name if name == SPENDING else f"{mine}{name}"] = record

    @staticmethod
    def _trial_of(name: str) -> int | None:
        """Return whose record it is; None for the app's own outside of trials."""
        prefix, _, rest = name.partition(":")
        number = rest.partition(":")[0]
        return int(number) if prefix == _PREFIX and number.isdecimal() else None

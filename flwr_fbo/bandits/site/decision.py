"""Decisions of a site's bandit: what each is among, and what was chosen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.conversion import (
    float_array,
    frame_of,
    mapping,
    names,
    take_plain,
)
from flwr_fbo._common.validation import require
from flwr_fbo.journal.tables import Trial


@dataclass(frozen=True, eq=False)
class Offer:
    """The actions that one decision is among.

    Attributes
    ----------
    features : ndarray of shape (K, d)
        Feature vector of each action.
    arms : tuple of K str
        Their names; "0", "1", ... where actions were given as vectors.
    record : dict
        What `Trial.params` has besides the choice.
    outside : mapping of str to int
        Values outside of their bounds, by field.
    """

    features: FloatArray
    arms: tuple[str, ...]
    record: dict[str, Any] = field(default_factory=dict)
    outside: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of_vectors(cls, actions: Any) -> Offer:
        """Return that of actions without names.

        Raises
        ------
        ValueError
            If they are not an array of shape (K, d).
        """
        allowed = "an array of shape (K, d), as there is no encoder"
        require(not isinstance(actions, Mapping), "context", actions, allowed)
        features = float_array("actions", actions)
        require(features.ndim == 2, "actions", features.shape, allowed)
        return cls(features, tuple(map(str, range(len(features)))))

    def without(self, index: int) -> Offer:
        """Return the offer without one of its actions."""
        arms = self.arms[:index] + self.arms[index + 1 :]
        features = np.delete(self.features, index, axis=0)
        return Offer(features, arms, {**self.record, "eligible": list(arms)})


@dataclass(frozen=True, eq=False)
class Choice:
    """What `LinearBanditPolicy.choose` chose.

    Examples
    --------
    >>> from flwr_fbo.bandits import Choice
    >>> choice = Choice(index=1, arm="home", ticket=0, propensity=0.95)
    >>> choice.arm
    'home'

    Attributes
    ----------
    index : int
        Index of the action, from 0 to K - 1, among the eligible ones, which are in the
        order of the arms' table.
    arm : str
        The arm's name; without an encoder the index as text.
    ticket : int
        Ticket for the reward.
    propensity : float
        In (0, 1]: the probability with which it was chosen, out of the eligible ones.
    """

    index: int
    arm: str
    ticket: int
    propensity: float


@dataclass(frozen=True, eq=False)
class Decision:
    """One recorded decision of a site's bandit.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fbo.bandits import Decision
    >>> decision = Decision(
    ...     number=0, time=1.7e9, context={"age": 71}, arms=("ward", "home"),
    ...     features=np.array([[1.0, 0.0], [0.0, 1.0]]), chosen=1, propensity=0.95,
    ...     reward=0.5,
    ... )
    >>> decision.arms[decision.chosen]
    'home'

    Attributes
    ----------
    number : int
        Ticket of the decision, from 0.
    time : float
        Unix time of the choice, in seconds.
    context : mapping or None
        Context as the user gave it; None where actions were given as vectors.
    arms : tuple of str
        Names of the eligible arms, in the order of ``features``; "0", "1", ... where
        actions were given as vectors.
    features : ndarray of shape (K, d)
        Feature vectors of the eligible arms.
    chosen : int
        Index of the chosen arm in ``arms``.
    propensity : float
        Probability, in (0, 1], with which that arm was chosen.
    reward : float
        Reward of the chosen arm; NaN while it is awaited.
    """

    number: int
    time: float
    context: Mapping[str, Any] | None
    arms: tuple[str, ...]
    features: FloatArray
    chosen: int
    propensity: float
    reward: float

    def __post_init__(self) -> None:
        take_plain(self)
        if self.context is not None and not isinstance(self.context, Mapping):
            object.__setattr__(self, "context", mapping("context", self.context))
        if not isinstance(self.arms, tuple):
            object.__setattr__(self, "arms", tuple(names("arms", self.arms)))
        if not isinstance(self.features, np.ndarray):
            features = float_array("features", self.features)
            object.__setattr__(self, "features", features)


# `pscore` and the like are what libraries for off-policy evaluation call them.
_COLUMNS = ("number", "time", "context", "eligible", "action", "reward", "pscore")


def decisions_frame(decisions: Iterable[Decision]) -> Any:
    """Return a ``pandas.DataFrame`` with one row a decision.

    Its columns are ``number``, ``time``, ``context``, ``eligible`` (the list of arms),
    ``action`` (the chosen arm), ``reward`` and ``pscore`` (the propensity).

    Raises
    ------
    ImportError
        If pandas is not installed; the message names the extra.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fbo.bandits.site.decision import Decision, decisions_frame
    >>> one = Decision(0, 1.7e9, None, ("0", "1"), np.eye(2), 1, 0.95, 0.5)
    >>> print(decisions_frame([one])[["eligible", "action", "reward", "pscore"]])
      eligible action  reward  pscore
    0   [0, 1]      1     0.5    0.95
    """
    rows = [
        {
            "number": decision.number,
            "time": decision.time,
            "context": decision.context,
            "eligible": list(decision.arms),
            "action": decision.arms[decision.chosen],
            "reward": decision.reward,
            "pscore": decision.propensity,
        }
        for decision in decisions
    ]
    return frame_of(rows, _COLUMNS)


def action_of(trial: Trial) -> FloatArray:
    """Return the action that a recorded decision chose, shape (d,)."""
    return trial.point if trial.point.ndim == 1 else trial.point[trial.params["chosen"]]

"""What a bandit's decision is among, what was chosen, and what is recorded of it.

A trial of the journal has

    params  {"chosen": index, "propensity": p}; of named arms also "context", and
            "arms", the version of their table; and "eligible", the names, where they
            are not all
    point   the actions, shape (K, d); of named arms the chosen one only, shape (d,), as
            the others follow from the context
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.conversion import float_array
from flwr_fbo._common.validation import require
from flwr_fbo.journal.tables import Trial

Row = tuple[dict[str, Any], FloatArray]


@dataclass(frozen=True, eq=False)
class Choice:
    """What `LinearBanditPolicy.choose` chose.

    Examples
    --------
    >>> from flwr_fbo import Choice
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
class Offer:
    """The actions that one decision is among.

    Attributes
    ----------
    features : ndarray of shape (K, d)
    arms : tuple of K str
        Their names.
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
        is_mapping = isinstance(actions, Mapping)
        require(not is_mapping, "context", actions, allowed)
        features = float_array("actions", actions)
        require(features.ndim == 2, "actions", features.shape, allowed)
        return cls(features, tuple(map(str, range(len(features)))))

    @classmethod
    def of_trial(cls, trial: Trial) -> Offer:
        """Return that of a recorded decision, of actions without names."""
        offer = cls.of_vectors(trial.point)
        left = trial.params.get("eligible", offer.arms)
        return cls(offer.features, tuple(left))

    def without(self, index: int) -> Offer:
        """Return the offer without one of its actions."""
        arms = self.arms[:index] + self.arms[index + 1 :]
        features = np.delete(self.features, index, axis=0)
        return Offer(features, arms, {**self.record, "eligible": list(arms)})

    def row(self, index: int, propensity: float) -> Row:
        """Return what is recorded once an action is chosen."""
        params = {"chosen": index, "propensity": propensity, **self.record}
        return params, self.features[index] if "context" in params else self.features


def action_of(trial: Trial) -> FloatArray:
    """Return the action that a decision chose, shape (d,)."""
    return trial.point if trial.point.ndim == 1 else trial.point[trial.params["chosen"]]

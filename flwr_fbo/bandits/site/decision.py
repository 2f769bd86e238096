"""Decisions of a site's bandit: what is asked for, what was chosen, and why."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import numpy as np

from flwr_fbo._common.arrays import FloatArray, all_best
from flwr_fbo._common.conversion import (
    float_array,
    frame_of,
    mapping,
    names,
    plain,
    take_plain,
)
from flwr_fbo._common.validation import (
    require,
    require_bool,
    require_name,
    require_number,
)
from flwr_fbo.journal.tables import Trial

Why = Literal[
    "only arm",
    "best expected",
    "highest upper bound",
    "tie",
    "explored",
    "floor",
    "baseline",
]

# Characters of a request's key.
_LONGEST_KEY = 200
# The largest whole number that all floats below it can hold.
_EXACT = 2**53


@dataclass(frozen=True, eq=False)
class Request:
    """What `BanditPolicy.choose` is asked; its parameters say what each is.

    Attributes
    ----------
    context : mapping of str to value, or array of shape (K, d)
        The context, or the actions.
    eligible : collection of str, optional
        Names of the arms that are possible.
    forbid : collection of str
        Names of arms that must not be chosen.
    floors : mapping of str to float
        Least probabilities, by arm.
    explore : bool
        Whether anything but the best expected arm may be chosen.
    key : str, optional
        The key that a retried request has again.
    num_slots : int, optional
        Number of arms of a slate.
    """

    context: Any
    eligible: Collection[str] | None = None
    forbid: Collection[str] = ()
    floors: Mapping[str, float] = field(default_factory=dict)
    explore: bool = True
    key: str | None = None
    num_slots: int | None = None

    def __post_init__(self) -> None:
        take_plain(self)
        require_bool("explore", self.explore)
        forbid = tuple(names("forbid", self.forbid))
        object.__setattr__(self, "forbid", forbid)
        given = mapping("floors", self.floors).items()
        floors = {plain(name): plain(least) for name, least in given}
        for name, least in floors.items():
            require_number(f"floors[{name!r}]", least, 0, 1)
        total = sum(floors.values())
        require(total <= 1, "floors", floors, "probabilities that add up to 1 at most")
        object.__setattr__(self, "floors", floors)
        if self.key is not None:
            require_name("key", self.key)
            allowed = f"at most {_LONGEST_KEY} characters"
            require(len(self.key) <= _LONGEST_KEY, "key", self.key, allowed)

    @property
    def digest(self) -> str:
        """Digest of all but the key: equal for a request that is retried."""
        if hasattr(self.context, "keys") or hasattr(self.context, "_asdict"):
            given = mapping("context", self.context)
            context: Any = {str(name): _same(value) for name, value in given.items()}
        else:
            actions = float_array("context", self.context)
            context = [actions.shape, actions.tobytes().hex()]
        some = self.eligible
        eligible = None if some is None else sorted(set(names("eligible", some)))
        forbid, floors = sorted(set(self.forbid)), sorted(self.floors.items())
        asked = [context, eligible, forbid, floors, self.explore, self.num_slots]
        text = json.dumps(asked, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def _same(value: Any) -> Any:
    """Return a whole number as a float: a data frame makes it one, too."""
    value = plain(value)
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return float(value) if is_whole and abs(value) <= _EXACT else value


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
    forbidden : tuple of str
        Names of arms that would be eligible, were they not forbidden.
    floors : ndarray of shape (K,), optional
        Least probability of each action.
    explore : bool
        Whether anything but the best expected action may be chosen.
    """

    features: FloatArray
    arms: tuple[str, ...]
    record: dict[str, Any] = field(default_factory=dict)
    outside: Mapping[str, int] = field(default_factory=dict)
    forbidden: tuple[str, ...] = ()
    floors: FloatArray | None = None
    explore: bool = True

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
        record = {**self.record, "eligible": list(arms)}
        return Offer(features, arms, record, explore=self.explore)

    def raised(self, probabilities: FloatArray) -> FloatArray:
        """Return the probabilities of the actions, raised to their floors.

        With floors c_a and p_a without them, c_a + (1 - sum of c) p_a.
        """
        if self.floors is None:
            return probabilities
        return np.asarray(self.floors + (1 - self.floors.sum()) * probabilities)

    @property
    def is_plain(self) -> bool:
        """Whether the study's exploration alone decides."""
        return self.explore and self.floors is None


@dataclass(frozen=True)
class Chosen:
    """The choice out of one offer; see `Choice` for its attributes."""

    index: int
    propensity: float
    expected: float
    width: float
    why: Why

    @classmethod
    def explained(
        cls,
        offer: Offer,
        index: int,
        propensity: float,
        means: FloatArray,
        widths: FloatArray,
        *,
        is_optimistic: bool,
        middle: float = 0.0,
    ) -> Self:
        """Return a choice with what was expected of it, and why it was made.

        Parameters
        ----------
        offer : Offer
            Actions that it is among.
        index, propensity
            As a `Choice` has them.
        means, widths : ndarray of shape (K,)
            Expected reward of each action, and half its interval; NaN if unknown.
        is_optimistic : bool
            Whether upper bounds are compared, where the policy may explore.
        middle : float
            Reward that the means are above.
        """
        why: Why = "explored"
        best, highest = all_best(means), all_best(means + widths)
        compared = highest if is_optimistic and offer.explore else best
        if len(offer.arms) == 1:
            why = "only arm"
        elif compared[index] and not np.isnan(means[index]):
            is_tie = compared.sum() > 1 and propensity < 1
            why = "best expected" if best[index] else "highest upper bound"
            why = "tie" if is_tie else why
        elif offer.floors is not None and offer.floors[index] > 0:
            why = "floor"
        expected, width = middle + means[index], widths[index]
        rounded = [float(f"{value:.6g}") for value in (expected, width)]
        return cls(index, propensity, rounded[0], rounded[1], why)

    @property
    def record(self) -> dict[str, Any]:
        """What `Trial.params` has of it."""
        about = vars(self)
        return {"chosen": about["index"]} | {n: about[n] for n in about if n != "index"}


@dataclass(frozen=True, eq=False)
class Choice:
    """What `BanditPolicy.choose` chose.

    Examples
    --------
    >>> from flwr_fbo.bandits import Choice
    >>> choice = Choice(
    ...     index=1, arm="home", ticket=0, propensity=1.0, expected=0.6, width=0.2,
    ...     why="highest upper bound",
    ... )
    >>> choice.arm, choice.why
    ('home', 'highest upper bound')

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
    expected : float
        Expected reward of the chosen action by the site's estimate, to six digits; NaN
        where it has none, as in phase I of `FedGOUCB`.
    width : float
        Half the interval around ``expected`` that the policy explored within: their sum
        is the upper bound that `Optimism` compares. It is not a confidence interval
        where the study fixes the width.
    why : str
        Reason of the choice: ``"best expected"``, the highest expected reward of all;
        ``"highest upper bound"``, a lower one that is less known; ``"tie"``, drawn
        among equally good ones; ``"explored"``, drawn although another one is expected
        to be better; ``"floor"``, likewise, of an arm with a floor; ``"baseline"``, in
        place of an arm that may be worse; ``"only arm"``.
    """

    index: int
    arm: str
    ticket: int
    propensity: float
    expected: float
    width: float
    why: Why


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
    expected, width, why : float, float, str
        As the `Choice` had them; NaN and empty where a decision is from elsewhere.
    key : str, optional
        Key of the request.
    """

    number: int
    time: float
    context: Mapping[str, Any] | None
    arms: tuple[str, ...]
    features: FloatArray
    chosen: int
    propensity: float
    reward: float
    expected: float = math.nan
    width: float = math.nan
    why: Why | Literal[""] = ""
    key: str | None = None

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

"""A log's decisions with a reward, checked and matched with a target policy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.conversion import ROUNDING, float_array, mapping, mappings
from flwr_fbo._common.validation import nearest, require
from flwr_fbo.clients.bandits.decision import Decision

# Of each decision: in the order of its arms, or by their names.
Probabilities = Iterable[ArrayLike | Mapping[str, float]]

# By how much probabilities may miss a sum of 1.
_TOLERANCE = 1e-9
# With smaller ones the squares of weights would be infinite.
_LEAST_PROPENSITY = 1e-100


@dataclass(frozen=True, eq=False)
class MatchedLog:
    """The n decisions with a reward in order of time, matched with a policy.

    Attributes
    ----------
    rewards, weights : ndarray of shape (n,)
    features : ndarray of shape (n, d)
        Features of the chosen arm.
    policy_features : ndarray of shape (n, d)
        Features that the policy's choice has on average. A linear model's prediction of
        them is its prediction for the policy.
    num_awaited : int
    """

    rewards: FloatArray
    weights: FloatArray
    features: FloatArray
    policy_features: FloatArray
    num_awaited: int


def with_rewards(
    decisions: Sequence[Decision], others: Sequence[Any]
) -> list[tuple[Decision, Any]]:
    """Return the decisions with a reward in order of time, each with its other.

    Raises
    ------
    ValueError
        If there are fewer than two, or a reward is infinite.
    """
    pairs = [
        (decision, other)
        for decision, other in zip(decisions, others, strict=True)
        if not math.isnan(decision.reward)
    ]
    allowed = f"at least 2 with a reward; {len(decisions) - len(pairs)} are without one"
    require(len(pairs) >= 2, "num_decisions", len(pairs), allowed)
    # By number, not by time: a clock may be set back.
    pairs.sort(key=lambda pair: pair[0].number)
    rewarded = [decision for decision, _ in pairs]
    rewards = [decision.reward for decision in rewarded]
    _require_each(
        rewarded, np.isfinite(rewards), "reward", rewards, "a finite number, or NaN"
    )
    return pairs


def of_arms(probabilities: Any, decision: Decision) -> FloatArray:
    """Return probabilities as an array in the order of a decision's arms.

    Parameters
    ----------
    probabilities : array, or mapping of str to float
        A mapping may leave out arms, whose probability is 0.

    Raises
    ------
    ValueError
        If a name is not that of an eligible arm; or if it is neither.
    """
    field = f"probabilities of decision {decision.number}"
    if not by_name(probabilities):
        return float_array(field, probabilities)
    given = mapping(field, probabilities)
    for name, probability in given.items():
        if probability != 0 and name not in decision.arms:
            require(
                False, field, name, f"an eligible arm, {nearest(name, decision.arms)}"
            )
    return float_array(field, [given.get(arm, 0.0) for arm in decision.arms])


def by_name(probabilities: Any) -> bool:
    """Return whether probabilities are given by the arms' names."""
    if isinstance(probabilities, Mapping):
        return True
    is_series = hasattr(probabilities, "to_dict")
    return is_series and all(isinstance(name, str) for name in probabilities.index)


def _listed(probabilities: Any) -> list[Any]:
    """Return what there is for each decision; of a data frame, by its columns."""
    if not hasattr(probabilities, "to_dict"):
        return list(probabilities)
    columns = list(probabilities.columns)
    if all(isinstance(name, str) for name in columns):
        return mappings("probabilities", probabilities)
    return list(float_array("probabilities", probabilities))


def matched(decisions: Sequence[Decision], probabilities: Probabilities) -> MatchedLog:
    """Match the decisions that have a reward with a policy's probabilities.

    Raises
    ------
    ValueError
        If the log or the probabilities are not allowed, or the log cannot tell what the
        policy would have earned.
    """
    decisions, given = list(decisions), _listed(probabilities)
    allowed = f"{len(decisions)}, an array for each decision"
    fits = len(given) == len(decisions)
    require(fits, "len(probabilities)", len(given), allowed)
    pairs = with_rewards(decisions, given)
    rewarded = [decision for decision, _ in pairs]
    policies = [of_arms(policy, decision) for decision, policy in pairs]
    features = [np.asarray(decision.features, dtype=float) for decision in rewarded]
    _require_shapes(rewarded, features, policies)
    starts = np.cumsum([0, *(len(decision.arms) for decision in rewarded[:-1])])
    policy, all_features = np.concatenate(policies), np.concatenate(features)
    sums = np.add.reduceat(policy, starts)
    least = np.minimum.reduceat(policy, starts)
    _require_each(
        rewarded,
        (least >= 0) & (np.abs(sums - 1) <= ROUNDING),
        "probabilities",
        [p.tolist() for p in policies],
        lambda t: f">= 0, with a sum of 1, and their sum is {sums[t]:.9g}",
    )
    rounded = np.where(np.abs(sums - 1) <= _TOLERANCE, 1.0, sums)
    policy = policy / np.repeat(rounded, [len(own) for own in policies])
    finite = np.logical_and.reduceat(np.isfinite(all_features).all(axis=1), starts)
    _require_each(rewarded, finite, "features", features, "finite numbers")
    chosen = starts + [decision.chosen for decision in rewarded]
    _require_support(rewarded, policy[chosen])
    propensities = np.array([decision.propensity for decision in rewarded])
    return MatchedLog(
        rewards=np.array([decision.reward for decision in rewarded], dtype=float),
        weights=policy[chosen] / propensities,
        features=all_features[chosen],
        policy_features=np.add.reduceat(policy[:, None] * all_features, starts),
        num_awaited=len(decisions) - len(rewarded),
    )


def _require_each(
    decisions: Sequence[Decision],
    passed: ArrayLike,
    field: str,
    values: Sequence[Any],
    allowed: str | Callable[[int], str],
) -> None:
    """Raise ValueError for the first decision whose value has not passed a check."""
    failed = np.flatnonzero(~np.asarray(passed, dtype=bool))
    if len(failed):
        t = int(failed[0])
        text = allowed if isinstance(allowed, str) else allowed(t)
        require(False, f"{field} of decision {decisions[t].number}", values[t], text)


def _require_shapes(
    decisions: Sequence[Decision],
    features: Sequence[FloatArray],
    policies: Sequence[FloatArray],
) -> None:
    """Raise ValueError unless arms, features and probabilities fit together."""
    arms = [decision.arms for decision in decisions]
    _require_each(decisions, [len(a) > 0 for a in arms], "arms", arms, "a name or more")
    d = features[0].shape[-1] if features[0].ndim else 0
    shapes = [array.shape for array in features]
    fit = [shape == (len(a), d) for shape, a in zip(shapes, arms, strict=True)]
    allowed = f"shape (K, {d}), a row for each arm"
    _require_each(decisions, fit, "features", shapes, allowed)
    shapes = [array.shape for array in policies]
    fit = [shape == (len(a),) for shape, a in zip(shapes, arms, strict=True)]
    allowed = "shape (K,), a number for each eligible arm"
    _require_each(decisions, fit, "probabilities", shapes, allowed)
    chosen = [decision.chosen for decision in decisions]
    fit = [0 <= index < len(a) for index, a in zip(chosen, arms, strict=True)]
    _require_each(decisions, fit, "chosen", chosen, "an index of its arms")


def _require_support(decisions: Sequence[Decision], of_chosen: FloatArray) -> None:
    """Raise ValueError where the log shows that it lacks what the policy chooses."""
    propensities = [decision.propensity for decision in decisions]
    fit = [0 < propensity <= 1 for propensity in propensities]
    _require_each(decisions, fit, "propensity", propensities, "in (0, 1]")
    fit = [propensity >= _LEAST_PROPENSITY for propensity in propensities]
    allowed = f"{_LEAST_PROPENSITY} or more: no log has an action that improbable"
    _require_each(decisions, fit, "propensity", propensities, allowed)
    allowed = (
        "below 1 in a decision at least. The log was made without randomised "
        "exploration, so it does not tell what other actions give. A study whose "
        "LinearUCBSettings have exploration=EllipsoidSampling() makes a log that does"
    )
    require(min(propensities) < 1, "propensity", 1.0, allowed)
    fit = [
        propensity < 1 or probability >= 1 - _TOLERANCE
        for propensity, probability in zip(propensities, of_chosen, strict=True)
    ]
    allowed = (
        "below 1 where the policy may choose another arm, which the log's policy "
        "never takes there. Leave out the decisions that were not randomised"
    )
    _require_each(decisions, fit, "propensity", propensities, allowed)
    if not of_chosen.any():
        text = (
            "The policy takes none of the logged actions with a reward: the log does "
            "not tell what it would have earned."
        )
        raise ValueError(text)

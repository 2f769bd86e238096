"""A log's decisions with a reward, checked and matched with a target policy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from flwr_fbo._arrays import FloatArray
from flwr_fbo._validation import require
from flwr_fbo.agents.durable.decision import Decision

# By how much probabilities may miss a sum of 1.
_TOLERANCE = 1e-9


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


def matched(
    decisions: Sequence[Decision], probabilities: Sequence[ArrayLike]
) -> MatchedLog:
    """Match the decisions that have a reward with a policy's probabilities.

    Raises
    ------
    ValueError
        If the log or the probabilities are not allowed, or the log cannot tell what the
        policy would have earned.
    """
    allowed = f"{len(decisions)}, an array for each decision"
    fits = len(probabilities) == len(decisions)
    require(fits, "len(probabilities)", len(probabilities), allowed)
    pairs = with_rewards(decisions, probabilities)
    rewarded = [decision for decision, _ in pairs]
    policies = [np.asarray(policy, dtype=float) for _, policy in pairs]
    features = [np.asarray(decision.features, dtype=float) for decision in rewarded]
    _require_shapes(rewarded, features, policies)
    starts = np.cumsum([0, *(len(decision.arms) for decision in rewarded[:-1])])
    policy, all_features = np.concatenate(policies), np.concatenate(features)
    sums = np.add.reduceat(policy, starts)
    non_negative = np.minimum.reduceat(policy, starts) >= 0
    are_probabilities = non_negative & (np.abs(sums - 1) <= _TOLERANCE)
    _require_each(
        rewarded, are_probabilities, "probabilities", policies, ">= 0, with a sum of 1"
    )
    finite = np.logical_and.reduceat(np.isfinite(all_features).all(axis=1), starts)
    _require_each(rewarded, finite, "features", features, "finite numbers")
    chosen = starts + [decision.chosen for decision in rewarded]
    _require_support(rewarded, policy[chosen])
    propensities = np.array([decision.propensity for decision in rewarded])
    return MatchedLog(
        rewards=np.array([decision.reward for decision in rewarded]),
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
    allowed: str,
) -> None:
    """Raise ValueError for the first decision whose value has not passed a check."""
    failed = np.flatnonzero(~np.asarray(passed, dtype=bool))
    if len(failed):
        t = failed[0]
        require(False, f"{field} of decision {decisions[t].number}", values[t], allowed)


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

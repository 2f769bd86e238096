r"""Estimators of a policy's value from the decisions that another policy made.

Decision t had K_t eligible arms with features x_{t,a}. The log's policy chose arm a_t
with probability p_t, its propensity, and the reward r_t came. The target policy would
have chosen arm a with probability pi_t(a). Its value is the mean reward it would have
earned. With the weights w_t = pi_t(a_t) / p_t the estimators are

    IPS    mean of w_t r_t
    SNIPS  sum of w_t r_t, divided by the sum of w_t
    DR     mean of sum_a pi_t(a) q_t(x_{t,a}) + w_t (r_t - q_t(x_{t,a_t}))

where q_t is a model of the reward.

All of them need propensities that are right, and a positive propensity of every arm
that the target policy may choose. Decisions without a reward are left out. That is
harmless only where it does not depend on the reward or the arm how long a reward takes.

Sources
-------
- IPS: D. G. Horvitz and D. J. Thompson, "A generalization of sampling without
  replacement from a finite universe", Journal of the American Statistical Association
  47(260), 663-685, 1952.
- SNIPS: A. Swaminathan and T. Joachims, "The self-normalized estimator for
  counterfactual learning", NeurIPS 2015, 3231-3239.
- DR: M. Dudik, J. Langford and L. Li, "Doubly robust policy evaluation and learning",
  ICML 2011, https://arxiv.org/abs/1103.4601.
- Delta method and effective sample size: A. B. Owen, "Monte Carlo theory, methods and
  examples", 2013, chapter 9 (importance sampling), https://artowen.su.domains/mc/.
- Intervals: see `flwr_fbo.bandits.off_policy.intervals`.
"""

# Open Bandit Pipeline has these estimators, too. Its last release, obp 0.5.7 of April
# 2023, does not install on Python 3.11 or newer.

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from flwr_fbo._common.arrays import FloatArray, one_blas_thread
from flwr_fbo._common.conversion import (
    ROUNDING,
    float_array,
    mapping,
    mappings,
    plain,
)
from flwr_fbo._common.text import ranges_text
from flwr_fbo._common.validation import nearest, refuse, require, require_fraction
from flwr_fbo.bandits.off_policy.intervals import Terms
from flwr_fbo.bandits.site.decision import Decision
from flwr_fbo.models.thompson_gp import posterior_weights

# Target probabilities of each decision: in the order of its arms, or by their names.
Probabilities = Iterable[ArrayLike | Mapping[str, float]]

# By how much probabilities may miss a sum of 1.
_TOLERANCE = 1e-9
# With smaller ones the squares of weights would be infinite.
_LEAST_PROPENSITY = 1e-100
# The reward model is fitted anew for each block, with this penalty on its weights.
_NUM_BLOCKS = 20
_PENALTY = 1.0
# Probability of a warning in a correct log.
_LEVEL = 0.01


@dataclass(frozen=True)
class PolicyValue:
    """An estimate of a policy's value, with its confidence interval.

    Examples
    --------
    >>> from flwr_fbo.bandits import PolicyValue
    >>> value = PolicyValue(0.5, 0.1, 0.3, 0.7, 40, 2, 25.0, 1.0, 0.2, 4.0, "ips")
    >>> value.low < value.value < value.high
    True

    Attributes
    ----------
    value : float
        Estimate of the mean reward.
    standard_error : float
        Its standard error.
    low, high : float
        Ends of the confidence interval, in the range of rewards; see
        `flwr_fbo.bandits.off_policy.intervals`. NaN where the log has too little: see
        ``warning``. The estimates of IPS and DR may be outside of that range.
    num_decisions : int
        Decisions with a reward: all that the estimate is made of.
    num_awaited : int
        Decisions that were left out because their reward is awaited, or cancelled.
    effective_sample_size : float
        ``sum(w)**2 / sum(w**2)`` of the weights w: how many decisions of the target
        policy itself the log is worth. Where it is small, a few decisions determine the
        estimate. It counts only what happened: see ``mean_weight``.
    mean_weight : float
        The mean weight; 1 is expected. Far below 1 the log has too few
        decisions for arms that the policy takes and the log's own hardly ever took.
        What these arms would have earned is then not in the estimate, and the effective
        sample size does not show it.
    mean_weight_score : float
        The mean weight's distance from 1 in standard errors, as the log's likelihood
        has it: about standard normal if the propensities are right, and no decision
        is missing because of what it was.
    largest_weight : float
        The largest weight of one decision.
    estimator : str
        "ips", "snips", "doubly_robust", or "logged" for the log's own policy.
    """

    value: float
    standard_error: float
    low: float
    high: float
    num_decisions: int
    num_awaited: int
    effective_sample_size: float
    mean_weight: float
    mean_weight_score: float
    largest_weight: float
    estimator: str

    @property
    def warning(self) -> str:
        """Reason why there is no interval, or it may not hold; empty without one.

        The mean weight may be far from 1: by chance it is so far in about 1 % of
        correct logs. Or the log has too little: the interval would span over 80 % of
        the range of rewards, or that range is unknown because all rewards are equal.
        """
        if abs(self.mean_weight_score) > NormalDist().inv_cdf(1 - _LEVEL / 2):
            kind = "few" if self.mean_weight < 1 else "many"
            return (
                f"The mean weight is {self.mean_weight:.2f}, and 1 is expected: the "
                f"log has too {kind} decisions for what the policy takes, or its "
                "propensities are wrong. Do not rely on the intervals."
            )
        if math.isnan(self.low):
            return (
                f"Too little for an interval: {self.num_decisions} decisions are worth "
                f"{self.effective_sample_size:.1f} of this policy, or all rewards are "
                "equal and `reward_range` is not given."
            )
        return ""


@dataclass(frozen=True, eq=False)
class MatchedLog:
    """The n decisions with a reward in order of time, matched with a policy.

    Attributes
    ----------
    rewards, weights : ndarray of shape (n,)
        Rewards, and importance weights: the policy's probability of the logged arm over
        the probability on record.
    features : ndarray of shape (n, d)
        Features of the chosen arm.
    policy_features : ndarray of shape (n, d)
        Features that the policy's choice has on average. A linear model's prediction of
        them is its prediction for the policy.
    largest_weights : ndarray of shape (n,)
        About the largest weight that each decision might have had.
    num_awaited : int
        Number of decisions, >= 0, whose reward is still awaited.
    reward_range : (float, float)
        Smallest and largest possible reward.
    """

    rewards: FloatArray
    weights: FloatArray
    largest_weights: FloatArray
    features: FloatArray
    policy_features: FloatArray
    num_awaited: int
    reward_range: tuple[float, float]


def ips(
    decisions: Sequence[Decision],
    probabilities: Probabilities,
    confidence: float = 0.95,
    reward_range: tuple[float, float] | None = None,
) -> PolicyValue:
    """Estimate a policy's value by inverse propensity scores.

    The estimate is unbiased, also where the log's policy changed with what it learned
    (Horvitz and Thompson, 1952). Its interval is wide where weights are large.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fbo.bandits import Decision, ips
    >>> context, arms, features = None, ("ward", "home"), np.eye(2)
    >>> log = [
    ...     Decision(0, 0.0, context, arms, features, 0, propensity=0.5, reward=1.0),
    ...     Decision(1, 9.0, context, arms, features, 1, propensity=0.8, reward=0.4),
    ... ]
    >>> always_home = [[0.0, 1.0], [0.0, 1.0]]
    >>> ips(log, always_home).value  # (0 + 0.4 / 0.8) / 2
    0.25

    Parameters
    ----------
    decisions : sequence of Decision
        The log of one site. At least two decisions need a reward.
    probabilities : sequence of ndarray, or of mappings of str to float
        The target policy's probabilities of the eligible arms, one array of shape
        (K_t,) for each decision, or by the arms' names. Also a data frame with a row
        for each decision, and a column for each arm.
    confidence : float
        Confidence of the interval, between 0 and 1.
    reward_range : (float, float), optional
        Smallest and largest possible reward. By default those of the log, and the
        interval then does not cover rewards that the log lacks.

    Raises
    ------
    ValueError
        If the log or the probabilities are not allowed, or the log cannot tell what the
        policy would have earned.
    """
    return _ips(matched(decisions, probabilities, reward_range), confidence)


def snips(
    decisions: Sequence[Decision],
    probabilities: Probabilities,
    confidence: float = 0.95,
    reward_range: tuple[float, float] | None = None,
) -> PolicyValue:
    """Estimate a policy's value by self-normalised inverse propensity scores.

    The estimate is a weighted mean of the rewards, so it stays within their range. It
    has a bias that vanishes as the log grows (Swaminathan and Joachims, 2015). The
    standard error is that of a ratio by the delta method (Owen, 2013, chapter 9).

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fbo.bandits import Decision, snips
    >>> context, arms, features = None, ("ward", "home"), np.eye(2)
    >>> log = [
    ...     Decision(0, 0.0, context, arms, features, 0, propensity=0.5, reward=1.0),
    ...     Decision(1, 9.0, context, arms, features, 1, propensity=0.8, reward=0.4),
    ... ]
    >>> snips(log, [[0.0, 1.0], [0.0, 1.0]]).value  # the only reward of "home"
    0.4

    Parameters
    ----------
    decisions, probabilities, confidence, reward_range
        As for `ips`.

    Raises
    ------
    ValueError
        As for `ips`.
    """
    return _snips(matched(decisions, probabilities, reward_range), confidence)


def doubly_robust(
    decisions: Sequence[Decision],
    probabilities: Probabilities,
    confidence: float = 0.95,
    reward_range: tuple[float, float] | None = None,
) -> PolicyValue:
    """Estimate a policy's value by a reward model that propensity scores correct.

    The better the model, the narrower the interval (Dudik, Langford and Li, 2011). The
    model is a ridge regression of the reward on the chosen arm's features, with an
    intercept.

    The model is *predictable*. The decisions are cut into 20 blocks in order of time,
    and each block's model is fitted on earlier blocks only. In the first block it is
    the mean of earlier rewards, at first 0. So the estimate is unbiased whatever the
    model is worth, also for logs whose policy changed with what it learned: given all
    that happened before a decision, its model is fixed, and its arm has the recorded
    propensity. A model that had seen the decision, or a later one, would depend on the
    choice it corrects.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fbo.bandits import Decision, doubly_robust
    >>> context, arms, features = None, ("ward", "home"), np.eye(2)
    >>> log = [
    ...     Decision(0, 0.0, context, arms, features, 0, propensity=0.5, reward=1.0),
    ...     Decision(1, 9.0, context, arms, features, 1, propensity=0.8, reward=0.4),
    ... ]
    >>> value = doubly_robust(log, [[0.0, 1.0], [0.0, 1.0]]).value
    >>> print(f"{value:.4f}")  # the second model is 1: (0 + 1 + (0.4 - 1) / 0.8) / 2
    0.1250

    Parameters
    ----------
    decisions, probabilities, confidence, reward_range
        As for `ips`.

    Raises
    ------
    ValueError
        As for `ips`.
    """
    return _doubly_robust(matched(decisions, probabilities, reward_range), confidence)


def logged_mean(
    decisions: Sequence[Decision],
    confidence: float = 0.95,
    reward_range: tuple[float, float] | None = None,
) -> PolicyValue:
    """Return the mean reward of the log's own policy, with its interval.

    Parameters
    ----------
    decisions, confidence, reward_range
        As for `ips`.

    Raises
    ------
    ValueError
        If fewer than two decisions have a reward, one is not allowed, or a decision is
        there twice.
    """
    decisions = list(decisions)
    rewarded = [decision for decision, _ in with_rewards(decisions, decisions)]
    rewards = np.array([decision.reward for decision in rewarded], dtype=float)
    ones, none = np.ones(len(rewards)), np.empty((len(rewards), 0))
    rewards_in = _range_of(rewarded, rewards, reward_range)
    awaited = len(decisions) - len(rewards)
    log = MatchedLog(rewards, ones, ones, none, none, awaited, rewards_in)
    return _mean("logged", rewards, rewards_in, log, confidence)


def all_estimates(
    decisions: Sequence[Decision],
    probabilities: Probabilities,
    confidence: float,
    reward_range: tuple[float, float] | None = None,
) -> dict[str, PolicyValue]:
    """Return the three estimates, by the estimator's name; the log is matched once.

    Parameters and errors are those of `ips`.
    """
    log = matched(decisions, probabilities, reward_range)
    found = [make(log, confidence) for make in (_ips, _snips, _doubly_robust)]
    return {estimate.estimator: estimate for estimate in found}


def _ips(log: MatchedLog, confidence: float) -> PolicyValue:
    most = float(log.largest_weights.max())
    possible = [0.0, *(most * reward for reward in log.reward_range)]
    return _mean("ips", log.weights * log.rewards, possible, log, confidence)


def _snips(log: MatchedLog, confidence: float) -> PolicyValue:
    most = float(log.largest_weights.max())
    possible = [(most * reward, most) for reward in log.reward_range]
    terms = Terms(log.weights * log.rewards, log.weights, possible)
    total = np.sum(log.weights)
    error = np.linalg.norm(log.weights * (log.rewards - terms.value)) / total
    return _estimate("snips", terms, float(error), log, confidence)


@one_blas_thread
def _doubly_robust(log: MatchedLog, confidence: float) -> PolicyValue:
    # Predictions for the chosen arm and for the policy, each by earlier blocks alone.
    num = len(log.rewards)
    first, *later = np.array_split(np.arange(num), min(_NUM_BLOCKS, num))
    of_chosen, of_policy = np.zeros((2, num))
    means = np.cumsum(log.rewards[first]) / (first + 1)
    of_chosen[first[1:]] = of_policy[first[1:]] = means[:-1]
    for block in later:
        features, rewards = log.features[: block[0]], log.rewards[: block[0]]
        # The intercept is without a penalty: that of centred data is 0.
        centre, level = features.mean(axis=0), rewards.mean()
        theta, _ = posterior_weights(features - centre, rewards - level, _PENALTY)
        of_chosen[block] = level + (log.features[block] - centre) @ theta
        of_policy[block] = level + (log.policy_features[block] - centre) @ theta
    scores = of_policy + log.weights * (log.rewards - of_chosen)
    # What each decision would have scored with its largest weight and either reward.
    possible = [
        float(extreme(of_policy + log.largest_weights * (reward - of_chosen)))
        for extreme, reward in zip((np.min, np.max), log.reward_range, strict=True)
    ]
    return _mean("doubly_robust", scores, possible, log, confidence)


def _mean(
    estimator: str,
    scores: FloatArray,
    possible: Sequence[float],
    log: MatchedLog,
    confidence: float,
) -> PolicyValue:
    """Return the mean of the decisions' scores; ``possible`` are extreme ones."""
    error = np.std(scores, ddof=1) / math.sqrt(len(scores))
    terms = Terms(scores, np.ones(len(scores)), [(score, 1.0) for score in possible])
    return _estimate(estimator, terms, float(error), log, confidence)


def _estimate(
    estimator: str,
    terms: Terms,
    standard_error: float,
    log: MatchedLog,
    confidence: float,
) -> PolicyValue:
    """Return an estimate with its interval."""
    confidence = plain(confidence)
    require_fraction("confidence", confidence)
    low, high = terms.interval(log.reward_range, confidence)
    # Of the mean weight: its scores are the weights.
    possible = [(0.0, 1.0), (float(log.largest_weights.max()), 1.0)]
    weights = Terms(log.weights, np.ones(len(log.weights)), possible)
    return PolicyValue(
        value=terms.value,
        standard_error=standard_error,
        low=low,
        high=high,
        num_decisions=len(log.rewards),
        num_awaited=log.num_awaited,
        effective_sample_size=float(np.sum(log.weights) ** 2 / np.sum(log.weights**2)),
        mean_weight=weights.value,
        mean_weight_score=weights.signed_root(1.0),
        largest_weight=float(np.max(log.weights)),
        estimator=estimator,
    )


def with_rewards(
    decisions: Sequence[Decision], others: Sequence[Any]
) -> list[tuple[Decision, Any]]:
    """Return the decisions with a reward in order of time, each with its other.

    Raises
    ------
    ValueError
        If there are fewer than two, a reward is infinite, or a decision is there twice,
        with or without its reward.
    """
    counts = Counter(decision.number for decision in decisions)
    copied = sorted(number for number, count in counts.items() if count > 1)
    if copied:
        # Two copies would count as two decisions, and the interval be too narrow.
        expected = (
            f"in the log once, and so many decisions are there more often: "
            f"{len(copied)}. Logs that overlap were put together, or those of several "
            "sites"
        )
        raise ValueError(f"number={ranges_text(copied)} is not allowed: {expected}.")
    pairs = [
        (decision, other)
        for decision, other in zip(decisions, others, strict=True)
        if not math.isnan(decision.reward)
    ]
    if len(pairs) < 2:
        awaited = len(decisions) - len(pairs)
        expected = f"at least 2 with a reward; {awaited} are without one"
        refuse("num_decisions", len(pairs), expected)
    # By number, not by time: a clock may be set back.
    pairs.sort(key=lambda pair: pair[0].number)
    for decision, _ in pairs:
        number, reward = decision.number, decision.reward
        field, expected = f"reward of decision {number}", "a finite number, or NaN"
        require(math.isfinite(reward), field, reward, expected)
    return pairs


def _range_of(
    decisions: Sequence[Decision],
    rewards: FloatArray,
    reward_range: tuple[float, float] | None,
) -> tuple[float, float]:
    """Return the range of rewards, which is the log's where none is given."""
    if reward_range is None:
        return float(rewards.min()), float(rewards.max())
    ends = float_array("reward_range", reward_range)
    expected = "two finite numbers, the smaller one first"
    are_two = ends.shape == (2,) and np.isfinite(ends).all() and ends[0] < ends[1]
    require(bool(are_two), "reward_range", reward_range, expected)
    low, high = ends.tolist()
    for decision, reward in zip(decisions, rewards.tolist(), strict=True):
        field, expected = f"reward of decision {decision.number}", "in reward_range"
        is_within = low <= reward <= high
        require(is_within, field, reward, f"{expected}=({low:g}, {high:g})")
    return low, high


def of_arms(probabilities: Any, decision: Decision) -> FloatArray:
    """Return probabilities as an array in the order of a decision's arms.

    Parameters
    ----------
    probabilities : array, or mapping of str to float
        A mapping may leave out arms, whose probability is 0.

    Raises
    ------
    ValueError
        If a name is not an eligible arm, or the probabilities are neither of the two.
    """
    field = f"probabilities of decision {decision.number}"
    if not by_name(probabilities):
        return float_array(field, probabilities)
    by_arm = mapping(field, probabilities)
    for name, probability in by_arm.items():
        if probability != 0 and name not in decision.arms:
            refuse(field, name, f"an eligible arm, {nearest(name, decision.arms)}")
    return float_array(field, [by_arm.get(arm, 0.0) for arm in decision.arms])


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


def matched(
    decisions: Sequence[Decision],
    probabilities: Probabilities,
    reward_range: tuple[float, float] | None = None,
) -> MatchedLog:
    """Match the decisions that have a reward with a policy's probabilities.

    Raises
    ------
    ValueError
        If the log or the probabilities are not allowed, or the log cannot tell what the
        policy would have earned.
    """
    decisions, listed = list(decisions), _listed(probabilities)
    count, expected = len(listed), f"{len(decisions)}, an array for each decision"
    require(count == len(decisions), "len(probabilities)", count, expected)
    pairs = with_rewards(decisions, listed)
    rewarded = [decision for decision, _ in pairs]
    policies = [of_arms(policy, decision) for decision, policy in pairs]
    features = [np.asarray(decision.features, dtype=float) for decision in rewarded]
    d = features[0].shape[-1] if features[0].ndim else 0
    for row in zip(rewarded, features, policies, strict=True):
        _check(*row, d)
    starts = np.cumsum([0, *(len(decision.arms) for decision in rewarded[:-1])])
    policy, all_features = np.concatenate(policies), np.concatenate(features)
    sums = np.add.reduceat(policy, starts)
    rounded = np.where(np.abs(sums - 1) <= _TOLERANCE, 1.0, sums)
    policy = policy / np.repeat(rounded, [len(row) for row in policies])
    chosen = starts + [decision.chosen for decision in rewarded]
    _require_support(rewarded, policy[chosen])
    propensities = np.array([decision.propensity for decision in rewarded])
    rewards = np.array([decision.reward for decision in rewarded], dtype=float)
    weights = policy[chosen] / propensities
    # On record is the probability of the chosen arm alone. The others share the rest:
    # they are taken to have equal parts of it, as under a uniform share.
    others = policy.copy()
    others[chosen] = 0.0
    largest_other = np.maximum.reduceat(others, starts)
    num_others = np.array([len(row) - 1 for row in policies])
    rest = np.where(propensities < 1, 1 - propensities, 1.0)
    return MatchedLog(
        rewards=rewards,
        weights=weights,
        largest_weights=np.maximum(weights, largest_other * num_others / rest),
        features=all_features[chosen],
        policy_features=np.add.reduceat(policy[:, None] * all_features, starts),
        num_awaited=len(decisions) - len(rewarded),
        reward_range=_range_of(rewarded, rewards, reward_range),
    )


def _check(
    decision: Decision, features: FloatArray, policy: FloatArray, d: int
) -> None:
    """Raise ValueError unless a decision's arms, features and probabilities fit."""
    of, K, p = f"of decision {decision.number}", len(decision.arms), decision.propensity
    require(K > 0, f"arms {of}", decision.arms, "a name or more")
    expected = f"shape (K, {d}), a row for each arm"
    require(features.shape == (K, d), f"features {of}", features.shape, expected)
    expected = "shape (K,), a number for each eligible arm"
    require(policy.shape == (K,), f"probabilities {of}", policy.shape, expected)
    chosen = decision.chosen
    require(0 <= chosen < K, f"chosen {of}", chosen, "an index of its arms")
    total = policy.sum()
    expected = f">= 0, with a sum of 1, and their sum is {total:.9g}"
    adds_up = policy.min() >= 0 and abs(total - 1) <= ROUNDING
    require(bool(adds_up), f"probabilities {of}", policy.tolist(), expected)
    known = bool(np.isfinite(features).all())
    require(known, f"features {of}", features, "finite numbers")
    require(0 < p <= 1, f"propensity {of}", p, "in (0, 1]")
    expected = f"{_LEAST_PROPENSITY} or more: no log has an action that improbable"
    require(p >= _LEAST_PROPENSITY, f"propensity {of}", p, expected)


def _require_support(decisions: Sequence[Decision], of_chosen: FloatArray) -> None:
    """Raise ValueError where the log shows that it lacks what the policy chooses."""
    # Of `Optimism` those decisions are below 1 in which several arms were equally good.
    unsure = [decision for decision in decisions if decision.propensity < 1]
    # With propensity 1 nothing was learned of the other arms.
    unfit = [
        decision
        for decision, probability in zip(decisions, of_chosen, strict=True)
        if decision.propensity == 1 and probability < 1 - _TOLERANCE
    ]
    if not unsure or (unfit and 2 * len(unsure) < len(decisions)):
        expected = (
            "below 1 in most decisions. The log was made without randomised "
            "exploration, so it does not tell what other actions give. A study whose "
            "LinearUCBSettings have exploration=EllipsoidSampling() makes a log that "
            "does"
        )
        refuse("propensity", 1.0, expected)
    expected = (
        "below 1 where the policy may choose another arm, which the log's policy "
        "never takes there. Leave out the decisions that were not randomised"
    )
    for logged in unfit:
        refuse(f"propensity of decision {logged.number}", logged.propensity, expected)
    if not of_chosen.any():
        raise ValueError(
            "The policy takes none of the logged actions with a reward: the log does "
            "not tell what it would have earned."
        )

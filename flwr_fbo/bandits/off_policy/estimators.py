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
- Intervals of means of skewed scores: P. Hall, "On the removal of skewness by
  transformation", Journal of the Royal Statistical Society B 54(1), 221-228, 1992.
- Logs whose policy learns: V. Hadad, D. A. Hirshberg, R. Zhan, S. Wager and S. Athey,
  "Confidence intervals for policy evaluation in adaptive experiments", PNAS 118(15),
  e2014602118, 2021.
"""

# Open Bandit Pipeline has these estimators, too. Its last release, obp 0.5.7 of April
# 2023, does not install on Python 3.11 or newer.

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
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
from flwr_fbo._common.validation import nearest, refuse, require, require_fraction
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
# Probability of a warning in a correct log; and the smallest standard error of a mean
# weight, so that rounding does not look like an error.
_LEVEL, _LEAST_ERROR = 0.01, 1e-9


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
        Ends of the confidence interval: a normal one, but for IPS; see `ips`.
    num_decisions : int
        Decisions with a reward: all that the estimate is made of.
    num_awaited : int
        Decisions that were left out because their reward is awaited, or cancelled.
    effective_sample_size : float
        ``sum(w)**2 / sum(w**2)`` of the weights w: how many decisions of the target
        policy itself the log is worth. Where it is small, a few decisions determine the
        estimate: in simulated logs with a uniform share of 0.1 that were worth 30 to
        40, the 95 % intervals of IPS covered the truth in 97 to 98 %, those of
        SNIPS in 92 %, those of DR in 95 %. It counts only what happened: see
        ``mean_weight``.
    mean_weight : float
        The mean weight; 1 is expected. Far below 1 the log has too few
        decisions for arms that the policy takes and the log's own hardly ever took.
        What these arms would have earned is then not in the estimate, nor in its
        interval, and the effective sample size does not show it.
    mean_weight_score : float
        The mean weight's distance from 1 in standard errors, corrected for skewness as
        in `ips`: about standard normal if the propensities are right, and no decision
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
        """Reason why the interval may not hold; empty without one.

        The mean weight may be far from 1. By chance it is so far in 1 % of correct
        logs, and in about 5 % where the log is worth fewer than 30 decisions.
        Or the interval has no width, as of rewards that are all 0.
        """
        if abs(self.mean_weight_score) > NormalDist().inv_cdf(1 - _LEVEL / 2):
            kind = "few" if self.mean_weight < 1 else "many"
            return (
                f"The mean weight is {self.mean_weight:.2f}, and 1 is expected: the "
                f"log has too {kind} decisions for what the policy takes, or its "
                "propensities are wrong. Do not rely on the intervals."
            )
        if self.standard_error <= _LEAST_ERROR * abs(self.value):
            return (
                f"All {self.num_decisions} decisions say the same: the interval has no "
                "width, and does not tell how often another reward would come. Do not "
                "rely on it."
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
    num_awaited : int
        Number of decisions, >= 0, whose reward is still awaited.
    """

    rewards: FloatArray
    weights: FloatArray
    features: FloatArray
    policy_features: FloatArray
    num_awaited: int


def ips(
    decisions: Sequence[Decision],
    probabilities: Probabilities,
    confidence: float = 0.95,
) -> PolicyValue:
    """Estimate a policy's value by inverse propensity scores.

    The estimate is unbiased, also where the log's policy changed with what it learned
    (Horvitz and Thompson, 1952). Its interval is wide where weights are large.

    A few large weights make the scores w_t r_t skewed: their mean is often too low, and
    its standard error with it. The interval is corrected for that to second order. With
    T the estimate's error over its standard error, and g the skewness of n scores,

        T + a T^2 + a^2 T^3 / 3 + a / 2,    a = g / (3 sqrt(n)),

    is closer to normal than T (Hall, 1992), and grows with T.

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
    probabilities : sequence of arrays, or of mappings of str to float
        The target policy's probabilities of the eligible arms, one array of shape
        (K_t,) for each decision, or by the arms' names. Also a data frame with a row
        for each decision, and a column for each arm.
    confidence : float
        Confidence of the interval, between 0 and 1.

    Raises
    ------
    ValueError
        If the log or the probabilities are not allowed, or the log cannot tell what the
        policy would have earned.
    """
    return _ips(matched(decisions, probabilities), confidence)


def snips(
    decisions: Sequence[Decision],
    probabilities: Probabilities,
    confidence: float = 0.95,
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
    decisions, probabilities, confidence
        As for `ips`.

    Raises
    ------
    ValueError
        As for `ips`.
    """
    return _snips(matched(decisions, probabilities), confidence)


def doubly_robust(
    decisions: Sequence[Decision],
    probabilities: Probabilities,
    confidence: float = 0.95,
) -> PolicyValue:
    """Estimate a policy's value by a reward model that propensity scores correct.

    The better the model, the narrower the interval (Dudik, Langford and Li, 2011). The
    model is a ridge regression of the reward on the chosen arm's features, with an
    intercept.

    The model is *predictable*. The decisions are cut into 20 blocks in order of time,
    and each block's model is fitted on earlier blocks only. The model of the first
    block is 0. So the estimate is unbiased whatever the model is worth, also for logs
    whose policy changed with what it learned: given all that happened before a
    decision, its model is fixed, and its arm has the recorded propensity. A model that
    had seen the decision, or a later one, would depend on the choice it corrects. The
    normal interval needs a log whose policy explores throughout; see Hadad et al.
    (2021) for logs that stop to explore.

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
    decisions, probabilities, confidence
        As for `ips`.

    Raises
    ------
    ValueError
        As for `ips`.
    """
    return _doubly_robust(matched(decisions, probabilities), confidence)


def logged_mean(decisions: Sequence[Decision], confidence: float = 0.95) -> PolicyValue:
    """Return the mean reward of the log's own policy, with its interval.

    Parameters
    ----------
    decisions, confidence
        As for `ips`.

    Raises
    ------
    ValueError
        If fewer than two decisions have a reward, one is infinite, or a decision is
        there twice.
    """
    decisions = list(decisions)
    rewarded = [decision for decision, _ in with_rewards(decisions, decisions)]
    rewards = np.array([decision.reward for decision in rewarded], dtype=float)
    none = np.empty((len(rewards), 0))
    awaited = len(decisions) - len(rewards)
    log = MatchedLog(rewards, np.ones(len(rewards)), none, none, awaited)
    return _mean("logged", rewards, log, confidence)


def all_estimates(
    decisions: Sequence[Decision],
    probabilities: Probabilities,
    confidence: float,
) -> dict[str, PolicyValue]:
    """Return the three estimates, by the estimator's name; the log is matched once.

    Parameters and errors are those of `ips`.
    """
    log = matched(decisions, probabilities)
    found = [make(log, confidence) for make in (_ips, _snips, _doubly_robust)]
    return {estimate.estimator: estimate for estimate in found}


def _ips(log: MatchedLog, confidence: float) -> PolicyValue:
    scores = log.weights * log.rewards
    return _mean("ips", scores, log, confidence, _skewness_factor(scores))


def _snips(log: MatchedLog, confidence: float) -> PolicyValue:
    total = np.sum(log.weights)
    value = np.sum(log.weights * log.rewards) / total
    error = np.linalg.norm(log.weights * (log.rewards - value)) / total
    return _estimate("snips", value, error, log, confidence)


@one_blas_thread
def _doubly_robust(log: MatchedLog, confidence: float) -> PolicyValue:
    # Predictions for the chosen arm and for the policy, each by earlier blocks alone.
    of_chosen, of_policy = np.zeros((2, len(log.rewards)))
    num_blocks = min(_NUM_BLOCKS, len(log.rewards))
    _, *later = np.array_split(np.arange(len(log.rewards)), num_blocks)
    for block in later:
        features, rewards = log.features[: block[0]], log.rewards[: block[0]]
        # The intercept is without a penalty: that of centred data is 0.
        centre, level = features.mean(axis=0), rewards.mean()
        theta, _ = posterior_weights(features - centre, rewards - level, _PENALTY)
        of_chosen[block] = level + (log.features[block] - centre) @ theta
        of_policy[block] = level + (log.policy_features[block] - centre) @ theta
    scores = of_policy + log.weights * (log.rewards - of_chosen)
    return _mean("doubly_robust", scores, log, confidence)


def _skewness_factor(scores: FloatArray) -> float:
    """Return a of `ips`: the scores' skewness over 3 sqrt(n); 0 if they are all equal.

    DR does not use it: its scores' skewness comes from few outliers, and the correction
    would make its intervals worse.
    """
    centred = scores - np.mean(scores)
    spread = np.linalg.norm(centred)
    # g / sqrt(n) is the sum of cubes over the cubed norm.
    return float(np.sum((centred / spread) ** 3) / 3) if spread > 0 else 0.0


def _mean(
    estimator: str,
    scores: FloatArray,
    log: MatchedLog,
    confidence: float,
    skewness_factor: float = 0.0,
) -> PolicyValue:
    """Return the mean of the decisions' scores."""
    error = np.std(scores, ddof=1) / math.sqrt(len(scores))
    value = np.mean(scores)
    return _estimate(estimator, value, error, log, confidence, skewness_factor)


def _estimate(
    estimator: str,
    value: float | np.floating[Any],
    error: float | np.floating[Any],
    log: MatchedLog,
    confidence: float,
    skewness_factor: float = 0.0,
) -> PolicyValue:
    """Return an estimate with its interval: the normal one, if there is no skewness."""
    confidence = plain(confidence)
    require_fraction("confidence", confidence)
    reach = NormalDist().inv_cdf((1 + confidence) / 2)
    from_one = np.mean(log.weights) - 1
    spread = float(np.std(log.weights, ddof=1)) / math.sqrt(len(log.weights))
    distance = float(from_one) / max(spread, _LEAST_ERROR)
    # The sum in `ips`, for T = the distance of the mean weight from 1.
    a = _skewness_factor(log.weights)
    score = distance * (1 + a * distance + (a * distance) ** 2 / 3) + a / 2
    most, least = (_untransformed(end, skewness_factor) for end in (reach, -reach))
    return PolicyValue(
        value=float(value),
        standard_error=float(error),
        low=float(value - most * error),
        high=float(value - least * error),
        num_decisions=len(log.rewards),
        num_awaited=log.num_awaited,
        effective_sample_size=float(np.sum(log.weights) ** 2 / np.sum(log.weights**2)),
        mean_weight=float(np.mean(log.weights)),
        mean_weight_score=score,
        largest_weight=float(np.max(log.weights)),
        estimator=estimator,
    )


def _untransformed(z: float, a: float) -> float:
    """Return the T for which the sum in `ips` is z.

    The sum is ((1 + a T)^3 - 1) / (3 a) + a / 2. With c = 1 + a T, (c - 1) / a is
    3 (z - a / 2) / (c^2 + c + 1), which loses no digits where a is all but 0.
    """
    c = float(np.cbrt(1 + 3 * a * (z - a / 2)))
    return 3 * (z - a / 2) / (c**2 + c + 1)


def with_rewards(
    decisions: Sequence[Decision], others: Sequence[Any]
) -> list[tuple[Decision, Any]]:
    """Return the decisions with a reward in order of time, each with its other.

    Raises
    ------
    ValueError
        If there are fewer than two, a reward is infinite, or a decision is there twice.
    """
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
    for (before, _), (after, _) in pairwise(pairs):
        # Two copies would count as two decisions, and the interval be too narrow.
        expected = "in the log once, and there are two decisions with this number"
        require(before.number != after.number, "number", after.number, expected)
    for decision, _ in pairs:
        number, reward = decision.number, decision.reward
        field, expected = f"reward of decision {number}", "a finite number, or NaN"
        require(math.isfinite(reward), field, reward, expected)
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


def matched(decisions: Sequence[Decision], probabilities: Probabilities) -> MatchedLog:
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
    return MatchedLog(
        rewards=np.array([decision.reward for decision in rewarded], dtype=float),
        weights=policy[chosen] / propensities,
        features=all_features[chosen],
        policy_features=np.add.reduceat(policy[:, None] * all_features, starts),
        num_awaited=len(decisions) - len(rewarded),
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

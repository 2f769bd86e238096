"""The estimators by hand, in expectation, and what they refuse."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from flwr_fbo.bandits.off_policy.estimators import (
    MatchedLog,
    PolicyValue,
    _ips,
    doubly_robust,
    ips,
    logged_mean,
    snips,
)
from flwr_fbo.bandits.off_policy.intervals import MOST_OF_RANGE
from flwr_fbo.bandits.site.decision import Decision

ESTIMATORS = (ips, snips, doubly_robust)
NINETY_FIVE = 1.959963984540054


def _decision(t: int, chosen: int, propensity: float, reward: float) -> Decision:
    return Decision(
        t, 10.0 * t, None, ("a", "b"), np.eye(2), chosen, propensity, reward
    )


LOG = [
    _decision(0, 0, 0.5, 1.0),
    _decision(1, 1, 0.8, 0.4),
    _decision(2, 0, 0.2, 0.7),
]
POLICY = [[0.5, 0.5], [0.2, 0.8], [0.1, 0.9]]
# 0.5 / 0.5, 0.8 / 0.8, 0.1 / 0.2.
WEIGHTS = (1.0, 1.0, 0.5)


def test_ips_by_hand() -> None:
    found = ips(LOG, POLICY)
    scores = (1.0, 0.4, 0.35)
    mean = (1.0 + 0.4 + 0.35) / 3
    error = math.sqrt(sum((s - mean) ** 2 for s in scores) / 2 / 3)
    assert found.value == pytest.approx(mean, rel=1e-12)
    assert found.standard_error == pytest.approx(error, rel=1e-12)
    assert found.effective_sample_size == pytest.approx(2.5**2 / 2.25)
    assert found.largest_weight == 1.0
    assert found.mean_weight == pytest.approx(2.5 / 3)
    assert "mean weight" not in found.warning  # within one standard error of 1
    assert (found.num_decisions, found.num_awaited) == (3, 0)
    assert found.estimator == "ips"


def test_snips_by_hand() -> None:
    found = snips(LOG, POLICY)
    value = (1.0 + 0.4 + 0.35) / 2.5
    rewards = (1.0, 0.4, 0.7)
    squares = [(w * (r - value)) ** 2 for w, r in zip(WEIGHTS, rewards, strict=True)]
    assert found.value == pytest.approx(value, rel=1e-12)
    assert found.standard_error == pytest.approx(math.sqrt(sum(squares)) / 2.5)
    assert found.estimator == "snips"


def test_the_reward_model_is_fitted_on_earlier_blocks_only() -> None:
    """Against scikit-learn's ridge regression, with blocks of two decisions."""
    rng = np.random.default_rng(0)
    log, policy = _random_log(rng, 40)
    scores = []
    for t, (decision, p) in enumerate(zip(log, policy, strict=True)):
        earlier, predictions = log[: t - t % 2], np.zeros(len(decision.arms))
        if earlier:
            chosen = [one.features[one.chosen] for one in earlier]
            model = Ridge(alpha=1.0).fit(chosen, [one.reward for one in earlier])
            predictions = model.predict(decision.features)
        elif t:  # in the first block, the mean of earlier rewards
            predictions += np.mean([one.reward for one in log[:t]])
        i = decision.chosen
        residual = decision.reward - predictions[i]
        scores.append(p @ predictions + p[i] / decision.propensity * residual)
    found = doubly_robust(log, policy)
    assert found.value == pytest.approx(np.mean(scores), rel=1e-10)
    error = np.std(scores, ddof=1) / math.sqrt(40)
    assert found.standard_error == pytest.approx(error, rel=1e-10)
    assert found.estimator == "doubly_robust"


def _random_log(rng: np.random.Generator, n: int) -> tuple[list[Decision], list[Any]]:
    """Return a log of one to four eligible arms, and a policy."""
    log, policy = [], []
    for t in range(n):
        k = int(rng.integers(1, 5))
        arms, features = tuple("abcd"[:k]), rng.normal(size=(k, 3))
        logged, target = rng.dirichlet(np.ones(k)), rng.dirichlet(np.ones(k))
        chosen = int(rng.choice(k, p=logged))
        reward = float(features[chosen].sum() + rng.normal())
        propensity = float(logged[chosen])
        log.append(Decision(t, t, None, arms, features, chosen, propensity, reward))
        policy.append(target)
    return log, policy


def test_an_arm_that_was_hardly_ever_taken_is_warned_of() -> None:
    """The effective sample is large then, as it counts only what happened."""
    rng, propensities = np.random.default_rng(3), [0.4967, 0.0033, 0.5]
    unseen = 0
    for _ in range(40):
        chosen = rng.choice(3, p=propensities, size=200)
        log = [
            Decision(t, t, None, ("a", "b", "c"), np.eye(3), a, propensities[a], 0.5)
            for t, a in enumerate(chosen.tolist())
        ]
        found = ips(log, [np.full(3, 1 / 3)] * len(log))
        if 1 not in chosen:
            unseen += 1
            assert found.effective_sample_size > 100
            assert "too few decisions for what the policy takes" in found.warning
        else:  # four times or more by chance in .5 % of logs
            is_often = np.sum(chosen == 1) > 3
            assert ("mean weight" in found.warning) == is_often
    assert 10 < unseen < 30


def _warned(rng: np.random.Generator, wrong: float) -> float:
    """Return in which share of logs the mean weight is warned of.

    With a probability ``wrong`` the first arm was taken, whatever is recorded.
    """
    warned, n, none = 0, 100, np.empty((100, 0))
    for _ in range(300):
        logged, target = rng.dirichlet(np.ones(3), size=(2, n))
        chosen = (logged.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
        chosen[rng.random(n) < wrong] = 0
        weights = (target / logged)[np.arange(n), chosen]
        most = (target / logged).max(axis=1)
        log = MatchedLog(rng.random(n), weights, most, none, none, 0, (0.0, 1.0))
        warned += "mean weight" in _ips(log, 0.95).warning
    return warned / 300


def test_right_logs_are_hardly_ever_warned_of_and_wrong_ones_are() -> None:
    rng = np.random.default_rng(4)
    assert _warned(rng, 0.0) < 0.08
    assert _warned(rng, 0.8) > 0.5


def test_equal_weights_are_no_distance_and_one_weight_is() -> None:
    log = [_decision(t, t % 2, 0.5, 0.1 * t) for t in range(9)]
    assert abs(ips(log, [[0.5, 0.5 + 1e-13]] * 9).mean_weight_score) < 1e-3
    found = ips(log, [[0.25, 0.75]] * 9)
    assert abs(found.mean_weight_score) < 1
    double = [replace(one, propensity=0.25, chosen=0) for one in log]
    assert "too many" in ips(double, [[0.5, 0.5]] * 9).warning


def test_an_arm_that_chance_alone_may_have_left_out_is_no_mistake() -> None:
    """Nine times in ten it is not chosen: .9^9 is .39, .9^90 is .00008."""
    never = [_decision(t, 0, 0.9, 0.1 * (t % 9)) for t in range(90)]
    few = ips(never[:9], [[0.5, 0.5]] * 9)
    assert "mean weight" not in few.warning
    assert "too few" in ips(never, [[0.5, 0.5]] * 90).warning


@pytest.mark.parametrize("reward", [0.0, 0.3, 1.0])
def test_rewards_that_are_all_the_same_have_an_interval_of_some_width(
    reward: float,
) -> None:
    log, policy = [_decision(t, t % 2, 0.5, reward) for t in range(40)], [[0.5, 0.5]]
    for estimator in ESTIMATORS:
        unknown = estimator(log, policy * 40)
        assert math.isnan(unknown.low)
        assert math.isnan(unknown.high)
        assert "all rewards are equal" in unknown.warning
        found = estimator(log, policy * 40, 0.95, (0, 1))
        assert 0.03 < found.high - found.low < 0.3
        assert not found.warning
    assert "all rewards are equal" in logged_mean(log).warning
    # With n rewards of 0 the end is 1 - exp(-z^2 / 2n), about 1.92 over n.
    if not reward:
        none = logged_mean(log, 0.95, (0, 1))
        assert none.low == 0
        assert none.high == pytest.approx(-math.expm1(-(NINETY_FIVE**2) / 80))


def test_an_interval_spans_at_most_most_of_the_range() -> None:
    log = [_decision(t, t % 2, 0.5, float(t % 3 == 0)) for t in range(200)]
    for n in range(2, 200):
        for estimator in ESTIMATORS:
            found = estimator(log[:n], [[0.5, 0.5]] * n, 0.95, (0, 1))
            width = found.high - found.low
            assert 0 < width <= MOST_OF_RANGE or "Too little" in found.warning
            assert n > 3 or "Too little" in found.warning
            assert n < 30 or not found.warning


@pytest.mark.parametrize("n", [10, 1000])
def test_the_interval_is_that_of_the_likelihood_ratio_of_a_share(n: int) -> None:
    """For rewards of 0 and 1 empirical likelihood is the binomial's."""
    ones = n // 5
    log = [_decision(t, t % 2, 0.5, float(t < ones)) for t in range(n)]
    found = logged_mean(log, 0.95, (0, 1))
    for v in (found.low, found.high):
        ratio = ones * math.log(0.2 / v) + (n - ones) * math.log(0.8 / (1 - v))
        assert 2 * ratio == pytest.approx(NINETY_FIVE**2, rel=1e-6)


def test_large_logs_have_the_normal_interval() -> None:
    rng = np.random.default_rng(0)
    log = [
        _decision(t, a, p if a else 1 - p, r)
        for t, (p, u, r) in enumerate(rng.uniform(0.3, 0.7, (4000, 3)).tolist())
        for a in [int(u < p)]
    ]
    for estimator in ESTIMATORS:
        found = estimator(log, [[0.5, 0.5]] * 4000, 0.95, (0, 1))
        reach = NINETY_FIVE * found.standard_error
        assert found.high - found.value == pytest.approx(reach, rel=0.02)
        assert found.value - found.low == pytest.approx(reach, rel=0.02)


def test_an_arm_that_the_log_has_not_seen_widens_the_interval() -> None:
    """Its reward might have been any, with a weight that nobody has seen."""
    log = [_decision(t, 0, 0.99, 0.5 + 0.001 * t) for t in range(60)]
    for estimator in ESTIMATORS:
        seen = estimator(log, [[0.99, 0.01]] * 60, 0.95, (0, 1))
        unseen = estimator(log, [[0.9, 0.1]] * 60, 0.95, (0, 1))
        assert unseen.high - unseen.low > 1.5 * (seen.high - seen.low)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((1, 0), r"reward_range=\(1, 0\) .* the smaller one first"),
        ((0, math.inf), "reward_range=.* two finite numbers"),
        (0.5, "reward_range=0.5 .* two finite numbers"),
        ((0, 0.9), r"reward of decision 0=1.0 .* in reward_range=\(0, 0.9\)"),
    ],
)
def test_a_range_is_two_numbers_that_hold_all_rewards(given: Any, message: str) -> None:
    for estimator in ESTIMATORS:
        with pytest.raises(ValueError, match=message):
            estimator(LOG, POLICY, 0.95, given)


def test_copies_are_named_and_counted_also_those_without_a_reward() -> None:
    log = [_decision(t, t % 2, 0.5, 0.1 * t) for t in range(8)]
    awaited = [replace(one, reward=math.nan) for one in log[2:5]]
    match = "number=2 to 4 is not allowed.*more often: 3. Logs that overlap"
    for estimator in ESTIMATORS:
        with pytest.raises(ValueError, match=match):
            estimator([*log, *awaited], [[0.5, 0.5]] * 11)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_decision_that_is_there_twice_is_refused(
    estimator: Callable[..., PolicyValue],
) -> None:
    with pytest.raises(ValueError, match="number=1 is not allowed: in the log once"):
        estimator([*LOG, LOG[1]], [*POLICY, POLICY[1]])
    with pytest.raises(ValueError, match="number=1 is not allowed: in the log once"):
        logged_mean([*LOG, LOG[1]])


def test_the_least_propensity_is_a_distance_like_another() -> None:
    log = [_decision(t, 0, 1e-100, 1.0) for t in range(4)]
    for estimator in ESTIMATORS:
        found = estimator(log, [[1.0, 0.0]] * 4)
        assert found.mean_weight == pytest.approx(1e100)
        assert "too many" in found.warning


@pytest.mark.parametrize("propensity", [1e-320, 5e-324, 1e-300, 1e-101])
def test_a_propensity_that_no_log_has_is_named(propensity: float) -> None:
    log = [*LOG, _decision(7, 1, propensity, 0.5)]
    text = rf"propensity of decision 7={propensity} is not allowed: 1e-100 or more"
    for estimator in ESTIMATORS:
        with pytest.raises(ValueError, match=text):
            estimator(log, [*POLICY, [0.5, 0.5]])


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_arms_may_come_and_go(estimator: Callable[..., PolicyValue]) -> None:
    log, policy = _random_log(np.random.default_rng(1), 30)
    found = estimator(log, policy)
    weights = [p[d.chosen] / d.propensity for d, p in zip(log, policy, strict=True)]
    assert found.largest_weight == pytest.approx(max(weights))


# A policy that learns: its second choice depends on the first and its reward. Rewards
# have two values each, so that expectations are finite sums.
_TRUE_MEANS = (0.3, 0.9)
_TARGET = ([0.25, 0.75], [0.6, 0.4])
_FIRST = (0.7, 0.3)


def _second(chosen: int, reward: float) -> tuple[float, float]:
    """Return the log's probabilities in the second decision."""
    p = 0.15 + 0.6 * reward if chosen == 0 else 0.9 - 0.5 * reward
    return p, 1 - p


def _all_logs() -> Iterator[tuple[float, list[Decision]]]:
    """Yield every log of two decisions, with its probability."""
    for a, r, b, s in product((0, 1), (0.0, 1.0), (0, 1), (0.0, 1.0)):
        of_first, of_second = _FIRST[a], _second(a, r)[b]
        rewards = [
            mean if reward else 1 - mean
            for mean, reward in ((_TRUE_MEANS[a], r), (_TRUE_MEANS[b], s))
        ]
        log = [_decision(0, a, of_first, r), _decision(1, b, of_second, s)]
        yield of_first * of_second * rewards[0] * rewards[1], log


@pytest.mark.parametrize("estimator", [ips, doubly_robust])
def test_the_expectation_is_the_truth_where_the_log_learns(
    estimator: Callable[..., PolicyValue],
) -> None:
    logs = list(_all_logs())
    assert sum(probability for probability, _ in logs) == pytest.approx(1, abs=1e-14)
    truth = np.mean([np.dot(p, _TRUE_MEANS) for p in _TARGET])
    expected = sum(
        probability * estimator(log, _TARGET).value for probability, log in logs
    )
    assert abs(expected - truth) < 1e-12


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_time_orders_the_log_and_not_its_place(
    estimator: Callable[..., PolicyValue],
) -> None:
    log, policy = _random_log(np.random.default_rng(2), 50)
    order = np.random.default_rng(3).permutation(50)
    shuffled = estimator([log[i] for i in order], [policy[i] for i in order])
    assert shuffled == estimator(log, policy)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_awaited_rewards_are_left_out_and_counted(
    estimator: Callable[..., PolicyValue],
) -> None:
    awaited = replace(LOG[1], number=7, reward=math.nan)
    found = estimator([LOG[0], awaited, *LOG[1:]], [POLICY[0], [1, 0], *POLICY[1:]])
    assert found == replace(estimator(LOG, POLICY), num_awaited=1)


def test_the_logged_mean_is_that_of_the_rewards() -> None:
    found = logged_mean([*LOG, replace(LOG[0], number=7, reward=math.nan)])
    assert found.value == pytest.approx(0.7)
    assert found.standard_error == pytest.approx(0.3 / math.sqrt(3))
    assert (found.num_decisions, found.num_awaited) == (3, 1)
    assert (found.effective_sample_size, found.largest_weight) == (3.0, 1.0)
    assert found.estimator == "logged"


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_log_s_own_policy_has_weights_of_one(
    estimator: Callable[..., PolicyValue],
) -> None:
    own = [[1 - d.propensity, d.propensity][:: 1 if d.chosen else -1] for d in LOG]
    found = estimator(LOG, own)
    assert found.effective_sample_size == 3.0
    if estimator is not doubly_robust:
        assert found.value == pytest.approx(0.7)


def test_a_higher_confidence_has_a_wider_interval() -> None:
    log = [_decision(t, t % 2, 0.5, t % 7 / 6) for t in range(100)]
    for estimator in ESTIMATORS:
        narrow, wide = (estimator(log, [[0.4, 0.6]] * 100, c) for c in (0.9, 0.99))
        assert wide.low < narrow.low < narrow.value < narrow.high < wide.high


def _with(**changes: Any) -> list[Decision]:
    return [LOG[0], replace(LOG[1], **changes), LOG[2]]


@pytest.mark.parametrize(
    ("log", "policy", "message"),
    [
        (_with(propensity=1.5), POLICY, r"propensity of decision 1=1.5 .* in \(0, 1\]"),
        (_with(propensity=1.0), POLICY, "1=1.0 .* Leave out the decisions"),
        (_with(reward=math.inf), POLICY, "reward of decision 1=inf .* finite number"),
        (_with(chosen=2), POLICY, "chosen of decision 1=2 .* an index of its arms"),
        (_with(arms=()), POLICY, r"arms of decision 1=\(\) .* a name or more"),
        (_with(features=np.ones((2, 3))), POLICY, r"features of decision 1=\(2, 3\)"),
        (LOG, POLICY[:2], r"len\(probabilities\)=2 .* 3, an array for each decision"),
        (LOG, [*POLICY[:2], [1.0]], r"probabilities of decision 2=\(1,\) .* shape"),
        (LOG, [*POLICY[:2], [0.5, 0.6]], "probabilities of decision 2=.* sum of 1"),
        (LOG[:1], POLICY[:1], "num_decisions=1 .* at least 2 with a reward"),
        (
            [replace(decision, reward=math.nan) for decision in LOG],
            POLICY,
            "num_decisions=0 .* at least 2 with a reward; 3 are without one",
        ),
        (
            [replace(decision, propensity=1.0) for decision in LOG],
            POLICY,
            r"without randomised exploration.* exploration=EllipsoidSampling\(\)",
        ),
        (LOG, [[0, 1], [1, 0], [0, 1]], "takes none of the logged actions"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(
    log: Sequence[Decision], policy: Sequence[Any], message: str
) -> None:
    for estimator in ESTIMATORS:
        with pytest.raises(ValueError, match=message):
            estimator(log, policy)


@pytest.mark.parametrize("confidence", [0, math.nan, True])
def test_a_confidence_is_a_fraction(confidence: Any) -> None:
    with pytest.raises(ValueError, match=r"confidence=.* between 0 and 1"):
        ips(LOG, POLICY, confidence)


def test_a_deterministic_decision_counts_where_the_policy_agrees() -> None:
    log = _with(propensity=1.0)
    assert ips(log, [POLICY[0], [0, 1], POLICY[2]]).num_decisions == 3

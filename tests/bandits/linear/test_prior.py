"""Priors: what they add to a belief, and that they are never released."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from flwr_fbo import LinearBanditPolicy
from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.bandits import ContinualSettings, LinearUCBSettings, Prior
from flwr_fbo.bandits.linear.agent import LinearUCBAgent
from flwr_fbo.bandits.linear.confidence import Confidence
from flwr_fbo.bandits.linear.own_data import OwnBelief
from flwr_fbo.bandits.linear.settings import LocalData
from tests.support.policies import (
    ARMS,
    BLOCK_SETTINGS,
    CONTEXT,
    SETTINGS,
    enrolled,
)

D = 3
RELEASES = ContinualSettings(3, D, epsilon=1.0, delta=1e-5, reward_range=(0, 1))
OWN = LinearUCBSettings(RELEASES, local_data="own")
THETA = np.array([0.3, -0.2, 0.1])


def log(
    number: int, seed: int = 0, theta: FloatArray = THETA
) -> tuple[FloatArray, FloatArray]:
    """Return actions and rewards, 0 or 1, of trials with random actions."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(number, D))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x, (rng.random(number) < 0.5 + x @ theta).astype(float)


def of_log() -> Prior:
    return Prior.of_log(OWN, *log(400))


def of_coefficients() -> Prior:
    return Prior.of_coefficients(OWN, THETA, 0.0025 * np.eye(D))


def of_release() -> Prior:
    x, y = log(2000)
    noise = np.random.default_rng(1).normal(size=(D + 1, D + 1))
    total = RELEASES.gram(x, y) + 10 * (noise + noise.T) / 2
    return Prior.of_release(OWN, total, 10.0)


KINDS = [of_log, of_coefficients, of_release]


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("local", ["own", "released", "raw"])
def test_a_prior_is_believed_from_the_first_trial_on(
    make: Callable[[], Prior], local: LocalData
) -> None:
    # Without noise "released" is a ridge regression on what was released.
    releases = replace(RELEASES, epsilon=math.inf)
    settings = replace(OWN, local_data=local)
    if local != "own":
        settings = replace(settings, releases=releases)
    agent = LinearUCBAgent(Confidence.of(settings, 1), prior=make())
    np.testing.assert_allclose(agent.estimate, THETA, atol=0.12)
    knows_nothing = LinearUCBAgent(Confidence.of(settings, 1))
    assert np.allclose(knows_nothing.estimate, 0)
    # It is not lost when a total comes.
    agent.receive(np.zeros((D + 1, D + 1)), 1)
    np.testing.assert_allclose(agent.estimate, THETA, atol=0.12)


@pytest.mark.parametrize("local", ["own", "released", "raw"])
def test_what_is_released_has_no_bit_of_a_prior(
    tmp_path: Path, local: LocalData
) -> None:
    settings = replace(OWN, local_data=local)
    sums = []
    for folder, prior in (("without", None), ("with", of_log())):
        (tmp_path / folder).mkdir()
        policy = enrolled(tmp_path / folder, settings)
        if prior is not None:
            policy.set_prior(prior)
        for x, y in zip(*log(20, seed=5), strict=True):
            choice = policy.choose([x])
            policy.reward(choice.ticket, float(y))
        with policy._held() as bandit:
            sums.append(bandit.sums.running_sum(1))
    without, together = sums
    np.testing.assert_array_equal(without, together)


def test_a_prior_is_kept_with_the_site_and_can_be_replaced(tmp_path: Path) -> None:
    policy = enrolled(tmp_path, OWN)
    other = LinearBanditPolicy.open(tmp_path)
    assert np.allclose(other.summary().estimate, 0)
    policy.set_prior(of_log())
    found = policy.summary().estimate
    np.testing.assert_allclose(found, THETA, atol=0.12)
    # By a worker that had made its agents before, and after a restart.
    for each in (other, LinearBanditPolicy.open(tmp_path)):
        np.testing.assert_array_equal(each.summary().estimate, found)
    policy.set_prior(Prior.none(D))
    assert np.allclose(other.summary().estimate, 0)


def test_a_log_counts_as_own_trials_do() -> None:
    x, y = log(50)
    belief = belief_with(Prior.of_log(OWN, x[:30], y[:30]), x[30:], y[30:])
    played = belief_with(None, x, y)
    np.testing.assert_allclose(
        belief.belief.ellipsoid.estimate, played.belief.ellipsoid.estimate
    )


def belief_with(prior: Prior | None, x: FloatArray, y: FloatArray) -> OwnBelief:
    own = RELEASES.gram(x, y)
    return OwnBelief(Confidence.of(OWN, 1), None, 0, own, len(y), 0, prior=prior)


def test_intervals_do_not_rest_on_a_prior() -> None:
    """A wrong one moves the estimate, and makes them as much wider."""
    x, y = log(200)
    wrong = Prior.of_coefficients(OWN, -THETA, 1e-6 * np.eye(D))
    belief = belief_with(wrong, x, y)
    estimate = belief.belief.ellipsoid.estimate
    assert np.linalg.norm(estimate + THETA) < 0.1
    assert (np.abs(estimate - THETA) <= belief.coordinate_widths).all()


def test_coefficients_count_by_their_covariance() -> None:
    prior = Prior.of_coefficients(OWN, THETA, 0.01 * np.eye(D))
    np.testing.assert_allclose(prior.total[:D, :D], 25 * np.eye(D))
    np.testing.assert_allclose(prior.total[:D, D], 25 * THETA)
    assert prior.num_trials == 0


def test_a_log_of_named_arms_is_encoded() -> None:
    contexts = [{**CONTEXT, "age": age} for age in (20, 60, 90)]
    chosen, rewards = ["ward", "home", "ward"], [0.5, 1.0, 0.0]
    prior = Prior.of_log(SETTINGS, chosen, rewards, contexts, arms=ARMS)
    encoder = SETTINGS.encoder
    assert encoder is not None
    total = np.zeros_like(prior.total)
    for context, name, reward in zip(contexts, chosen, rewards, strict=True):
        features, _ = encoder.encode(context, ARMS.eligible())
        x = features[[arm for arm, _ in ARMS.eligible()].index(name)]
        total += SETTINGS.releases.outer_products([x], [reward])[0]
    np.testing.assert_allclose(prior.total, total, atol=1e-15)


def log_with(**changes: Any) -> Prior:
    x, y = log(5)
    given: dict[str, Any] = {"actions": x, "rewards": y, **changes}
    return Prior.of_log(OWN, **given)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: log_with(rewards=[1.0]), "actions="),
        (lambda: log_with(rewards=[]), "rewards="),
        (lambda: log_with(rewards=[2.0] * 5), "rewards"),
        (lambda: log_with(actions=2 * log(5)[0]), "actions"),
        (lambda: log_with(contexts=[]), "contexts="),
        (lambda: Prior.of_log(BLOCK_SETTINGS, ["ward"], [1.0], [CONTEXT]), "arms="),
        (lambda: Prior.of_coefficients(OWN, THETA[:2], np.eye(D)), "mean="),
        (lambda: Prior.of_coefficients(OWN, THETA, np.eye(2)), "covariance="),
        (lambda: Prior.of_coefficients(OWN, THETA, -np.eye(D)), "covariance="),
        (lambda: Prior.of_coefficients(OWN, THETA, 0 * np.eye(D)), "covariance="),
        (lambda: Prior.of_coefficients(OWN, THETA * np.nan, np.eye(D)), "mean"),
        (lambda: Prior.of_release(OWN, np.eye(2), 1.0), "total="),
        (lambda: Prior.of_release(OWN, np.eye(D + 1) * np.nan, 1.0), "total="),
        (lambda: Prior.of_release(OWN, np.eye(D + 1), -1.0), "std="),
        (lambda: Prior(np.zeros(3)), "total="),
        (lambda: Prior(np.eye(D + 1) * np.inf), "total="),
        (lambda: Prior(-np.eye(D + 1)), "total="),
        (lambda: Prior(np.arange(16.0).reshape(4, 4)), "total="),
        (lambda: Prior(np.eye(D + 1), -1), "num_trials=-1"),
    ],
)
def test_bad_priors_are_named(make: Callable[[], Prior], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_a_policy_takes_only_a_prior_of_its_dimension(tmp_path: Path) -> None:
    policy, no_prior = enrolled(tmp_path, OWN), cast(Any, np.eye(D + 1))
    with pytest.raises(ValueError, match=r"prior\.total"):
        policy.set_prior(Prior.none(D + 1))
    with pytest.raises(ValueError, match="prior="):
        policy.set_prior(no_prior)


@pytest.mark.parametrize("size", [1e-150, 1e-9, 1e9, 1e150])
def test_no_prior_makes_a_belief_fail(size: float) -> None:
    prior = Prior(size * of_log().total)
    belief = belief_with(prior, *log(20))
    assert np.isfinite(belief.belief.ellipsoid.estimate).all()
    assert np.isfinite(belief.coordinate_widths).all()
    assert np.isfinite(belief.worth)

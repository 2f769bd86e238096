"""A policy that acts on its own clean data: what it keeps, and what it shows."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from flwr_fbo import Limits, LinearBanditPolicy
from flwr_fbo._common.errors import RefusedError
from flwr_fbo.bandits import (
    ContinualSettings,
    FeatureEncoder,
    LinearUCBSettings,
    Number,
    RewardTimeout,
)
from flwr_fbo.bandits.linear.own_data import weighed
from flwr_fbo.bandits.linear.settings import LocalData
from flwr_fbo.bandits.linear.study import LinearBanditStudy
from flwr_fbo.bandits.site.linear_bandit_site import LinearBanditSite
from tests.support.policies import enrolled

RELEASES = ContinualSettings(
    3, 3, epsilon=1.0, delta=1e-5, reward_range=(0, 1), sliding_window=None
)
SETTINGS = LinearUCBSettings(RELEASES, local_data="own")
ARMS = np.eye(3)


def play(policy: LinearBanditPolicy, number: int) -> None:
    for _ in range(number):
        choice = policy.choose(ARMS)
        policy.reward(choice.ticket, float(choice.index == 1))


def synchronise(policy: LinearBanditPolicy, k: int = 1) -> None:
    """Have the site release, and take a total in which others are as it is."""
    with policy._held() as bandit:
        own = bandit.release(k)
        others = 50 * bandit.sums.running_sum(k)
        bandit.receive(own + others, k, 2, k)


def clean(policy: LinearBanditPolicy) -> np.ndarray:
    decisions = policy.decisions()
    x = np.stack([d.features[d.chosen] for d in decisions])
    y = np.array([d.reward for d in decisions]) - 0.5
    total = RELEASES.gram(x, y + 0.5)
    return weighed(SETTINGS, total, len(y), None).estimate


def test_own_data_are_without_noise_and_not_lost(tmp_path: Path) -> None:
    policy = enrolled(tmp_path, SETTINGS)
    play(policy, 20)
    np.testing.assert_allclose(policy.summary().estimate, clean(policy))
    with policy._held() as bandit:
        released = bandit.release(1)
        # Of others there is nothing: all that is left is the site's own.
        bandit.receive(released, 1, 1, 1)
    np.testing.assert_allclose(policy.summary().estimate, clean(policy))
    play(policy, 20)
    np.testing.assert_allclose(policy.summary().estimate, clean(policy))


@pytest.mark.parametrize("window", [None, 1])
def test_another_process_believes_the_same(tmp_path: Path, window: int | None) -> None:
    releases = replace(RELEASES, sliding_window=window)
    policy = enrolled(tmp_path, replace(SETTINGS, releases=releases))
    play(policy, 30)
    for k in (1, 2):
        synchronise(policy, k)
        play(policy, 7)
        kept, fresh = policy.summary(), LinearBanditPolicy.open(tmp_path).summary()
        np.testing.assert_allclose(fresh.estimate, kept.estimate)
        np.testing.assert_allclose(fresh.confidence_width, kept.confidence_width)
        assert fresh.worth_of_others == pytest.approx(kept.worth_of_others)


@pytest.mark.parametrize("local_data", ["own", "raw", "released"])
def test_a_reward_is_corrected_until_its_release(
    tmp_path: Path, local_data: LocalData
) -> None:
    settings = replace(SETTINGS, local_data=local_data)
    right, wrong = (enrolled(tmp_path / name, settings) for name in ("a", "b"))
    other = LinearBanditPolicy.open(tmp_path / "b")
    for policy in (right, wrong):
        with policy._held() as bandit:  # all play the same
            bandit.release(1)
            bandit.receive(bandit.release(1), 1, 1, 1)
    as_numpy: Any = np.int64  # as it comes from a data frame
    tickets = []
    for i in range(6):
        actions = np.roll(ARMS, i, axis=0)[:1]
        first = right.choose(actions)
        right.reward(first.ticket, 0.25)
        tickets.append(wrong.choose(actions).ticket)
        wrong.reward(as_numpy(tickets[-1]), i % 2 == 0)
    wrong.summary(), other.summary()  # both have believed the wrong rewards
    for ticket in tickets:
        wrong.correct(as_numpy(ticket), 0.25)
    for policy in (wrong, other, LinearBanditPolicy.open(tmp_path / "b")):
        one, two = policy.summary(), right.summary()
        np.testing.assert_allclose(one.estimate, two.estimate)
        np.testing.assert_allclose(one.confidence_width, two.confidence_width)
    assert [d.reward for d in other.decisions()] == 6 * [0.25]
    with wrong._held() as one_bandit, right._held() as other_bandit:
        sums = [bandit.sums.running_sum(2) for bandit in (one_bandit, other_bandit)]
        np.testing.assert_array_equal(sums[0], sums[1])
        one_bandit.release(2)
    for refused in (tickets[0], 99, -1, 2**70):
        with pytest.raises(ValueError, match=r"ticket=.*in no release yet"):
            wrong.correct(refused, 0.5)
    last = wrong.choose(ARMS)
    with pytest.raises(ValueError, match=r"ticket=6 .*whose reward has come"):
        wrong.correct(last.ticket, 0.5)
    wrong.reward(last.ticket, True)
    with pytest.raises(ValueError, match="rewards"):
        wrong.correct(last.ticket, 1.5)
    assert other.decisions()[-1].reward == 1.0


def test_an_arm_that_has_room_joins_a_study_of_blocks(tmp_path: Path) -> None:
    encoder = FeatureEncoder({"age": Number(0, 100)}, blocks=("ward", "home", "new"))
    releases = replace(RELEASES, dimension=encoder.dimension)
    policy = enrolled(tmp_path, replace(SETTINGS, releases=releases, encoder=encoder))
    everything = policy.arms
    policy.set_arms(everything.remove("new"))
    for age in range(0, 100, 4):
        choice = policy.choose({"age": age})
        assert choice.arm != "new"
        policy.reward(choice.ticket, 0.2)
    policy.set_arms(policy.arms.add("new"))
    # Nobody knows it yet, so that it is tried.
    assert policy.choose({"age": 50}).arm == "new"
    assert policy.decisions()[0].arms == ("ward", "home")


def test_the_summary_says_what_others_are_worth(tmp_path: Path) -> None:
    policy = enrolled(tmp_path, SETTINGS, noise_seed=None)
    play(policy, 60)
    assert policy.summary().worth_of_others == 0
    synchronise(policy)
    summary = policy.summary()
    assert summary.worth_of_others is not None
    assert f"Others' worth   {summary.worth_of_others:.0f} more own" in str(summary)
    assert "if mean rewards, less 0.5, are x'theta with ||theta|| <= 1" in str(summary)
    assert "one trial with all other trials fixed" in str(summary)


def test_late_and_timed_out_rewards_and_logs_are_own_data(tmp_path: Path) -> None:
    silent = RewardTimeout(seconds=1e-6, reward=0.0)
    policy = enrolled(tmp_path, replace(SETTINGS, reward_timeout=silent))
    for _ in range(5):
        policy.choose(ARMS)
    policy.add_history(np.repeat(ARMS, 4, axis=0), np.ones(12))
    summary = policy.summary()
    assert summary.num_timed_out == 5
    assert summary.num_logged == 12
    with policy._held() as bandit:
        total, [count] = bandit.sums.total(0, 1), bandit.sums.counts(0, 1)
    assert count == 17
    assert total[3, 3] == 17 / 4  # (y - 1/2)^2
    expected = weighed(SETTINGS, total, count, None).estimate
    np.testing.assert_allclose(summary.estimate, expected)


def test_a_total_that_is_too_large_changes_next_to_nothing(tmp_path: Path) -> None:
    policy = enrolled(tmp_path, SETTINGS)
    play(policy, 20)
    before = policy.summary().estimate
    for size in (1e160, 1e300):
        with policy._held() as bandit:
            bandit.receive(size * np.eye(4), 0, 1, 1)
        np.testing.assert_allclose(policy.summary().estimate, before, atol=1e-3)
    play(policy, 1)


@pytest.mark.parametrize(
    ("limits", "refused"),
    [
        (Limits(max_epsilon_per_example=1.0, max_delta=1e-5), True),
        (
            Limits(max_epsilon_per_example=1.0, max_delta=1e-5, allow_fixed_rows=True),
            False,
        ),
        (
            Limits(max_epsilon_per_example=0.9, max_delta=1e-5, allow_fixed_rows=True),
            True,
        ),
        (Limits(max_epsilon_per_example=math.inf), False),
        (None, False),
    ],
)
@pytest.mark.parametrize("local_data", ["own", "raw"])
def test_a_site_with_limits_decides_whether_other_rows_are_fixed(
    tmp_path: Path, limits: Limits | None, refused: bool, local_data: str
) -> None:
    settings = replace(SETTINGS, local_data=local_data)  # type: ignore[arg-type]
    study = LinearBanditStudy(settings, 2)
    site = LinearBanditSite(tmp_path, limits=limits)
    context = Context(1, 1, {"agent-id": 0}, RecordDict(), {})
    if not refused:
        site.answer(context, [], study.enrolment())
        return
    with pytest.raises(RefusedError):
        site.answer(context, [], study.enrolment())

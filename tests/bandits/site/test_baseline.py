"""A site that stays near a baseline arm, and still learns what is better."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flwr_fbo import LinearBanditPolicy
from flwr_fbo.bandits import (
    ContinualSettings,
    EllipsoidSampling,
    LinearUCBSettings,
    Prior,
)
from flwr_fbo.bandits.linear.study import LinearBanditStudy
from flwr_fbo.bandits.site.decision import Request
from flwr_fbo.bandits.site.recorded_bandit import RecordedBandit
from flwr_fbo.journal.journal import Journal
from tests.support.policies import ARMS, CONTEXT, SETTINGS, enrolled

MEANS = np.array([0.5, 0.8, 0.1])  # the baseline, a better arm, and a bad one
ACTIONS = np.eye(3)
RELEASES = ContinualSettings(5, 3, epsilon=4.0, delta=1e-5, reward_range=(0, 1))
OWN = LinearUCBSettings(
    RELEASES, "own", exploration=EllipsoidSampling(radius=1.0, uniform_share=0.2)
)
SHARE = 0.1


def played(seed: int, number: int, has_rule: bool) -> tuple[np.ndarray, np.ndarray]:
    """Play without a disk; return arms, and propensities."""
    study = LinearBanditStudy(OWN, 1, noise_seed=seed, study_id="near")
    rng, arms, propensities = np.random.default_rng(seed), [], []
    with Journal(RecordedBandit.identity_of(study)) as journal:
        bandit = RecordedBandit(journal, study)
        bandit.join(0, bandit.number)
        if has_rule:
            bandit.put(bandit.belief.set_baseline("0", SHARE))
        for _ in range(number):
            offer = bandit.decisions.offer(Request(ACTIONS))
            [choice] = bandit.choose([offer])
            reward = float(rng.random() < MEANS[choice.index])
            bandit.reward({choice.ticket: reward})
            arms.append(choice.index)
            propensities.append(choice.propensity)
    return np.array(arms), np.array(propensities)


def margin(arms: np.ndarray) -> float:
    """Return by how much rewards were ever below the promised share, as expected."""
    total = np.cumsum(MEANS[arms]) - (1 - SHARE) * np.cumsum(np.full(len(arms), 0.5))
    return float(total.min())


def test_rewards_stay_above_the_share_and_the_better_arm_is_found() -> None:
    runs = [played(seed, 400, True)[0] for seed in range(6)]
    assert min(map(margin, runs)) >= 0
    assert all((arms[:20] == 0).all() for arms in runs)  # nothing is known yet
    better = np.mean([(arms[-100:] == 1).mean() for arms in runs])
    assert better > 0.5
    # Without the rule the same policy is below the share at first.
    assert min(margin(played(seed, 100, False)[0]) for seed in range(6)) < 0


def _policy(folder: Path, **changes: Any) -> LinearBanditPolicy:
    return enrolled(folder, replace(OWN, **changes))


def test_a_propensity_is_honest_and_the_reason_is_told(tmp_path: Path) -> None:
    policy = _policy(tmp_path)
    policy.set_baseline("2", 0.2)
    assert policy.probabilities(ACTIONS) == {"0": 0.0, "1": 0.0, "2": 1.0}
    choices = policy.choose_many([ACTIONS] * 3)
    assert {(c.arm, c.propensity, c.why) for c in choices} == {("2", 1.0, "baseline")}
    # Many good rewards of the baseline, and more of another arm that were logged.
    policy.reward_many({c.ticket: 1.0 for c in choices})
    policy.add_history(ACTIONS[[1] * 400 + [2] * 400], [1.0] * 400 + [0.5] * 400)
    found = policy.probabilities(ACTIONS)
    assert found["1"] > 0.5
    assert found["0"] == 0.0
    assert sum(found.values()) == pytest.approx(1)
    again = LinearBanditPolicy.open(tmp_path)
    choice = again.choose(ACTIONS, explore=False)
    assert (choice.arm, choice.propensity, choice.why) == ("1", 1.0, "best expected")
    policy.set_baseline(None)
    assert policy.probabilities(ACTIONS)["0"] > 0


def test_a_prior_does_not_loosen_it(tmp_path: Path) -> None:
    """The promise rests on own trials: a prior may be wrong."""
    policy = _policy(tmp_path)
    policy.set_baseline("0")
    log = ACTIONS[[1] * 500 + [0] * 500]
    policy.set_prior(Prior.of_log(OWN, log, [1.0] * 500 + [0.0] * 500))
    assert policy.probabilities(ACTIONS)["0"] == 1.0


def test_a_retry_counts_once_and_an_arm_that_is_not_possible_not_at_all(
    tmp_path: Path,
) -> None:
    policy = _policy(tmp_path)
    policy.set_baseline("0")

    def counted() -> float:
        with policy._held() as bandit:
            return float(bandit.state["baseline-sum"][-1])

    for _ in range(2):
        policy.choose(ACTIONS, key="visit")
    assert counted() == 1
    assert policy.choose(ACTIONS, forbid=["0"]).arm != "0"
    assert counted() == 1
    policy.set_baseline("0")  # the same: a script that is run again
    assert counted() == 1
    policy.set_baseline("0", 0.2)
    assert counted() == 0


def test_what_was_not_carried_out_does_not_pay_for_another_arm(
    tmp_path: Path,
) -> None:
    policy = _policy(tmp_path)
    policy.add_history(ACTIONS[[0] * 400], [1.0, 0.0] * 200)
    before = policy.choose(ACTIONS)
    policy.set_baseline("0", 0.5)
    choices = []
    while policy.probabilities(ACTIONS)["0"] == 1:
        choices.append(policy.choose(ACTIONS))
    # What the baseline has surely earned may be risked now.
    assert {choice.arm for choice in choices} == {"0"}
    choices += [before, policy.choose(ACTIONS, forbid=["0"])]  # these do not count
    for choice in choices:
        policy.cancel(choice.ticket)
    with policy._held() as bandit:
        np.testing.assert_allclose(bandit.state["baseline-sum"], np.zeros(4), atol=1e-9)
    assert LinearBanditPolicy.open(tmp_path).probabilities(ACTIONS)["0"] == 1


def test_what_it_does_not_go_with_is_refused(tmp_path: Path) -> None:
    policy = _policy(tmp_path / "own")
    for arm, share in (("0", 0.0), ("0", 1.0), ("0", "much"), ("", 0.1), (3, 0.1)):
        with pytest.raises(ValueError, match=r"at_most_worse=|arm="):
            policy.set_baseline(arm, share)  # type: ignore[arg-type]
    policy.set_baseline("0")
    with pytest.raises(ValueError, match="floors="):
        policy.choose(ACTIONS, floors={"1": 0.1})
    with pytest.raises(ValueError, match="num_slots="):
        policy.choose_slate(ACTIONS, 2)
    policy.choose(ACTIONS, floors={"0": 0.5})
    released = enrolled(tmp_path / "released")
    with pytest.raises(ValueError, match="local_data='released'"):
        released.set_baseline("home")
    with pytest.raises(ValueError, match="arm='hospice'"):
        released.set_baseline("hospice")
    below = replace(RELEASES, reward_range=(-1, 1))
    with pytest.raises(ValueError, match="reward_range="):
        _policy(tmp_path / "below", releases=below).set_baseline("0")


def test_it_is_for_named_arms_too(tmp_path: Path) -> None:
    assert SETTINGS.encoder is not None
    releases = replace(RELEASES, dimension=SETTINGS.encoder.dimension)
    policy = enrolled(
        tmp_path, replace(SETTINGS, releases=releases, local_data="own"), ARMS
    )
    policy.set_baseline("clinic")
    assert {policy.choose(CONTEXT).arm for _ in range(5)} == {"clinic"}

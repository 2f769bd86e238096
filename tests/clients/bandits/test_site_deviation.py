"""Sites that differ: what a site learns of itself, keeps, and never sends."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flwr_fbo import LinearBanditPolicy, LinearUCBSettings, SiteDeviation
from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.algorithms.linear_bandit.settings import LocalData
from flwr_fbo.cli.report.page import render
from flwr_fbo.cli.report.site_page import policy_page
from flwr_fbo.clients.bandits.policy_summary import PolicySummary
from tests.clients.bandits.policies import BLOCK_SETTINGS, BLOCKS, enrolled

DEVIATION = SiteDeviation(0.4, ["ward: intercept", "home: intercept"])
SETTINGS = replace(BLOCK_SETTINGS, site_deviation=DEVIATION, noise_scale=0.05)
RAW = replace(SETTINGS, local_data="raw")
NOISY = replace(SETTINGS, releases=replace(SETTINGS.releases, epsilon=100.0))
# Elsewhere no arm is better than another; at this site it is home.
HERE = {"ward": 0.3, "home": 0.6, "away": 0.4}
MANY = 40_000


def elsewhere() -> FloatArray:
    """Return the sum of another agent, with many trials of each arm."""
    rng, total = np.random.default_rng(4), np.zeros((BLOCKS.dimension + 1,) * 2)
    for age in rng.uniform(0, 100, 50):
        x = BLOCKS.encode({"age": age}, [(name, {}) for name in BLOCKS.blocks]).features
        z = np.column_stack([x, np.full(len(x), 0.4)])
        total += MANY / 50 * z.T @ z
    return np.asarray(total + total.T) / 2


def play(policy: LinearBanditPolicy, num_rounds: int) -> list[str]:
    """Play each arm so often, as a doctor would have it, and then by the policy."""
    contexts = [{"age": 7 * t % 100} for t in range(num_rounds) for _ in HERE]
    made = policy.choose_many(contexts, [[arm] for arm in HERE] * num_rounds)
    values = [*HERE.values()] * num_rounds
    tickets = [choice.ticket for choice in made]
    policy.reward_many(dict(zip(tickets, values, strict=True)))
    ages = range(0, 100, 10)
    return [choice.arm for choice in policy.choose_many([{"age": a} for a in ages])]


def synchronise(policy: LinearBanditPolicy) -> FloatArray:
    """Release, receive the sum, and return what was released."""
    with policy._held() as bandit:
        k = bandit.num_releases + 1
        released = bandit.release(k)
        bandit.receive(released + elsewhere(), k, 2, k)
    return released


@pytest.mark.parametrize("settings", [SETTINGS, NOISY, RAW])
def test_what_is_sent_is_the_same_without_a_deviation(
    tmp_path: Path, settings: LinearUCBSettings
) -> None:
    """To the bit, for the same actions and rewards."""
    plain = replace(settings, site_deviation=None)
    one = enrolled(tmp_path / "one", settings)
    other = enrolled(tmp_path / "other", plain)
    for policy in (one, other):
        play(policy, 20)
    first = [synchronise(policy) for policy in (one, other)]
    for policy in (one, other):
        play(policy, 20)
    second = [synchronise(policy) for policy in (one, other)]
    assert first[0].tobytes() == first[1].tobytes()
    assert second[0].tobytes() == second[1].tobytes()


@pytest.mark.parametrize("settings", [SETTINGS, RAW])
def test_a_site_finds_what_is_better_here(
    tmp_path: Path, settings: LinearUCBSettings
) -> None:
    """Where the shared model cannot: all arms are alike to it."""
    policy = enrolled(tmp_path, settings)
    synchronise(policy)
    play(policy, 100)
    synchronise(policy)
    assert {policy.choose({"age": age}).arm for age in range(0, 100, 10)} == {"home"}
    summary = policy.summary()
    assert summary.settings.deviating_features == DEVIATION.features
    found = dict(
        zip(summary.settings.deviating_features, summary.deviation, strict=True)
    )
    assert found["home: intercept"] > 0.1 + found["ward: intercept"]
    # x = intercept / sqrt(G): 0.6 at home, whatever the age, is 0.6 sqrt(2).
    truth = {"ward: intercept": -0.1, "home: intercept": 0.2}
    for name, width in zip(found, summary.deviation_width, strict=True):
        assert abs(found[name] - truth[name] * math.sqrt(2)) <= width


def test_raw_trials_are_used_at_once_and_released_ones_are_not(tmp_path: Path) -> None:
    found = {}
    for settings in (SETTINGS, RAW):
        policy = enrolled(tmp_path / settings.local_data, settings)
        synchronise(policy)
        before = policy.summary()
        play(policy, 100)
        after = policy.summary()
        found[settings.local_data] = (before.deviation, after.deviation)
    assert np.array_equal(*found["released"])
    assert not np.array_equal(*found["raw"])


@pytest.mark.parametrize("settings", [SETTINGS, NOISY])
def test_a_reopened_policy_chooses_the_same(
    tmp_path: Path, settings: LinearUCBSettings
) -> None:
    chosen: list[list[list[str]]] = []
    for name in ("kept", "reopened"):
        policy, rows = enrolled(tmp_path / name, settings), []
        for step in range(4):
            rows.append(play(policy, 10))
            if step != 1:
                synchronise(policy)
            if name == "reopened":
                policy = LinearBanditPolicy.open(tmp_path / name)
            rows.append(policy.summary().estimate.tolist())
            rows.append(policy.summary().deviation_width.tolist())
        chosen.append(rows)
    assert chosen[0] == chosen[1]


def test_a_reopened_policy_has_raw_trials_by_their_sums(tmp_path: Path) -> None:
    """Its bound on eigenvalues is newer, and so its intervals are no wider."""
    policy = enrolled(tmp_path, RAW)
    synchronise(policy)
    play(policy, 13)
    kept, reopened = policy.summary(), LinearBanditPolicy.open(tmp_path).summary()
    width = kept.deviation_width * (1 + 1e-9)
    assert np.all(reopened.deviation_width <= width)


@pytest.mark.parametrize("local_data", ["raw", "released"])
def test_a_server_that_lies_gets_no_further_release(
    tmp_path: Path, local_data: LocalData
) -> None:
    policy = enrolled(tmp_path, replace(NOISY, local_data=local_data))
    play(policy, 5)
    synchronise(policy)
    with policy._held() as bandit:
        bandit.receive(elsewhere(), 4, 2, 4)
        assert bandit.num_releases == 1
    policy.choose({"age": 3})


def test_the_summary_shows_the_deviation(tmp_path: Path) -> None:
    policy = enrolled(tmp_path, RAW)
    play(policy, 20)
    synchronise(policy)
    summary = policy.summary()
    name, value, width = summary.coordinates[-1]
    assert name == "home: intercept, deviation"
    assert (value, width) == (summary.deviation[1], summary.deviation_width[1])
    line = f"home: intercept, deviation {value:.4g} +- {width:.4g}"
    assert line in str(summary)
    with policy._held() as bandit:
        page = render(policy_page(bandit.journal))
    assert name in page
    assert f"{value:.4g}" in page


@pytest.mark.parametrize(("bound", "says"), [(0.01, True), (0.4, False)])
def test_the_summary_says_when_the_bound_is_too_small(
    tmp_path: Path, bound: float, says: bool
) -> None:
    """The site's deviation has norm 0.22 sqrt(2)."""
    deviation = replace(DEVIATION, bound=bound)
    policy = enrolled(tmp_path, replace(RAW, site_deviation=deviation))
    synchronise(policy)
    play(policy, 100)
    said = dict(policy.summary().facts).get("Deviation", "")
    assert bool(said) == says
    if says:
        least = float(said.partition("at least ")[2].partition(",")[0])
        assert bound < least < math.hypot(0.1, 0.2) * math.sqrt(2)
        assert said.endswith("and its bound is 0.01: too small")


def test_without_one_there_is_nothing_to_show(tmp_path: Path) -> None:
    summary: PolicySummary = enrolled(tmp_path, BLOCK_SETTINGS).summary()
    assert summary.deviation.shape == summary.deviation_width.shape == (0,)
    assert summary.settings.deviating_features == ()
    assert len(summary.coordinates) == BLOCKS.dimension


def test_a_raw_log_counts_for_the_site_as_its_own_trials(tmp_path: Path) -> None:
    settings = replace(RAW, width="exact")  # not of when eigenvalues were looked at
    played = enrolled(tmp_path / "played", settings)
    logged = enrolled(tmp_path / "logged", settings)
    for policy in (played, logged):
        synchronise(policy)
    play(played, 30)
    contexts = [{"age": 7 * t % 100} for t in range(30) for _ in HERE]
    logged.add_history([*HERE] * 30, [*HERE.values()] * 30, contexts)
    one, other = (policy.summary() for policy in (played, logged))
    assert np.all(one.deviation != 0)
    np.testing.assert_allclose(one.deviation, other.deviation, rtol=1e-8)
    np.testing.assert_allclose(one.estimate, other.estimate, rtol=1e-8)

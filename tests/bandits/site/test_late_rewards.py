"""A reward that does not come in time counts as the default: once, in one release."""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flwr_fbo import LinearBanditPolicy
from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.bandits import LateRewardError, RewardTimeout
from flwr_fbo.bandits.site.recorded_bandit import RecordedBandit
from flwr_fbo.journal.journal import Journal
from flwr_fbo.privacy.factorisation import Mechanism, factorisation
from tests.support import bandit_sites
from tests.support.killing import killed_after
from tests.support.policies import (
    FILE_NAME,
    KINDS,
    VECTOR_SETTINGS,
    VECTORS,
    enrolled,
    settings_of,
)

SECONDS, DEFAULT = 100.0, -0.25
TIMEOUT = RewardTimeout(SECONDS, DEFAULT)
TIMED = replace(VECTOR_SETTINGS, reward_timeout=TIMEOUT)


class Clock:
    """The time of trials and time-outs, which the tests say."""

    monotonic = staticmethod(time.monotonic)

    def __init__(self) -> None:
        self.now = 1e9

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in ("bandits.site.late_rewards", "journal.journal", "journal.tables"):
        monkeypatch.setattr(f"flwr_fbo.{module}.time", made)
    return made


def released(policy: LinearBanditPolicy, k: int) -> FloatArray:
    with policy._held() as bandit:
        return bandit.release(k)


def product(action: FloatArray, value: float) -> FloatArray:
    z = np.append(action, value)
    return np.outer(z, z)


# The instant.


@pytest.mark.parametrize("waited", [SECONDS, 1e9])
def test_a_late_reward_is_refused_and_the_default_counts(
    tmp_path: Path, clock: Clock, waited: float
) -> None:
    policy = enrolled(tmp_path, TIMED)
    choice = policy.choose(VECTORS)
    clock.now += waited
    for _ in range(2):
        with pytest.raises(LateRewardError, match=f"ticket={choice.ticket} .* is over"):
            policy.reward(choice.ticket, 1.0)
    assert policy.awaited == {}
    assert policy.summary().num_timed_out == 1
    [decision] = LinearBanditPolicy.open(tmp_path).decisions()
    assert decision.reward == DEFAULT
    expected = product(VECTORS[choice.index], DEFAULT)
    np.testing.assert_array_equal(released(policy, 1), expected)
    np.testing.assert_array_equal(released(policy, 2), expected)


def test_a_reward_just_before_the_timeout_counts(tmp_path: Path, clock: Clock) -> None:
    policy = enrolled(tmp_path, TIMED)
    choice = policy.choose(VECTORS)
    clock.now += SECONDS - 1e-3
    policy.reward(choice.ticket, 1.0)
    clock.now += 1.0
    assert policy.summary().num_timed_out == 0
    assert policy.decisions()[0].reward == 1.0
    expected = product(VECTORS[choice.index], 1.0)
    np.testing.assert_array_equal(released(policy, 1), expected)


LOOKS: dict[str, Callable[[LinearBanditPolicy], Any]] = {
    "awaited": lambda policy: len(policy.awaited),
    "decisions": lambda policy: sum(math.isnan(d.reward) for d in policy.decisions()),
    "summary": lambda policy: policy.summary().num_awaited,
}


@pytest.mark.parametrize("look", LOOKS)
def test_all_ways_to_look_agree(tmp_path: Path, clock: Clock, look: str) -> None:
    """Whichever is the first after the time-out, each finds the same."""
    policy = enrolled(tmp_path, TIMED)
    old = policy.choose(VECTORS).ticket
    clock.now += SECONDS / 2
    new = policy.choose(VECTORS).ticket
    assert LOOKS[look](policy) == 2
    clock.now += SECONDS / 2
    assert LOOKS[look](policy) == 1
    assert {name: one(policy) for name, one in LOOKS.items()} == dict.fromkeys(LOOKS, 1)
    assert [*policy.awaited] == [new]
    values = [decision.reward for decision in policy.decisions()]
    assert values[old] == DEFAULT
    assert math.isnan(values[new])
    assert policy.summary().num_timed_out == 1
    assert "1 timed out" in str(policy.summary())


def test_a_clock_that_was_ahead_keeps_no_decision_waiting(
    tmp_path: Path, clock: Clock
) -> None:
    """Silence counts after the timeout, and not after a date of that clock."""
    policy = enrolled(tmp_path, TIMED)
    clock.now += 1e8
    silent, rewarded, early = (policy.choose(VECTORS).ticket for _ in range(3))
    policy.reward(early, 0.5)
    clock.now -= 1e8
    assert [*policy.awaited] == [silent, rewarded]
    clock.now += SECONDS - 1e-3
    policy.reward(rewarded, 1.0)
    clock.now += 1e-3
    assert policy.awaited == {}
    values = [decision.reward for decision in policy.decisions()]
    assert values == [DEFAULT, 1.0, 0.5]
    policy.correct(early, 0.25)


def test_a_clock_that_was_ahead_leaves_no_decision_out(
    tmp_path: Path, clock: Clock
) -> None:
    """One with a date to come is settled with the next one that is."""
    policy = enrolled(tmp_path, TIMED)
    clock.now += 1e8
    policy.reward(policy.choose(VECTORS).ticket, 0.5)
    clock.now -= 1e8
    policy.reward(policy.choose(VECTORS).ticket, 0.25)
    clock.now += SECONDS - 1e-3
    policy.reward(policy.choose(VECTORS).ticket, 0.125)
    assert list(policy.decisions(settled=True)) == []
    clock.now += 1e-3
    rewards = [decision.reward for decision in policy.decisions(settled=True)]
    assert rewards == [0.5, 0.25]


def test_without_a_timeout_a_reward_may_come_ten_years_later(
    tmp_path: Path, clock: Clock
) -> None:
    policy = enrolled(tmp_path, VECTOR_SETTINGS)
    choice = policy.choose(VECTORS)
    clock.now += 10 * 365 * 24 * 3600
    assert not released(policy, 1).any()
    assert [*policy.awaited] == [choice.ticket]
    policy.reward(choice.ticket, 1.0)
    assert policy.summary().num_timed_out == 0
    expected = product(VECTORS[choice.index], 1.0)
    np.testing.assert_array_equal(released(policy, 2), expected)


# Many decisions, against brute force.


@pytest.mark.parametrize("kind", KINDS)
def test_each_decision_is_in_exactly_one_window(
    tmp_path: Path, clock: Clock, kind: str
) -> None:
    num_releases, rng = 8, np.random.default_rng(0)
    settings = replace(
        settings_of(num_releases=num_releases),
        reward_timeout=TIMEOUT,
        exploration=KINDS[kind],
    )
    policy = enrolled(tmp_path, settings)
    started: dict[int, float] = {}
    actions: dict[int, FloatArray] = {}
    times = []  # of releases
    settled: dict[int, tuple[float, float]] = {}  # when, and with which reward
    releases: list[FloatArray] = []
    while len(releases) < num_releases:
        clock.now += rng.exponential(SECONDS / 8)
        event = rng.integers(8)
        if event < 3:
            choice = policy.choose(VECTORS)
            started[choice.ticket] = clock.now
            actions[choice.ticket] = VECTORS[choice.index]
        elif event < 5 and started:
            ticket, value = int(rng.choice([*started])), rng.uniform(0, 1)
            late = started[ticket] + SECONDS <= clock.now
            if late or ticket in settled:
                with pytest.raises(ValueError, match="ticket"):
                    policy.reward(ticket, value)
            else:
                policy.reward(ticket, value)
                settled[ticket] = clock.now, value
        elif event == 5:
            releases.append(released(policy, len(releases) + 1))
            times.append(clock.now)
        elif event == 6:
            LOOKS[str(rng.choice([*LOOKS]))](policy)
        else:
            policy = LinearBanditPolicy.open(tmp_path)
    for ticket, start in started.items():
        settled.setdefault(ticket, (start + SECONDS, DEFAULT))
    assert sum(value == DEFAULT for _, value in settled.values()) > 5
    for k, (at, found) in enumerate(zip(times, releases, strict=True), 1):
        parts = [
            product(actions[ticket], value)
            for ticket, (when, value) in settled.items()
            if when <= at
        ]
        expected = np.sum([np.zeros((4, 4)), *parts], axis=0)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
        np.testing.assert_array_equal(released(policy, k), found)  # asked for again
    ended = {ticket for ticket, (when, _) in settled.items() if when <= clock.now}
    assert set(policy.awaited) == set(started) - ended
    timed_out = [settled[ticket][1] == DEFAULT for ticket in ended]
    assert policy.summary().num_timed_out == sum(timed_out)


def test_a_raw_agent_learns_the_default_once(tmp_path: Path, clock: Clock) -> None:
    """Seen at once by the summary, and by a process that begins later."""
    policy = enrolled(tmp_path, replace(TIMED, local_data="raw"))
    actions = [VECTORS[policy.choose(VECTORS).index] for _ in range(4)]
    policy.reward(0, 0.75)
    clock.now += SECONDS
    summary = policy.summary()
    V, u = np.eye(3), np.zeros(3)
    for action, value in zip(actions, [0.75, *[DEFAULT] * 3], strict=True):
        V += np.outer(action, action)
        u += value * action
    np.testing.assert_allclose(summary.estimate, np.linalg.solve(V, u))
    for other in (policy, LinearBanditPolicy.open(tmp_path)):
        np.testing.assert_allclose(other.summary().estimate, summary.estimate)
        assert other.summary().num_timed_out == 3


# Over the server, and with processes that end.


def test_a_site_sends_the_default_in_the_next_release(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    tickets: list[int] = []

    def choose() -> None:
        for slot in range(bandit_sites.M):
            choices = sites.policy(slot).choose_many([bandit_sites.ACTIONS] * 2)
            tickets.append(choices[0].ticket)

    def wait() -> None:
        sites.policy(1).reward(tickets[1], 1.0)
        clock.now += SECONDS

    sites = bandit_sites.Sites(tmp_path, {3: choose, 5: wait})
    settings = replace(
        bandit_sites.SETTINGS,
        releases=bandit_sites.NOT_PRIVATE,
        reward_timeout=TIMEOUT,
    )
    strategy = bandit_sites.fed_ucb(settings, interval=0.0)
    releases = bandit_sites.last_releases(monkeypatch)
    strategy.start(sites)
    rewards = [all_last[:, 3, 3].tolist() for all_last in releases]
    others = 2 * DEFAULT**2
    assert rewards == [[0.0] * 4, [0.0] * 4, [others, 1 + others / 2, others, others]]
    for slot in range(bandit_sites.M):
        assert sites.policy(slot).summary().num_timed_out == 2 - (slot == 1)


def play_on(folder: Path, clock: Clock) -> None:
    """Decide, reward some, and look at others, until killed."""
    policy = LinearBanditPolicy.open(folder)
    while True:
        choices = policy.choose_many([VECTORS] * 3)
        policy.reward(choices[0].ticket, 0.5)
        clock.now += SECONDS / 2
        _ = policy.awaited


def test_a_process_that_is_killed_loses_nothing_and_counts_nothing_twice(
    tmp_path: Path, clock: Clock
) -> None:
    policy, rng = enrolled(tmp_path, TIMED), np.random.default_rng(0)
    longest = 0.05
    for k in range(1, 5):
        while policy.num_trials < 12 * k:  # however slow the machine is
            longest *= 1.5
            assert killed_after(rng.uniform(0, longest), play_on, tmp_path, clock)
            # Its time went on with it.
            clock.now = max((d.time for d in policy.decisions()), default=clock.now)
        released(policy, k)
    clock.now += SECONDS
    final = released(policy, 5)
    decisions = policy.decisions()
    assert {decision.reward for decision in decisions} == {0.5, DEFAULT}
    expected = sum(product(d.features[d.chosen], d.reward) for d in decisions)
    np.testing.assert_allclose(final, expected, rtol=0, atol=1e-9)
    timed_out = sum(decision.reward == DEFAULT for decision in decisions)
    assert policy.summary().num_timed_out == timed_out
    with Journal(None, tmp_path / FILE_NAME) as journal:
        bandit = RecordedBandit(journal)
        windows = [bandit.sums.window(k)[0] for k in range(6)]
        assert bandit.num_releases == 5
    np.testing.assert_allclose(np.sum(windows, axis=0), expected, rtol=0, atol=1e-9)


# What is private of it: whether, and when, a reward came.


@pytest.mark.parametrize("mechanism", ["toeplitz", "tree"])
@pytest.mark.parametrize("n", [1, 33])
def test_a_default_in_a_later_window_moves_releases_no_more(
    mechanism: Mechanism, n: int
) -> None:
    """Than a reward that is replaced in its window: what the noise is made for.

    With z z' in window i of one stream, and w w' in window j of the other, C moves by
    c_i z z' - c_j w w', of squared norm at most (|c_i|^2 + |c_j|^2) R^2 if no two
    columns of C have a negative inner product: then <z z', w w'> = (z'w)^2 >= 0 helps.
    """
    made = factorisation(mechanism, n)
    B = np.zeros((n, n))
    for k in range(1, n + 1):
        B[k - 1, :k] = made.row(k)
    C = np.linalg.solve(B, np.tril(np.ones((n, n))))
    np.testing.assert_allclose(np.linalg.norm(C, axis=0), made.column_norms())
    assert (C.T @ C).min() >= -1e-12
    squares = (C**2).sum(axis=0)
    largest = squares[:, None] + squares[None]
    assert largest.max() <= 2 * made.sensitivity**2 * (1 + 1e-12)

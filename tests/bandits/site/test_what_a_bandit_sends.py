"""What leaves a bandit's site: sums of outer products, and nothing of its record."""

import logging
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from flwr_fbo import LinearBanditPolicy
from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.bandits import (
    ArmTable,
    ContinualSettings,
    InverseGapWeighting,
    LinearUCBSettings,
    RewardTimeout,
)
from flwr_fbo.bandits.kind import LINEAR_SITE
from flwr_fbo.site.study_journals import last_journal
from tests.support.bandit_sites import NOISE_SEED, M, Sites, fed_ucb
from tests.support.policies import ENCODER, KINDS, enrolled

D = ENCODER.dimension
RELEASES = ContinualSettings(num_releases=3, dimension=D, epsilon=5.0, delta=0.1)
SETTINGS = LinearUCBSettings(
    RELEASES,
    local_data="released",
    encoder=ENCODER,
    exploration=KINDS["sampling"],
    reward_timeout=RewardTimeout(1e6, 0.0),
)
# Values and names that are in nothing public; numbers that no array has by chance.
SECRETS = ["rickshaw", "Villa Undine", "67.25125", "outside", "propensity", "eligible"]
CONTEXT = {"age": 67.25125, "way": "rickshaw"}
ARMS = ArmTable({"Villa Undine": {"price": 3.0}, "ward": {"price": 77.0}})


def play(policy: LinearBanditPolicy) -> None:
    policy.set_arms(ARMS)
    for choice in policy.choose_slate(CONTEXT, 2):
        policy.reward(choice.ticket, 0.5)
    policy.choose(CONTEXT, ["Villa Undine"])


@pytest.fixture
def played(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Sites:
    """Return sites that have played in a study of three releases."""
    caplog.set_level(logging.DEBUG)

    def all_play() -> None:
        for slot in range(M):
            play(made.policy(slot))

    made = Sites(tmp_path, {2: all_play, 4: all_play})
    fed_ucb(SETTINGS, interval=0.0, noise_seed=NOISE_SEED).start(made)
    return made


def contents(message: Message) -> Iterator[bytes]:
    """Return all that a message has: its records, names and values."""
    if message.has_error():
        yield repr((message.error.code, message.error.reason)).encode()
        return
    for name, record in message.content.items():
        yield name.encode()
        for key, value in record.items():
            yield key.encode()
            data = value.data if hasattr(value, "data") else repr(value).encode()
            assert isinstance(data, bytes)
            yield data


def assert_no_secrets(text: str) -> None:
    assert not [secret for secret in SECRETS if secret in text]


def test_a_site_sends_sums_and_known_metrics_only(
    played: Sites, caplog: pytest.LogCaptureFixture
) -> None:
    shapes, names = set(), set()
    for _, reply in played.replies:
        assert not reply.has_error()
        for record in reply.content.array_records.values():
            shapes |= {array.numpy().shape for array in record.values()}
        for metrics in reply.content.metric_records.values():
            names |= set(metrics)
            assert all(type(value) is int for value in metrics.values())
        for config in reply.content.config_records.values():
            names |= set(config)
        assert_no_secrets(b"\0".join(contents(reply)).decode("latin1"))
    assert shapes == {(D + 1, D + 1)}
    assert names <= {"agent-id", "journal", "num-examples", "charges", "head"}
    # Sites have recorded all of it, and have logged nothing.
    assert [d.context for d in played.policy(2).decisions()] == [CONTEXT] * 6
    assert played.policy(2).summary().outside["way"] == 4
    assert_no_secrets(caplog.text)


DAMAGES = {
    "arms": "UPDATE state SET value = x'00' WHERE name = 'arms-1'",
    "decision": "UPDATE trial SET params = replace(params, '67.', '68.')",
    "outside": "UPDATE state SET value = x'00' WHERE name = 'outside'",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_error_tells_the_server_nothing_of_the_record(
    tmp_path: Path, damage: str
) -> None:
    def play_and_damage() -> None:
        for slot in range(M):
            play(sites.policy(slot))
        with sqlite3.connect(
            last_journal(sites.folders[1], LINEAR_SITE.name)
        ) as connection:
            connection.execute(DAMAGES[damage])
        connection.close()

    sites = Sites(tmp_path, {2: play_and_damage})
    strategy = fed_ucb(SETTINGS, interval=0.0, noise_seed=NOISE_SEED)
    strategy.start(sites, num_rounds=3)
    errors = [e for number in (2, 3) for e in sites.errors(number)]
    assert errors
    for error in errors:
        assert_no_secrets(error)
        assert "JournalError" in error
        assert str(tmp_path) not in error


# A release is a function of actions and rewards.


def noisy_release(policy: LinearBanditPolicy) -> FloatArray:
    with policy._held() as bandit:
        return bandit.release(1)


def private(tmp_path: Path, exploration: Any) -> LinearBanditPolicy:
    settings = replace(SETTINGS, exploration=exploration)
    return enrolled(tmp_path, settings, arms=None, noise_seed=NOISE_SEED)


def test_a_release_depends_on_actions_and_rewards_only(tmp_path: Path) -> None:
    """Not on contexts, names, versions of arms, propensities, or what was possible."""
    one = private(tmp_path / "one", InverseGapWeighting())
    other = private(tmp_path / "other", KINDS["optimism"])
    one.set_arms(ArmTable({"a": {"price": 3.0}, "b": {"price": 20.0}}))
    names = {"a": "Villa Undine", "b": "ward"}
    other.set_arms(ArmTable({"Undine": {"price": 1.0}}))
    table = {"ward": {"price": 10.0}, "Villa Undine": {"price": 3.0}}
    other.set_arms(ArmTable(table).add("x", price=0))
    for i in range(20):
        choice = one.choose({"age": 100, "way": "tram"})
        # Clipped, and of another unknown category: of the same features.
        mine = other.choose({"age": 101 + i, "way": "taxi"}, [names[choice.arm]])
        one.reward(choice.ticket, i / 20)
        other.reward(mine.ticket, i / 20)
    assert {d.propensity for d in other.decisions()} == {1.0}
    assert {d.propensity for d in one.decisions()} != {1.0}
    assert one.summary().outside != other.summary().outside
    np.testing.assert_array_equal(noisy_release(one), noisy_release(other))
    pairs = [(d.features[d.chosen], d.reward) for d in one.decisions()]
    x, y = map(np.array, zip(*pairs, strict=True))
    exact = RELEASES.gram(x, y)
    assert np.abs(noisy_release(one) - exact).max() > 0.1  # there is noise
    again = private(tmp_path / "again", KINDS["sampling"])
    zero = noisy_release(again)
    np.testing.assert_allclose(noisy_release(one) - exact, zero, rtol=0, atol=1e-9)


def test_what_is_not_rewarded_is_in_no_release(tmp_path: Path) -> None:
    one, other = (private(tmp_path / name, KINDS["sampling"]) for name in "ab")
    for policy in (one, other):
        policy.set_arms(ARMS)
    one.choose_many([CONTEXT] * 5)
    np.testing.assert_array_equal(noisy_release(one), noisy_release(other))

"""Logged trials from before a study: in its sums as if they had been played, once."""

import math
import shutil
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flwr_fbo import LinearBanditPolicy
from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.bandits import ArmTable, PeerGraph
from flwr_fbo.bandits.linear.settings import (
    DeterminantTrigger,
    LinearUCBSettings,
)
from flwr_fbo.bandits.linear.study import LinearBanditStudy
from flwr_fbo.bandits.site.decision import Request
from flwr_fbo.bandits.site.recorded_bandit import RecordedBandit
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.journal.parts import Parts
from tests.support.killing import killed_after
from tests.support.policies import (
    ARMS,
    ENCODER,
    FILE_NAME,
    VECTOR_SETTINGS,
    enrolled,
    features_of,
)

RNG = np.random.default_rng(7)
X = RNG.normal(size=(40, 3))
X /= np.linalg.norm(X, axis=1, keepdims=True) * 1.1
Y = RNG.uniform(-1, 1, size=40)
PRIVATE = replace(
    VECTOR_SETTINGS,
    releases=replace(VECTOR_SETTINGS.releases, epsilon=2.0, num_releases=4),
)
WINDOW = replace(PRIVATE, releases=replace(PRIVATE.releases, sliding_window=2))
CONTEXTS: list[dict[str, Any]] = [
    {"age": 30 + 2.5 * i, "way": ("walk-in", "ambulance", "boat")[i % 3]}
    for i in range(40)
]
NAMES = [ARMS.names[i % 3] for i in range(40)]


def release(policy: LinearBanditPolicy, k: int) -> FloatArray:
    with policy._held() as bandit:
        return bandit.release(k)


def play(policy: LinearBanditPolicy, x: FloatArray, y: FloatArray) -> None:
    """Play trials of one action each."""
    tickets = [choice.ticket for choice in policy.choose_many([[own] for own in x])]
    policy.reward_many(dict(zip(tickets, y.tolist(), strict=True)))


def product(x: FloatArray, y: float) -> FloatArray:
    [added] = PRIVATE.releases.outer_products([x], [y])
    return np.asarray(added)


@pytest.mark.parametrize("settings", [PRIVATE, WINDOW])
def test_a_logged_trial_is_released_as_one_that_was_played(
    tmp_path: Path, settings: LinearUCBSettings
) -> None:
    played = enrolled(tmp_path / "played", settings)
    logged = enrolled(tmp_path / "logged", settings)
    for k in range(1, 5):
        x, y = X[:k], Y[:k]
        play(played, x, y)
        if k == 1:
            assert logged.add_history(x, y) == 1
        elif k == 2:  # some are played, and some logged
            play(logged, x[:1], y[:1])
            assert logged.add_history(x[1:], y[1:], name="second") == 1
        else:
            play(logged, x, y)
        # To the bit: noise and sums.
        np.testing.assert_array_equal(release(logged, k), release(played, k))
    assert logged.summary().num_logged == 2
    assert logged.num_trials == played.num_trials - 2


@pytest.mark.parametrize("settings", [PRIVATE, WINDOW])
def test_neighbours_differ_by_one_trial_in_the_releases_that_have_it(
    tmp_path: Path, settings: LinearUCBSettings
) -> None:
    changed = Y.copy()
    changed[11] = -changed[11]
    releases = []
    for number, y in enumerate([Y, changed]):
        policy = enrolled(tmp_path / f"{number}", settings)
        release(policy, 1)
        policy.add_history(X, y)
        releases.append([release(policy, k) for k in range(2, 5)])
    difference = product(X[11], changed[11]) - product(X[11], Y[11])
    last = 3 if settings is WINDOW else 4
    for k, (own, other) in enumerate(zip(*releases, strict=True), 2):
        expected = difference if k <= last else np.zeros_like(difference)
        np.testing.assert_array_equal(other - own, expected)
    length = np.linalg.norm(difference)
    assert 0 < length <= settings.releases.sensitivity


def test_named_arms_are_encoded_as_where_they_are_chosen(tmp_path: Path) -> None:
    policy = enrolled(tmp_path)
    assert policy.add_history(NAMES, Y, CONTEXTS) == 40
    pairs = zip(CONTEXTS, NAMES, strict=True)
    x = np.vstack([features_of(context, (name,)) for context, name in pairs])
    z = np.column_stack([x, Y])
    np.testing.assert_allclose(release(policy, 1), z.T @ z, atol=1e-12)
    boats = sum(context["way"] == "boat" for context in CONTEXTS)
    old = sum(context["age"] > 100 for context in CONTEXTS)
    assert policy.summary().outside == {"way": boats, "age": old}


def test_unusual_numbers_are_encoded_one_by_one_to_the_same(tmp_path: Path) -> None:
    usual = list(ENCODER.encode_log(CONTEXTS, NAMES, ARMS.eligible()))
    strange = [{**c, "age": Fraction(c["age"])} for c in CONTEXTS]
    slow = list(ENCODER.encode_log(strange, NAMES, ARMS.eligible()))
    [(one, outside)], [(other, same)] = usual, slow
    np.testing.assert_array_equal(one, other)
    assert outside == same
    for context, name, row in zip(CONTEXTS, NAMES, one, strict=True):
        np.testing.assert_array_equal(row, features_of(context, (name,))[0])


def test_arms_may_be_those_of_another_time(tmp_path: Path) -> None:
    policy = enrolled(tmp_path)
    then = ArmTable({"old ward": {"price": 7.0}, "home": {"price": 99.0}})
    names = ["old ward", "home", "home"]
    assert policy.add_history(names, Y[:3], CONTEXTS[:3], arms=then) == 3
    pairs = zip(CONTEXTS, names, strict=False)
    x = np.vstack([features_of(context, (name,), arms=then) for context, name in pairs])
    z = np.column_stack([x, Y[:3]])
    np.testing.assert_allclose(release(policy, 1), z.T @ z, atol=1e-12)
    assert policy.arms == ARMS
    assert policy.summary().outside["price"] == 2  # where "home" was taken


def test_the_same_log_counts_once(tmp_path: Path) -> None:
    policy = enrolled(tmp_path, PRIVATE)
    assert policy.add_history(X, Y) == 40
    before = release(policy, 1)
    for _ in range(2):
        policy = LinearBanditPolicy.open(tmp_path)  # a script that is run again
        assert policy.add_history(X, Y) == 0
    assert policy.summary().num_logged == 40
    with policy._held() as bandit:
        total = bandit.sums.total(0, 1)
        np.testing.assert_array_equal(bandit.release(1), before)
    np.testing.assert_array_equal(total, PRIVATE.releases.gram(X, Y))


def contents(folder: Path) -> list[tuple[str, Any]]:
    with Journal(None, folder / FILE_NAME) as journal:
        state = journal.load_state()
        return sorted((name, array.tolist()) for name, array in state.items())


def test_a_log_that_has_grown_is_refused(tmp_path: Path) -> None:
    policy = enrolled(tmp_path, PRIVATE)
    policy.add_history(X[:30], Y[:30])
    before = contents(tmp_path)
    with pytest.raises(ValueError, match="name='history' is not allowed"):
        policy.add_history(X, Y)
    with pytest.raises(ValueError, match=r"name='b' is not allowed: \['history'\]"):
        policy.add_history(X[:30], Y[:30], name="b")
    assert contents(tmp_path) == before
    assert policy.add_history(X[30:], Y[30:], name="b") == 10
    assert policy.summary().num_logged == 40


WRONG: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    ((X, np.where(np.arange(40) == 17, 1.5, Y)), {}, r"rewards\[17\]=1.5"),
    ((X, [None, *Y[1:]]), {}, r"rewards\[0\]=nan"),
    ((X, Y[:, None]), {}, r"rewards=\(40, 1\)"),
    ((X, ["good"] * 40), {}, "rewards is not allowed: an array of numbers"),
    (([], []), {}, r"rewards=\(0,\) is not allowed: \(T,\), with T >= 1"),
    ((X[:39], Y), {}, r"actions=\(39, 3\)"),
    ((np.vstack([X[:5], 3 * X[5:]]), Y), {}, r"actions\[5\]="),
    ((X, Y, CONTEXTS), {}, "contexts=.* None, without an encoder"),
    ((X, Y), {"arms": ARMS}, "arms=.* None, without an encoder"),
    ((X, Y), {"name": " "}, "name=' ' is not allowed"),
]
WRONG_NAMED: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    ((NAMES, Y), {}, "contexts=None is not allowed: a list of mappings"),
    ((NAMES, Y, CONTEXTS[1:]), {}, r"len\(contexts\)=39"),
    ((NAMES[1:], Y, CONTEXTS), {}, r"len\(actions\)=39"),
    ((["clinik", *NAMES[1:]], Y, CONTEXTS), {}, r"actions\[0\]='clinik'.*'clinic'"),
    (([*NAMES[:-1], 2], Y, CONTEXTS), {}, r"actions\[39\]=2"),
    ((NAMES, Y, [*CONTEXTS[:-1], {"age": 3}]), {}, r"contexts\[39\]\['way'\] is miss"),
    ((NAMES, Y, [3, *CONTEXTS[1:]]), {}, r"contexts\[0\]=3 is not allowed: a mapping"),
    (
        (NAMES, Y, [{"age": math.nan, "way": "walk-in"}, *CONTEXTS[1:]]),
        {},
        r"contexts\[0\]\['age'\]=nan",
    ),
    ((NAMES, Y, CONTEXTS), {"arms": {"ward": {}}}, "arms=.* an ArmTable"),
]


def test_a_wrong_log_is_named_and_nothing_recorded(tmp_path: Path) -> None:
    policy = enrolled(tmp_path, PRIVATE)
    before = contents(tmp_path)
    for given, named, message in WRONG:
        with pytest.raises(ValueError, match=message):
            policy.add_history(*given, **named)
    assert contents(tmp_path) == before


def test_a_wrong_log_of_named_arms_is_named_and_nothing_recorded(
    tmp_path: Path,
) -> None:
    policy = enrolled(tmp_path)
    before = contents(tmp_path)
    for given, named, message in WRONG_NAMED:
        with pytest.raises(ValueError, match=message):
            policy.add_history(*given, **named)
    assert contents(tmp_path) == before
    assert policy.add_history(NAMES, Y, CONTEXTS) == 40


def test_after_the_last_release_a_log_is_refused(tmp_path: Path) -> None:
    policy = enrolled(tmp_path, PRIVATE)
    for k in range(1, 5):
        release(policy, k)
    with pytest.raises(ValueError, match="num_releases=4 is not allowed: below 4"):
        policy.add_history(X, Y)
    assert policy.summary().num_logged == 0


def test_sums_stay_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = enrolled(tmp_path, PRIVATE)
    longest, grid = np.array([1.0, 0.0, 0.0]), PRIVATE.releases.grid
    most = int(2**52 * grid)  # trials of length 1

    with policy._held() as bandit:

        def add(name: str, num_trials: int) -> bool:
            total, digest = num_trials * product(longest, 1.0), str(num_trials)
            return bandit.sums.add_log(
                name, total, num_trials=num_trials, digest=digest, arrays={}
            )

        with pytest.raises(ValueError, match=f"rewards.={most} is not allowed: fewer"):
            add("a", most)
        assert add("a", most - 1)
        with pytest.raises(ValueError, match=r"len\(rewards\)=1 is not allowed: fewer"):
            add("b", 1)
        assert np.isfinite(bandit.release(1)).all()


def keep_adding(folder: Path) -> None:
    policy = LinearBanditPolicy.open(folder)
    for i in range(10**6):
        policy.add_history(X + i / 1e9, Y, name=f"log {i}")


def test_a_log_is_added_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    enrolled(folder, PRIVATE)
    found, delay = {0}, 0.05
    while max(found) == 0 or delay < 0.2:  # however slow the machine is
        killed, delay = tmp_path / f"{delay}", 2 * delay
        shutil.copytree(folder, killed)
        assert killed_after(delay, keep_adding, killed)
        policy = LinearBanditPolicy.open(killed)
        with policy._held() as bandit:
            total, counts = bandit.sums.total(0, 1), bandit.sums.counts(0, 1)
        n = policy.summary().num_logged
        logs = n // 40
        assert n == 40 * logs == sum(counts)
        each = [PRIVATE.releases.gram(X + i / 1e9, Y) for i in range(logs)]
        np.testing.assert_array_equal(
            total, np.sum(each, axis=0) if each else 0 * total
        )
        # The script is run again: what is there is left as it is.
        for i in range(logs + 1):
            added = policy.add_history(X + i / 1e9, Y, name=f"log {i}")
            assert added == (40 if i == logs else 0)
        found.add(logs)


def test_a_full_disk_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = enrolled(tmp_path, PRIVATE)

    def full(*_: Any) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Parts, "write", full)
        with pytest.raises((OSError, JournalError)):
            policy.add_history(X, Y)
    assert policy.summary().num_logged == 0
    assert policy.add_history(X, Y) == 40


def agent_of(
    journal: Journal, study: LinearBanditStudy, slot: int = 0
) -> RecordedBandit:
    bandit = RecordedBandit(journal, study)
    bandit.join(slot, bandit.number)
    return bandit


def test_raw_agents_act_on_a_log_at_once(tmp_path: Path) -> None:
    settings = replace(VECTOR_SETTINGS, local_data="raw")
    logged = enrolled(tmp_path / "logged", settings)
    played = enrolled(tmp_path / "played", settings)
    logged.add_history(X, Y)
    play(played, X, Y)
    for policy in (logged, LinearBanditPolicy.open(tmp_path / "logged")):
        own, other = policy.summary(), played.summary()
        np.testing.assert_allclose(own.estimate, other.estimate, rtol=1e-10)
        # Its eigenvalues are known anew, where those of trials lag behind.
        assert np.all(own.confidence_width <= other.confidence_width * (1 + 1e-9))
        assert np.all(own.confidence_width > 0.5 * other.confidence_width)
    with logged._held() as bandit:
        total = bandit.release(1)
        bandit.receive(total, 1)  # now it is in the total, and counts once
        np.testing.assert_allclose(bandit.belief.agents[0].estimate, own.estimate)
        assert bandit.sums.counts(1, 2) == [0]


def test_a_log_can_make_a_trigger_fire(tmp_path: Path) -> None:
    settings = replace(VECTOR_SETTINGS, local_data="raw")
    study = LinearBanditStudy(settings, 2, DeterminantTrigger(5.0))
    with Journal(RecordedBandit.identity_of(study)) as journal:
        bandit = agent_of(journal, study)
        assert not bandit.belief.wants_synchronisation()
        bandit.add_history(X, Y, None, None, "history")
        assert bandit.belief.wants_synchronisation()
        bandit.receive(bandit.release(1), 1)
        assert not bandit.belief.wants_synchronisation()


@pytest.mark.parametrize("local_data", ["released", "raw"])
def test_peers_put_a_logs_trials_into_their_streams_in_turn(local_data: Any) -> None:
    graph = PeerGraph.named("line", 4, hops=3)
    releases = replace(PRIVATE.releases, num_streams=graph.streams)
    settings = replace(PRIVATE, releases=releases, local_data=local_data)
    study = LinearBanditStudy(settings, 4, noise_seed=1, graph=graph)
    sums = []
    for logged in (True, False):
        with Journal(RecordedBandit.identity_of(study)) as journal:
            bandit = agent_of(journal, study)
            if logged:
                bandit.add_history(X, Y, None, None, "history")
            else:
                for x, y in zip(X, Y, strict=True):
                    [choice] = bandit.choose([bandit.decisions.offer(Request([x]))])
                    bandit.reward({choice.ticket: float(y)})
            sums.append(bandit.release(1))
            estimates = [agent.estimate for agent in bandit.belief.agents]
            assert len(estimates) == graph.streams
    np.testing.assert_array_equal(sums[0], sums[1])

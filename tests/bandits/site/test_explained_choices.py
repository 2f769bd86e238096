"""A choice says what is expected of it and why; a caller may bound what is chosen."""

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flwr_fbo import LinearBanditPolicy
from flwr_fbo.bandits import (
    ArmTable,
    ContinualSettings,
    FeatureEncoder,
    LinearUCBSettings,
    Number,
)
from tests.support.policies import (
    ARMS,
    CONTEXT,
    KINDS,
    SETTINGS,
    VECTOR_SETTINGS,
    VECTORS,
    enrolled,
    features_of,
    learned,
    settings_of,
)

EVERY_KIND = pytest.mark.parametrize("kind", KINDS)


def test_expectation_and_width_are_those_of_the_belief(tmp_path: Path) -> None:
    policy = enrolled(tmp_path)
    learned(policy)
    choice = policy.choose(CONTEXT)
    [theta, v, width] = _belief(policy)
    x = features_of(CONTEXT, ARMS.names)
    half = width * np.sqrt(np.einsum("ki,ij,kj->k", x, np.linalg.inv(v), x))
    assert choice.expected == pytest.approx(x[choice.index] @ theta, rel=1e-4)
    assert choice.width == pytest.approx(half[choice.index], rel=1e-4)
    # It is what was compared.
    assert choice.index == np.argmax(x @ theta + half)
    decision = LinearBanditPolicy.open(tmp_path).decisions()[0]
    for name in ("expected", "width", "why"):
        assert getattr(decision, name) == getattr(choice, name)


def _belief(policy: LinearBanditPolicy) -> Any:
    with policy._held() as bandit:
        [agent] = bandit.belief.agents
        belief = agent._belief
        factor = belief.ellipsoid.factor
        return belief.ellipsoid.estimate, factor @ factor.T, float(belief.width)


def test_an_expectation_is_in_units_of_the_reward(tmp_path: Path) -> None:
    releases = ContinualSettings(
        2, 3, epsilon=math.inf, delta=0.1, reward_range=(10, 20)
    )
    policy = enrolled(tmp_path, LinearUCBSettings(releases, "own"))
    for _ in range(200):
        policy.reward(policy.choose(VECTORS[:1]).ticket, 18.0)
    assert policy.choose(VECTORS[:1]).expected == pytest.approx(18, abs=0.1)


def test_the_reason_is_named(tmp_path: Path) -> None:
    policy = enrolled(tmp_path, replace(VECTOR_SETTINGS, local_data="own"))
    axes = np.eye(3)
    assert policy.choose(axes).why == "tie"
    assert policy.choose(axes[:1]).why == "only arm"
    for _ in range(60):
        policy.reward(policy.choose(axes[:1]).ticket, 0.5)
    seen = set()
    for _ in range(12):
        about = [policy.choose(axis[None]) for axis in axes]
        best = int(np.argmax([one.expected for one in about]))
        choice = policy.choose(axes[:2])
        assert choice.index == np.argmax([o.expected + o.width for o in about[:2]])
        is_best = choice.index == best
        assert choice.why == ("best expected" if is_best else "highest upper bound")
        greedy = policy.choose(axes, explore=False)
        assert (greedy.index, greedy.why) == (best, "best expected")
        assert greedy.propensity == 1.0
        seen.add(choice.why)
        policy.reward(policy.choose(axes[1:2]).ticket, 0.5)
    assert "highest upper bound" in seen


def test_a_drawn_action_is_explored(tmp_path: Path) -> None:
    settings = replace(SETTINGS, exploration=KINDS["sampling"])
    policy = enrolled(tmp_path, settings)
    learned(policy)
    best = policy.choose(CONTEXT, explore=False).index
    for choice in policy.choose_many([CONTEXT] * 60):
        expected = "best expected" if choice.index == best else "explored"
        assert choice.why == expected
    reasons = Counter(d.why for d in policy.decisions())
    assert reasons.keys() == {"best expected", "explored"}


@EVERY_KIND
def test_without_exploration_the_best_expected_is_chosen(
    tmp_path: Path, kind: str
) -> None:
    policy = enrolled(tmp_path, replace(SETTINGS, exploration=KINDS[kind]))
    learned(policy)
    theta = _belief(policy)[0]
    for age in range(0, 100, 9):
        context = {**CONTEXT, "age": age}
        best = ARMS.names[np.argmax(features_of(context, ARMS.names) @ theta)]
        found = policy.probabilities(context, explore=False)
        assert found == {name: float(name == best) for name in ARMS.names}
        choice = policy.choose(context, explore=False)
        assert (choice.arm, choice.propensity) == (best, 1.0)
    slate = policy.choose_slate(CONTEXT, 3, explore=False)
    assert [one.propensity for one in slate] == [1.0] * 3
    means = features_of(CONTEXT, ARMS.names) @ theta
    assert [one.index for one in slate] == np.argsort(-means).tolist()


@EVERY_KIND
def test_a_forbidden_arm_is_never_chosen(tmp_path: Path, kind: str) -> None:
    policy = enrolled(tmp_path, replace(SETTINGS, exploration=KINDS[kind]))
    learned(policy)
    for forbid in (["ward"], {"home"}, ("ward", "home")):
        found = policy.probabilities(CONTEXT, forbid=forbid)
        assert found.keys() == set(ARMS.names)
        assert {found[name] for name in forbid} == {0.0}
        assert sum(found.values()) == pytest.approx(1)
        for choice in policy.choose_many([CONTEXT] * 20, forbid=forbid):
            assert choice.arm not in forbid
        assert {one.arm for one in policy.choose_slate(CONTEXT, 1, forbid=forbid)} & {
            *ARMS.names
        } - {*forbid}
    # Off-policy evaluation learns that they were not possible.
    assert policy.decisions()[-1].arms == ("clinic",)
    chosen = policy.choose(CONTEXT, ["home", "ward"], forbid=["ward", "clinic"])
    assert (chosen.arm, chosen.propensity) == ("home", 1.0)
    with pytest.raises(ValueError, match="forbid='hotel'"):
        policy.choose(CONTEXT, forbid=["hotel"])
    with pytest.raises(ValueError, match="not all"):
        policy.choose(CONTEXT, forbid=ARMS.names)
    # Vectors are called by their places.
    unnamed = enrolled(tmp_path / "v", VECTOR_SETTINGS)
    slate = unnamed.choose_slate(VECTORS, 2, forbid=["0"], key="visit")
    assert sorted(one.arm for one in slate) == ["1", "2"]
    again = unnamed.choose_slate(VECTORS, 2, forbid=["0"], key="visit")
    assert list(map(vars, again)) == list(map(vars, slate))
    [first, _] = unnamed.decisions()
    assert first.arms == ("1", "2")
    np.testing.assert_array_equal(first.features, VECTORS[1:])
    with pytest.raises(ValueError, match="forbid='3'"):
        unnamed.choose(VECTORS, forbid=["3"])


@EVERY_KIND
@pytest.mark.parametrize("explore", [True, False])
def test_a_floor_is_kept_and_the_propensity_is_honest(
    tmp_path: Path, kind: str, explore: bool
) -> None:
    policy = enrolled(tmp_path, replace(SETTINGS, exploration=KINDS[kind]))
    learned(policy)
    floors = {"home": 0.3, "ward": 0.1}
    found = policy.probabilities(CONTEXT, floors=floors, explore=explore)
    without = policy.probabilities(CONTEXT, explore=explore)
    for name, probability in found.items():
        assert probability >= floors.get(name, 0.0) - 1e-12
        if kind != "sampling":  # which draws anew
            expected = floors.get(name, 0.0) + 0.6 * without[name]
            assert probability == pytest.approx(expected)
    assert sum(found.values()) == pytest.approx(1)
    n = 2000
    rule: Any = {"floors": floors, "explore": explore}
    choices = policy.choose_many([CONTEXT] * n, **rule)
    counts = Counter(choice.arm for choice in choices)
    assert counts["home"] / n > 0.3 - 4 * math.sqrt(0.21 / n)
    # Horvitz and Thompson: the weights of an arm's decisions add up to n.
    for name in counts:
        weights = [1 / c.propensity for c in choices if c.arm == name]
        error = math.sqrt(sum(w * (w - 1) for w in weights)) + 1e-9
        assert abs(sum(weights) - n) < 4.5 * error + 1e-6 * n
    if kind != "sampling":
        homes = [c.propensity for c in choices if c.arm == "home"]
        np.testing.assert_allclose(homes, found["home"])
    worse = [c for c in choices if c.why == "floor"]
    assert worse
    assert {c.arm for c in worse} <= floors.keys()


@pytest.mark.parametrize(
    "floors",
    [
        {"hotel": 0.1},
        {"home": 1.1},
        {"home": -0.1},
        {"home": 0.6, "ward": 0.5},
        ["home"],
    ],
)
def test_wrong_floors_are_named(tmp_path: Path, floors: Any) -> None:
    policy = enrolled(tmp_path)
    with pytest.raises(ValueError, match="floors"):
        policy.choose(CONTEXT, floors=floors)
    with pytest.raises(ValueError, match="floors='home'"):
        policy.choose(CONTEXT, ["ward"], floors={"home": 0.1})
    with pytest.raises(ValueError, match="explore='no'"):
        policy.choose(CONTEXT, explore="no")  # type: ignore[arg-type]
    assert policy.num_trials == 0


def test_spare_blocks_are_not_offered_until_the_site_offers_them(
    tmp_path: Path,
) -> None:
    encoder = FeatureEncoder(
        {"age": Number(0, 100)}, blocks=("ward", "home"), spare=("later",)
    )
    assert encoder.dimension == 6
    assert encoder.feature_names[4:] == ("later: intercept", "later: age")
    policy = enrolled(tmp_path, settings_of(encoder))
    choices = policy.choose_many([{"age": 3}] * 60)
    assert {choice.arm for choice in choices} == {"ward", "home"}
    assert policy.arms.names == ("ward", "home")
    policy.set_arms(policy.arms.add("later"))
    choices = policy.choose_many([{"age": 3}] * 60)
    assert {choice.arm for choice in choices} == {"ward", "home", "later"}
    with pytest.raises(ValueError, match="block"):
        policy.set_arms(ArmTable({"other": {}}))


@pytest.mark.parametrize("names", [("ward",), ("later", "later"), ("",), "later", (3,)])
def test_wrong_spare_blocks_are_named(names: Any) -> None:
    with pytest.raises(ValueError, match="spare"):
        FeatureEncoder({"age": Number(0, 1)}, blocks=("ward", "home"), spare=names)
    with pytest.raises(ValueError, match="spare"):
        FeatureEncoder({"age": Number(0, 1)}, {"price": Number(0, 1)}, spare=("later",))

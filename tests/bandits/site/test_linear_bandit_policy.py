"""A decision is recorded as it was made: arms, context, features and propensity."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flwr_fbo import LinearBanditPolicy
from flwr_fbo.bandits import ArmTable, Decision, LinearUCBSettings
from flwr_fbo.bandits.site.decision import Choice, Request
from flwr_fbo.journal.journal import Journal
from tests.support.killing import killed_after
from tests.support.policies import (
    ARMS,
    BLOCK_SETTINGS,
    BLOCKS,
    CONTEXT,
    ENCODER,
    FILE_NAME,
    KINDS,
    SETTINGS,
    VECTOR_SETTINGS,
    VECTORS,
    enrolled,
    features_of,
    learned,
)

EVERY_KIND = pytest.mark.parametrize("kind", KINDS)


def exploring(settings: LinearUCBSettings, kind: str) -> LinearUCBSettings:
    return replace(settings, exploration=KINDS[kind])


def again(tmp_path: Path) -> Sequence[Decision]:
    """Return the decisions as another process would read them."""
    return LinearBanditPolicy.open(tmp_path).decisions()


def assert_recorded(
    decision: Decision, choice: Choice, propensities: dict[str, float]
) -> None:
    """Assert that a decision has what was chosen, with its propensity."""
    assert decision.number == choice.ticket
    assert decision.arms == tuple(propensities)
    assert decision.arms[decision.chosen] == choice.arm
    assert decision.propensity == choice.propensity == propensities[choice.arm]
    assert math.isnan(decision.reward)


# What is read back.


@EVERY_KIND
def test_a_decision_among_named_arms_is_read_back(tmp_path: Path, kind: str) -> None:
    policy = enrolled(tmp_path, exploring(SETTINGS, kind))
    learned(policy)
    contexts: list[dict[str, Any]] = [
        {"age": age, "way": way} for age in (3, 40.5) for way in ("walk-in", "taxi")
    ]
    possible = [None, ["home", "ward"], {"clinic"}, ("home", "clinic", "ward")]
    made = []
    for context, eligible in zip(contexts, possible, strict=True):
        propensities = policy.probabilities(context, eligible)
        made.append((policy.choose(context, eligible), propensities))
    decisions = again(tmp_path)
    names = [ARMS.names, ("ward", "home"), ("clinic",), ARMS.names]
    for decision, one, context, own in zip(
        decisions, made, contexts, names, strict=True
    ):
        assert_recorded(decision, *one)
        assert (decision.context, decision.arms) == (context, own)
        expected = features_of(context, own)
        np.testing.assert_array_equal(decision.features, expected)
        assert one[0].index == decision.chosen
    assert made[2][0].propensity == 1.0


@EVERY_KIND
def test_a_decision_among_vectors_is_read_back(tmp_path: Path, kind: str) -> None:
    policy = enrolled(tmp_path, exploring(VECTOR_SETTINGS, kind))
    learned(policy)
    made = []
    for i in range(1, 4):
        propensities = policy.probabilities(VECTORS[:i])
        made.append((policy.choose(VECTORS[:i].tolist()), propensities))
    for i, (decision, one) in enumerate(zip(again(tmp_path), made, strict=True), 1):
        assert_recorded(decision, *one)
        assert decision.context is None
        assert decision.arms == ("0", "1", "2")[:i]
        np.testing.assert_array_equal(decision.features, VECTORS[:i])
    awaited = LinearBanditPolicy.open(tmp_path).awaited
    for choice, _ in made:
        np.testing.assert_array_equal(awaited[choice.ticket], VECTORS[choice.index])


def test_vectors_that_come_again_are_on_record_once(tmp_path: Path) -> None:
    policy = enrolled(tmp_path, VECTOR_SETTINGS)
    other = LinearBanditPolicy.open(tmp_path)
    rng = np.random.default_rng(0)
    few, many = (rng.uniform(-0.5, 0.5, (K, 3)) for K in (2, 400))
    for each in (policy, other, LinearBanditPolicy.open(tmp_path)):
        for actions in (many, few, many):
            each.reward(each.choose(actions).ticket, 0.5)
    policy.choose_slate(many, 2)
    decisions = again(tmp_path)
    for decision, actions in zip(decisions, 3 * [many, few, many], strict=False):
        np.testing.assert_array_equal(decision.features, actions)
        assert decision.reward == 0.5
    # Of the slate, the second one is among others.
    assert [len(d.features) for d in decisions[-2:]] == [400, 399]
    with Journal(None, tmp_path / FILE_NAME) as journal:
        points = [trial.point.shape for trial in journal.trials()]
    # Another process knows those of the last trial only.
    again_few = [(3,), (2, 3), (3,)]
    first = [(400, 3), (2, 3), (3,)]
    assert points == [*first, *again_few, *again_few, (3,), (399, 3)]


@pytest.mark.parametrize("kind", ["optimism", "inverse gap"])
def test_many_decisions_are_those_one_by_one(tmp_path: Path, kind: str) -> None:
    settings = exploring(SETTINGS, kind)
    together, alone = (enrolled(tmp_path / name, settings) for name in "ab")
    contexts = [{"age": age, "way": "ambulance"} for age in range(0, 100, 9)]
    possible = [None, ["home", "ward"]] * 6
    for policy in (together, alone):
        learned(policy)
    many = together.choose_many(contexts, possible)
    few = [
        alone.choose(context, eligible)
        for context, eligible in zip(contexts, possible, strict=True)
    ]
    # But for rounding, as what is computed at once may be summed in another order.
    for choice, expected in zip(many, few, strict=True):
        assert choice.propensity == pytest.approx(expected.propensity, rel=1e-12)
        assert {**vars(choice), "propensity": 0} == {**vars(expected), "propensity": 0}
    for one, other in zip(again(tmp_path / "a"), again(tmp_path / "b"), strict=True):
        np.testing.assert_array_equal(one.features, other.features)
        assert one.propensity == pytest.approx(other.propensity, rel=1e-12)
        leave = {"time": 0, "features": 0, "propensity": 0}
        assert {**vars(one), **leave} == {**vars(other), **leave}
    assert together.choose_many([]) == []


def test_blocks_are_the_arms_until_others_are_set(tmp_path: Path) -> None:
    policy = enrolled(tmp_path, BLOCK_SETTINGS)
    assert policy.arms.names == BLOCKS.blocks
    policy.choose({"age": 50}, ["away"])
    policy.set_arms(policy.arms.remove("home"))
    policy.choose({"age": 50})
    first, second = again(tmp_path)
    blocks = ArmTable({name: {} for name in BLOCKS.blocks})
    for decision, names in ((first, ("away",)), (second, ("ward", "away"))):
        assert decision.arms == names
        expected = features_of({"age": 50}, names, BLOCKS, blocks)
        np.testing.assert_array_equal(decision.features, expected)


@pytest.mark.parametrize(
    ("age", "recorded"),
    [
        (np.float32(40.1), float(np.float32(40.1))),
        (np.int64(40), 40),
        (Fraction(81, 2), 40.5),
        (10**30, 10**30),
        (-0.0, 0.0),
    ],
)
def test_numbers_of_any_kind_survive(tmp_path: Path, age: Any, recorded: float) -> None:
    policy = enrolled(tmp_path)
    context = {"age": age, "way": np.str_("walk-in")}
    policy.choose(context)
    policy.set_arms(ARMS.change("home", price=min(age, 5)))
    policy.choose(context)
    for decision in again(tmp_path):
        assert decision.context == {"age": recorded, "way": "walk-in"}
        assert [type(value) for value in decision.context.values()] == [
            type(recorded),
            str,
        ]
    fresh = {"age": recorded, "way": "walk-in"}
    np.testing.assert_array_equal(
        again(tmp_path)[0].features, features_of(fresh, ARMS.names)
    )


# Slates.


@pytest.mark.parametrize(
    ("kind", "num_slots"), [("optimism", 1), ("sampling", 2), ("inverse gap", 3)]
)
def test_a_slate_never_repeats(tmp_path: Path, kind: str, num_slots: int) -> None:
    policies: list[tuple[LinearBanditPolicy, Any, Any]] = [
        (enrolled(tmp_path / "a", exploring(SETTINGS, kind)), CONTEXT, ARMS.names),
        (enrolled(tmp_path / "b", exploring(VECTOR_SETTINGS, kind)), VECTORS, "012"),
    ]
    for policy, context, names in policies:
        learned(policy)
        for _ in range(5):
            slate = policy.choose_slate(context, num_slots)
            assert len({choice.index for choice in slate}) == num_slots
            for choice in slate:
                assert names[choice.index] == choice.arm
            tickets = [choice.ticket for choice in slate]
            assert tickets == [*range(tickets[0], tickets[0] + num_slots)]
        decisions = policy.decisions()[-num_slots:]
        left = list(range(3))
        for decision, choice in zip(decisions, slate, strict=True):
            rows = decision.features
            whole = VECTORS if names == "012" else features_of(CONTEXT, ARMS.names)
            np.testing.assert_array_equal(rows, whole[left])
            assert left[decision.chosen] == choice.index
            assert decision.arms[decision.chosen] == choice.arm
            assert decision.propensity == choice.propensity
            left.remove(choice.index)


@pytest.mark.parametrize("kind", ["optimism", "inverse gap"])
def test_a_slates_propensities_multiply_to_its_law(tmp_path: Path, kind: str) -> None:
    """For all orders of three arms, and as often as they are played."""
    policy = enrolled(tmp_path, exploring(SETTINGS, kind))
    learned(policy)
    law = {}
    for order in itertools.permutations(ARMS.names):
        left, p = set(ARMS.names), 1.0
        for arm in order:
            p *= policy.probabilities(CONTEXT, left)[arm]
            left.remove(arm)
        law[order] = p
    assert sum(law.values()) == pytest.approx(1)
    n, seen = 200, Counter[tuple[str, ...]]()
    with policy._held() as bandit:  # as `choose_slate` does, without waiting to write
        for _ in range(n):
            slate = bandit.choose_slate(bandit.decisions.offer(Request(CONTEXT)), 3)
            order = tuple(choice.arm for choice in slate)
            p = math.prod(choice.propensity for choice in slate)
            assert p == pytest.approx(law[order], rel=1e-12)
            seen[order] += 1
    for order, p in law.items():
        assert abs(seen[order] / n - p) <= 5 * math.sqrt(p * (1 - p) / n) + 1e-12


# Arms that are possible, and arms that change.


@EVERY_KIND
def test_only_eligible_arms_are_chosen(tmp_path: Path, kind: str) -> None:
    policy = enrolled(tmp_path, exploring(SETTINGS, kind))
    learned(policy)
    for size in (1, 2):
        for names in itertools.combinations(ARMS.names, size):
            p = policy.probabilities(CONTEXT, names)
            assert tuple(p) == names
            assert sum(p.values()) == pytest.approx(1)
            made = policy.choose_many([CONTEXT] * 10, [names] * 10)
            assert {choice.arm for choice in made} <= set(names)
            made = policy.choose_slate(CONTEXT, size, names)
            assert {choice.arm for choice in made} == set(names)


def test_old_decisions_keep_their_arms(tmp_path: Path) -> None:
    policy = enrolled(tmp_path)
    tables = [ARMS]
    changes: list[Callable[[ArmTable], ArmTable]] = [
        lambda arms: arms.add("away", price=3),
        lambda arms: arms.remove("clinic"),
        lambda arms: arms.change("home", price=8),
        lambda arms: arms.remove("ward").add("clinic", price=2),
    ]
    policy.choose(CONTEXT)
    for change in changes:
        policy.set_arms(change(policy.arms))
        tables.append(policy.arms)
        policy.choose(CONTEXT)
    versions = [table.version for table in tables]
    assert versions == sorted(set(versions))
    for decision, table in zip(again(tmp_path), tables, strict=True):
        assert decision.arms == table.names
        expected = features_of(CONTEXT, table.names, arms=table)
        np.testing.assert_array_equal(decision.features, expected)
    assert LinearBanditPolicy.open(tmp_path).arms == tables[-1]


def tables_in(folder: Path) -> list[str]:
    with Journal(None, folder / FILE_NAME) as journal:
        return sorted(name for name in journal.load_state() if "arms-" in name)


def test_the_same_arms_are_no_new_version(tmp_path: Path) -> None:
    policy = enrolled(tmp_path)
    before = policy.arms.version, tables_in(tmp_path)
    for same in (ARMS, policy.arms, replace(ARMS, version=9)):
        policy.set_arms(same)
    assert (policy.arms.version, tables_in(tmp_path)) == before
    # In another order they are others: decisions have them in that order.
    policy.set_arms(ArmTable(dict(reversed(ARMS.eligible()))))
    assert policy.arms.names == ARMS.names[::-1]
    assert policy.arms.version == before[0] + 1


def remove_home(folder: Path) -> None:
    policy = LinearBanditPolicy.open(folder)
    policy.set_arms(policy.arms.remove("home"))


def test_arms_that_another_process_changes_are_seen_at_once(tmp_path: Path) -> None:
    policy = enrolled(tmp_path)
    policy.choose(CONTEXT)
    assert not killed_after(None, remove_home, tmp_path)
    with pytest.raises(ValueError, match="eligible='home'"):
        policy.choose(CONTEXT, ["home"])
    policy.choose(CONTEXT)
    assert policy.arms.names == ("ward", "clinic")
    assert [one.arms for one in policy.decisions()] == [ARMS.names, ("ward", "clinic")]


def test_arms_that_the_encoder_does_not_take_are_not_set(tmp_path: Path) -> None:
    policy = enrolled(tmp_path)
    for arms in (
        ArmTable({"ward": {}}),
        ArmTable({"ward": {"price": "high"}}),
        ArmTable({"ward": {"price": 1, "beds": 2}}),
        {"ward": {"price": 1}},
    ):
        with pytest.raises(ValueError, match=r"price|beds|ArmTable"):
            policy.set_arms(arms)  # type: ignore[arg-type]
    assert policy.arms.arms == ARMS.arms
    blocks = enrolled(tmp_path / "blocks", BLOCK_SETTINGS)
    with pytest.raises(ValueError, match="clinic"):
        blocks.set_arms(ArmTable({"clinic": {}}))


def test_without_arms_nothing_is_chosen(tmp_path: Path) -> None:
    policy = enrolled(tmp_path, arms=None)
    for call in (lambda: policy.arms, lambda: policy.choose(CONTEXT)):
        with pytest.raises(ValueError, match="set_arms"):
            call()
    policy.set_arms(ArmTable({}))
    with pytest.raises(ValueError, match="one arm or more"):
        policy.choose(CONTEXT)
    assert policy.num_trials == 0


# Errors come before any work.


def contents(folder: Path) -> Any:
    """Return all that is in a journal."""
    with Journal(None, folder / FILE_NAME) as journal:
        trials = [{**vars(t), "point": t.point.tolist()} for t in journal.trials()]
        state = {name: a.tolist() for name, a in journal.load_state().items()}
        return repr((trials, state))


OUTSIDE = {"age": 300, "way": "taxi"}
WRONG_CONTEXTS: list[tuple[Any, Any, str]] = [
    ({"age": 71}, None, "way"),
    ({"age": "old", "way": "walk-in"}, None, "age"),
    ({"age": math.nan, "way": "walk-in"}, None, "age"),
    ({"age": 71, "way": 3}, None, "way"),
    ({**CONTEXT, "name": "A"}, None, "name"),
    (VECTORS, None, "context"),
    (None, None, "context"),
    (CONTEXT, ["hospice"], "hospice"),
    (CONTEXT, [], "eligible"),
    (CONTEXT, "home", "eligible"),
    (CONTEXT, [3], "eligible"),
]


def test_a_wrong_context_or_arm_is_named_and_nothing_recorded(tmp_path: Path) -> None:
    policy = enrolled(tmp_path)
    policy.choose(OUTSIDE)
    before = contents(tmp_path)
    calls: list[Callable[[Any, Any], Any]] = [
        policy.choose,
        policy.probabilities,
        lambda context, eligible: policy.choose_slate(context, 1, eligible),
        # The last of several.
        lambda context, eligible: policy.choose_many(
            [OUTSIDE] * 3 + [context], [None] * 3 + [eligible]
        ),
    ]
    for context, eligible, named in WRONG_CONTEXTS:
        for call in calls:
            with pytest.raises(ValueError, match=named):
                call(context, eligible)
    assert contents(tmp_path) == before
    assert policy.summary().outside == {"age": 1, "way": 1}
    assert policy.choose(CONTEXT).ticket == 1


WRONG_VECTORS: list[tuple[Any, Any, str]] = [
    (CONTEXT, None, "context"),
    (VECTORS, ["0", "3"], "eligible"),
    (VECTORS, [], "eligible"),
    (VECTORS * 2, None, "actions"),
    (VECTORS * np.nan, None, "actions"),
    (VECTORS[:, :2], None, "actions"),
    (VECTORS[:0], None, "actions"),
    (3.0, None, "actions"),
]


def test_wrong_vectors_are_named_and_nothing_recorded(tmp_path: Path) -> None:
    policy = enrolled(tmp_path, VECTOR_SETTINGS)
    policy.choose(VECTORS)
    before = contents(tmp_path)
    calls: list[Callable[[Any, Any], Any]] = [
        policy.choose,
        policy.probabilities,
        lambda actions, eligible: policy.choose_many(
            [VECTORS, actions], [None, eligible]
        ),
    ]
    for actions, eligible, named in WRONG_VECTORS:
        for call in calls:
            with pytest.raises(ValueError, match=named):
                call(actions, eligible)
    assert contents(tmp_path) == before
    for use in (lambda: policy.arms, lambda: policy.set_arms(ARMS)):
        with pytest.raises(ValueError, match="no encoder"):
            use()


def test_a_slate_has_as_many_slots_as_arms_at_most(tmp_path: Path) -> None:
    policy = enrolled(tmp_path)
    wrongs: list[Any] = [0, 4, 1.0]
    for num_slots in wrongs:
        with pytest.raises(ValueError, match="num_slots"):
            policy.choose_slate(CONTEXT, num_slots)
    assert policy.num_trials == 0


def test_there_are_as_many_masks_as_contexts(tmp_path: Path) -> None:
    policy = enrolled(tmp_path)
    for eligible in ([], [None], [None] * 3):
        with pytest.raises(ValueError, match=r"len\(eligible\)"):
            policy.choose_many([CONTEXT] * 2, eligible)
    assert policy.num_trials == 0


# Values outside of their bounds.


def test_values_outside_are_counted_by_field_and_kept(tmp_path: Path) -> None:
    policy = enrolled(tmp_path, arms=ARMS.change("home", price=99))
    policy.choose(CONTEXT, ["ward"])
    assert policy.summary().outside == {}
    policy.choose(CONTEXT)  # home's price
    policy.choose_many([OUTSIDE, {**CONTEXT, "way": "taxi"}], [["ward"], ["home"]])
    policy.choose_slate({**CONTEXT, "age": -1}, 2, ["ward", "clinic"])
    policy.probabilities(OUTSIDE)  # records nothing
    expected = {"price": 2, "age": 2, "way": 2}
    assert policy.summary().outside == expected
    other = LinearBanditPolicy.open(tmp_path)
    assert other.summary().outside == expected
    other.choose(OUTSIDE, ["ward"])
    assert policy.summary().outside == {"price": 2, "age": 3, "way": 3}
    assert "age 3" in str(policy.summary())


# A site without a seed.


def test_without_a_seed_decisions_are_drawn_anew(tmp_path: Path) -> None:
    settings = exploring(SETTINGS, "inverse gap")
    runs = []
    for name in "abc":
        policy = enrolled(tmp_path / name, settings, noise_seed=None)
        made = policy.choose_many([CONTEXT] * 60)
        runs.append([choice.index for choice in made])
        assert {decision.propensity for decision in policy.decisions()} == {
            policy.probabilities(CONTEXT)[choice.arm] for choice in made
        }
    assert runs[0] != runs[1] != runs[2]


def test_the_features_are_those_of_the_studys_norm(tmp_path: Path) -> None:
    releases = replace(SETTINGS.releases, max_action_norm=3.0)
    policy = enrolled(tmp_path, replace(SETTINGS, releases=releases))
    policy.choose(CONTEXT)
    expected = ENCODER.encode(CONTEXT, ARMS.eligible(), max_norm=3.0)[0]
    np.testing.assert_array_equal(again(tmp_path)[0].features, expected)


def test_many_rewards_are_recorded_at_once_or_none(tmp_path: Path) -> None:
    one, many = (enrolled(tmp_path / n, VECTOR_SETTINGS) for n in ("one", "many"))
    values = [0.1, 0.9, 0.4]
    tickets = [c.ticket for c in many.choose_many([VECTORS] * 3)]
    given = dict(zip(tickets, values, strict=True))
    wrongs: list[dict[int, Any]] = [{7: 0.5}, {tickets[0]: 2.0}, {tickets[0]: "0.5"}]
    for wrong in wrongs:
        with pytest.raises(ValueError, match="not allowed"):
            many.reward_many({**given, **wrong})
        assert sorted(many.awaited) == tickets
    many.reward_many(given)
    assert [d.reward for d in again(tmp_path / "many")] == values
    for choice, value in zip(one.choose_many([VECTORS] * 3), values, strict=True):
        one.reward(choice.ticket, value)
    for policy in (one, many):
        with policy._held() as bandit:
            window, _ = bandit.sums.window(0)
        x = np.array([[*d.features[d.chosen], d.reward] for d in policy.decisions()])
        np.testing.assert_allclose(window, x.T @ x, atol=1e-8)


def test_a_cancelled_decision_gets_no_reward(tmp_path: Path) -> None:
    policy = enrolled(tmp_path, VECTOR_SETTINGS)
    kept, cancelled = policy.choose_many([VECTORS] * 2)
    policy.cancel(cancelled.ticket)
    assert list(policy.awaited) == [kept.ticket]
    for again_used in (policy.cancel, lambda ticket: policy.reward(ticket, 0.5)):
        with pytest.raises(ValueError, match=f"ticket={cancelled.ticket}"):
            again_used(cancelled.ticket)
    with pytest.raises(ValueError, match="ticket=9"):
        policy.cancel(9)
    policy.reward(kept.ticket, 0.5)
    with policy._held() as bandit:
        x = np.array([*VECTORS[kept.index], 0.5])
        np.testing.assert_allclose(bandit.sums.window(0)[0], np.outer(x, x), atol=1e-8)
    rewards = [decision.reward for decision in again(tmp_path)]
    assert rewards[0] == 0.5
    assert math.isnan(rewards[1])
    assert policy.choose(VECTORS).ticket == 2

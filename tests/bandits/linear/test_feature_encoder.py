"""What contexts and arms become: never too long, told apart, the same everywhere."""

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flwr_fbo._common.fields import from_json, to_json
from flwr_fbo.bandits import Category, ContinualSettings, FeatureEncoder, Number
from tests.support.feature_spaces import (
    Arm,
    decisions,
    encode_slowly,
    encoders,
)

ARRIVAL = Category(("walk-in", "ambulance"))
CONTEXT: dict[str, Number | Category] = {"age": Number(0, 110), "arrival": ARRIVAL}
SHARED = FeatureEncoder(CONTEXT, {"price": Number(0, 100)})
BLOCKS = FeatureEncoder(CONTEXT, blocks=("ward", "home"))
PATIENT = {"age": 55, "arrival": "walk-in"}
ARMS: list[Arm] = [("ward", {"price": 75}), ("home", {"price": 0})]


@settings(max_examples=40)
@given(st.data(), st.floats(1e-6, 1e6))
def test_no_action_is_too_long(data: st.DataObject, max_norm: float) -> None:
    encoder = data.draw(encoders())
    context, arms = data.draw(decisions(encoder))
    features = encoder.encode(context, arms, max_norm)[0]
    assert np.linalg.norm(features, axis=1).max() <= max_norm * (1 + 1e-14)
    dimension = encoder.dimension
    releases = ContinualSettings(3, dimension, 1.0, 1e-5, max_action_norm=max_norm)
    releases.check_norms(features)
    assert features.shape == (len(arms), dimension)
    assert len(set(encoder.feature_names)) == dimension


@settings(max_examples=25)
@given(st.data(), st.floats(0.1, 10))
def test_the_features_are_those_of_the_definition(
    data: st.DataObject, max_norm: float
) -> None:
    encoder = data.draw(encoders(largest=1e3))
    context, arms = data.draw(decisions(encoder))
    expected = encode_slowly(encoder, context, arms, max_norm)
    features = encoder.encode(context, arms, max_norm)[0]
    np.testing.assert_allclose(features, expected, atol=1e-8 * max_norm)


def test_names_say_what_the_features_are() -> None:
    assert SHARED.feature_names == (
        "intercept", "age", "arrival=walk-in", "arrival=ambulance", "price",
        "age x price", "arrival=walk-in x price", "arrival=ambulance x price",
    )  # fmt: skip
    patient = {"age": 82.5, "arrival": "ambulance"}
    features = SHARED.encode(patient, ARMS, max_norm=2 * math.sqrt(6))[0]
    assert features[0].tolist() == pytest.approx([2, 1, 0, 2, 1, 0.5, 0, 1])
    assert features[1].tolist() == pytest.approx([2, 1, 0, 2, -2, -1, 0, -2])
    assert BLOCKS.feature_names[4:6] == ("home: intercept", "home: age")
    features = BLOCKS.encode(patient, [("home", {})], max_norm=math.sqrt(3))[0]
    assert features[0].tolist() == pytest.approx([0, 0, 0, 0, 1, 0.5, 0, 1])


def test_any_two_fields_may_interact() -> None:
    encoder = replace(SHARED, interactions=[("age", "arrival"), ("price", "age")])
    assert encoder.feature_names[5:] == (
        "age x arrival=walk-in", "age x arrival=ambulance", "price x age"
    )  # fmt: skip
    assert replace(SHARED, interactions=()).dimension == 5


patients = st.fixed_dictionaries(
    {"age": st.integers(0, 110), "arrival": st.sampled_from(ARRIVAL.values)}
)
prices = st.fixed_dictionaries({"price": st.integers(0, 100)})


@settings(max_examples=25)
@given(patients, patients, prices, prices, st.sampled_from(["all", ()]))
def test_a_shared_model_tells_contexts_and_features_apart(
    one: Any, other: Any, price: Any, other_price: Any, interactions: Any
) -> None:
    encoder = replace(SHARED, interactions=interactions)
    first = encoder.encode(one, [("ward", price)])[0]
    second = encoder.encode(other, [("ward", other_price)])[0]
    differ = (one, price) != (other, other_price)
    assert bool(np.abs(first - second).max() > 1e-6) == differ


@settings(max_examples=25)
@given(patients, patients, st.sampled_from(BLOCKS.blocks))
def test_blocks_tell_contexts_and_names_apart(one: Any, other: Any, name: str) -> None:
    first = BLOCKS.encode(one, [("ward", {})])[0]
    second = BLOCKS.encode(other, [(name, {})])[0]
    differ = (one, "ward") != (other, name)
    assert bool(np.abs(first - second).max() > 1e-6) == differ
    assert not differ or name == "ward" or first[0] @ second[0] == 0


def test_an_unknown_category_is_zeros_and_a_number_is_clipped() -> None:
    inside = SHARED.encode(PATIENT, ARMS)
    assert inside[1] == {}
    arms: list[Arm] = [
        ("a", {"price": -1}),
        ("b", {"price": 100}),
        ("c", {"price": math.inf}),
    ]
    encoded = SHARED.encode({"age": 111, "arrival": "boat"}, arms)
    assert encoded[1] == {"age": 1, "arrival": 1, "price": 2}
    edge = SHARED.encode({"age": 110, "arrival": "walk-in"}, arms)[0]
    named = {name: i for i, name in enumerate(SHARED.feature_names)}
    same = [named[name] for name in ("intercept", "age", "price", "age x price")]
    assert np.array_equal(encoded[0][:, same], edge[:, same])
    assert not encoded[0][:, [i for n, i in named.items() if "=" in n]].any()
    # The counts are the caller's own.
    encoded[1]["price"] = 7
    assert SHARED.encode(PATIENT, arms)[1] == {"price": 2}


def test_a_float32_is_clipped_to_the_bounds_themselves() -> None:
    encoder = FeatureEncoder({"x": Number(0, 0.1)}, blocks=("a", "b"))
    largest = np.float32(0.1)
    assert float(largest) > 0.1
    encoded = encoder.encode({"x": largest}, [("a", {})])
    assert encoded[1] == {"x": 1}
    edge = encoder.encode({"x": 0.1}, [("a", {})])
    assert np.array_equal(encoded[0], edge[0])


def test_what_is_kept_of_the_arms_is_not_seen() -> None:
    encoder = replace(SHARED)
    arms: list[Arm] = [(name, dict(features)) for name, features in ARMS]
    first = encoder.encode(PATIENT, arms)[0]
    first[:] = 0
    assert encoder.encode(PATIENT, arms)[0].any()
    arms[0][1]["price"] = 1
    changed = encoder.encode(PATIENT, arms)[0]
    assert np.array_equal(changed, SHARED.encode(PATIENT, arms)[0])
    turned = encoder.encode(PATIENT, arms[::-1])[0]
    assert np.array_equal(turned, changed[::-1])
    # True equals the 1 that is kept, but is not allowed.
    encoder.encode(PATIENT, arms)
    arms[0][1]["price"] = True
    with pytest.raises(ValueError, match=r"arms\['ward'\]\['price'\]=True"):
        encoder.encode(PATIENT, arms)


@settings(max_examples=25)
@given(encoders())
def test_an_encoder_goes_through_json(encoder: FeatureEncoder) -> None:
    fields = to_json(encoder)
    # Not even sorted keys change the order of features.
    text = json.dumps(fields, sort_keys=True, allow_nan=False)
    assert json.loads(text) == fields
    again = from_json(FeatureEncoder, json.loads(text))
    assert again == encoder
    assert hash(again) == hash(encoder)
    assert again.feature_names == encoder.feature_names


def test_the_order_of_fields_matters() -> None:
    reverse = replace(BLOCKS, context=dict(reversed(CONTEXT.items())))
    assert reverse != BLOCKS
    assert {BLOCKS, reverse, replace(BLOCKS)} == {BLOCKS, reverse}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Number(1, 1), "high=1.0 .*above low=1.0"),
        (lambda: Number(2**53, 2**53 + 1), "high=.*above low"),
        (lambda: Number(-1e100, 1e308), "high=1e[+]308 .*to 1e100"),
        (lambda: Number(math.nan, 1), "low=nan .*from -1e100"),
        (lambda: Number(0, 10**400), "high=1000.*to 1e100"),
        (lambda: Number(False, 1), "low=False .*from -1e100"),
        (lambda: Category(["a"]), "values=.*two or more"),
        (lambda: Category(["a", "a"]), "values=.*distinct"),
        (lambda: Category("ab"), "values='ab'"),
        (lambda: Category(["a", "\x1b[2J"]), "values=.*printable"),
        (lambda: FeatureEncoder(CONTEXT), r"arm=\(\) .*told apart"),
        (lambda: FeatureEncoder(CONTEXT, {"age": ARRIVAL}), "arm=.*another name"),
        (lambda: FeatureEncoder({"a\n": ARRIVAL}), r"context='a\\n'.*printable"),
        (lambda: FeatureEncoder({"a": 3}), r"context\['a'\]=3 .*Number"),  # type: ignore[dict-item]
        (lambda: replace(BLOCKS, blocks=("a",)), "blocks=.*two or more"),
        (lambda: replace(BLOCKS, blocks="ab"), "blocks='ab' .*collection"),
        (lambda: replace(BLOCKS, blocks=[*map(str, range(251))]), "dimension=1004 "),
        (lambda: replace(SHARED, interactions=("ab",)), "interactions='ab'.*pairs"),  # type: ignore[arg-type]
        (
            lambda: replace(SHARED, interactions=(("age", "prise"),)),
            "interactions='prise' .*did you mean 'price'",
        ),
        (lambda: replace(SHARED, interactions=(("age", "age"),)), "different fields"),
        (
            lambda: replace(
                SHARED, interactions=(("age", "price"), ("price", "age"))
            ),
            "each pair once",
        ),
        (
            lambda: FeatureEncoder({"a": ARRIVAL, "a=walk-in": ARRIVAL, "intercept":
                                    Number(0, 1)}, blocks=("b", "c")),
            r"feature_names=\['b: intercept', 'c: intercept'\]",
        ),
    ],
)  # fmt: skip
def test_what_no_encoder_may_be(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("context", "arms", "message"),
    [
        ({"age": 5}, ARMS, r"context\['arrival'\] is missing.*walk-in"),
        ({**PATIENT, "agee": 1}, ARMS, r"context\['agee'\]=1 .*mean 'age'"),
        ({**PATIENT, "age": np.float32("nan")}, ARMS, r"\['age'\]=.*nan.* a number"),
        ({**PATIENT, "age": np.True_}, ARMS, r"context\['age'\]=.*True.* a number"),
        ({**PATIENT, "age": "5"}, ARMS, r"context\['age'\]='5' .*a number"),
        ({**PATIENT, "arrival": 1}, ARMS, r"context\['arrival'\]=1 .*a text"),
        ([5, "walk-in"], ARMS, "context=.*mapping"),
        (PATIENT, [], "arms=.*one arm or more"),
        (PATIENT, [("ward", {})], r"arms\['ward'\]\['price'\] is missing.*100.0"),
        (PATIENT, [("ward", {"price": 1, "x": 2})], r"arms\['ward'\]\['x'\]=2 "),
        (PATIENT, [("ward", {"price": math.nan})], r"arms\['ward'\]\['price'\]=nan"),
        (PATIENT, [("ward", {"price": [1]})], r"arms\['ward'\]\['price'\]=\[1\]"),
        (PATIENT, [ARMS[0], ARMS[0]], "arms=.*each name once"),
        (PATIENT, [("ward", None)], "arms=.*a list of names, each with a mapping"),
    ],
)
def test_what_is_not_encoded(context: Any, arms: Any, message: str) -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match=message):
            SHARED.encode(context, arms)


@pytest.mark.parametrize("shape", ["shared", "blocks", "pairs"])
def test_no_mean_reward_in_range_has_a_larger_parameter(shape: str) -> None:
    """Of least norm; and some have nearly as large a one."""
    pairs = replace(SHARED, interactions=[("age", "arrival"), ("price", "arrival")])
    encoder = {"shared": SHARED, "blocks": BLOCKS, "pairs": pairs}[shape]
    corners: dict[str, Any]
    corners = {"age": (0, 110), "arrival": ARRIVAL.values, "price": (0, 100)}
    fields, own = dict(encoder.context), dict(encoder.arm)
    names = [*fields, *own]
    rows = []
    for values in itertools.product(*(corners[name] for name in names)):
        given = dict(zip(names, values, strict=True))
        context = {name: given[name] for name in fields}
        arm = {name: given[name] for name in own}
        for name in encoder.blocks or ("ward",):
            rows.append(encoder.encode(context, [(name, arm)], 2.0)[0][0])
    X = np.array(rows)
    bound, rng = encoder.parameter_norm(0.5, 2.0), np.random.default_rng(0)
    found = []
    for _ in range(300):
        theta = rng.normal(size=X.shape[1]) * (rng.random(X.shape[1]) < 0.3)
        means = X @ theta
        if not means.any():
            continue
        theta = np.linalg.lstsq(X, 0.5 * means / np.abs(means).max(), rcond=1e-9)[0]
        found.append(np.linalg.norm(theta))
    assert max(found) <= bound * (1 + 1e-9)
    assert max(found) > 0.6 * bound


def test_other_things_that_are_not_encoded() -> None:
    with pytest.raises(ValueError, match=r"arms='hone' .*a block.*mean 'home'"):
        BLOCKS.encode(PATIENT, [("hone", {})])
    with pytest.raises(ValueError, match="max_norm=0"):
        BLOCKS.encode(PATIENT, [("home", {})], max_norm=0)


def test_features_of_a_scale_group_differ_in_a_category_or_a_block() -> None:
    encoder = FeatureEncoder(
        {"age": Number(0, 9), "ward": Category(["a", "b"])},
        blocks=("drug", "rest"),
        interactions=[("age", "ward")],
    )
    groups: dict[int, set[str]] = {}
    for group, name in zip(encoder.scale_groups, encoder.feature_names, strict=True):
        groups.setdefault(int(group), set()).add(name)
    blocks = "drug", "rest"
    assert sorted(groups) == [0, 1, 2, 3]
    assert sorted(map(sorted, groups.values())) == sorted(
        sorted(f"{block}: {name}" for block in blocks for name in names)
        for names in (
            ["intercept"],
            ["age"],
            ["ward=a", "ward=b"],
            ["age x ward=a", "age x ward=b"],
        )
    )

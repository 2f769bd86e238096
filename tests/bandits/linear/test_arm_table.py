"""The arms of a site: their versions, which are eligible, and which fit an encoder."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from flwr_fbo.bandits import ArmTable, Category, FeatureEncoder, Number

TABLE = ArmTable(
    {
        "tea": {"price": 3, "kind": "drink"},
        "cake": {"price": 4.5, "kind": "food"},
        "soup": {"price": 6, "kind": "food"},
    }
)
ENCODER = FeatureEncoder(
    {"hour": Number(0, 24)},
    {"price": Number(0, 5), "kind": Category(["food", "drink"])},
)
BLOCKS = FeatureEncoder({"hour": Number(0, 24)}, blocks=("ward", "home"))


def test_a_change_makes_a_new_table() -> None:
    longer = TABLE.add("pie", price=5, kind="food")
    shorter = longer.remove("cake")
    changed = shorter.change("soup", price=7)
    tables = (TABLE, longer, shorter, changed)
    assert [table.version for table in tables] == [1, 2, 3, 4]
    assert TABLE.names == ("tea", "cake", "soup")
    assert longer.names == ("tea", "cake", "soup", "pie")
    assert changed.names == shorter.names == ("tea", "soup", "pie")
    assert changed.eligible({"soup"}) == (("soup", {"price": 7, "kind": "food"}),)
    assert shorter.eligible({"soup"}) == (("soup", {"price": 6, "kind": "food"}),)


def test_a_table_does_not_change() -> None:
    given: dict[str, dict[str, float | str]] = {"tea": {"price": 3}}
    table = ArmTable(given)
    given["tea"]["price"] = 4
    given["cake"] = {"price": 1}
    table.eligible()[0][1]["price"] = 5
    assert table.eligible() == (("tea", {"price": 3}),)
    with pytest.raises(AttributeError):
        table.version = 2  # type: ignore[misc]


def test_the_eligible_arms_are_in_the_order_of_the_table() -> None:
    assert [name for name, _ in TABLE.eligible(["soup", "tea"])] == ["tea", "soup"]
    assert [name for name, _ in TABLE.eligible()] == [*TABLE.names]
    encoded = ENCODER.encode({"hour": 12}, TABLE.eligible({"tea", "soup"}))
    assert encoded[0].shape == (2, ENCODER.dimension)
    assert encoded[1] == {"price": 1}


def test_a_table_goes_through_json() -> None:
    of_numpy: dict[str, Any] = {"price": np.int64(2), "size": np.float32(0.5)}
    table = TABLE.remove("tea").add("tea", **of_numpy)
    fields = table.to_dict()
    text = json.dumps(fields, sort_keys=True)
    assert json.loads(text) == fields
    again = ArmTable.from_dict(json.loads(text))
    assert again == table
    assert hash(again) == hash(table)
    assert again.names == ("cake", "soup", "tea")
    assert again.version == 3


def test_tables_that_fit_an_encoder() -> None:
    TABLE.check(ENCODER)
    # Another price is clipped, and another kind is zeros.
    TABLE.add("gold", price=1e9, kind="metal").check(ENCODER)
    ArmTable({}).check(ENCODER)
    ArmTable({"home": {}}).check(BLOCKS)


@pytest.mark.parametrize(
    ("table", "encoder", "message"),
    [
        (TABLE.add("pie", price=5), ENCODER, r"arms\['pie'\]\['kind'\] is missing"),
        (TABLE.change("tea", hot="yes"), ENCODER, r"arms\['tea'\]\['hot'\]='yes'"),
        (ArmTable({"hone": {}}), BLOCKS, "arms='hone' .*did you mean 'home'"),
        (ArmTable({"home": {"price": 3}}), BLOCKS, r"arms\['home'\]\['price'\]=3"),
    ],
)
def test_tables_that_do_not_fit(
    table: ArmTable, encoder: FeatureEncoder, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        table.check(encoder)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TABLE.add("tea", price=1), "name='tea' .*`change`"),
        (lambda: TABLE.remove("te"), "name='te' .*did you mean 'tea'"),
        (lambda: TABLE.change("te", price=1), "name='te'"),
        (lambda: TABLE.eligible([["tea"]]), r"names=\['tea'\] .*a list"),  # type: ignore[list-item]
        (lambda: TABLE.eligible("tea"), "names='tea' .*a collection"),
        (lambda: TABLE.eligible(()), r"names=\(\) .*one arm or more"),
        (lambda: ArmTable({"a\n": {}}), r"arms='a\\n'.*printable"),
        (lambda: ArmTable({"a": {"\x1b": 1}}), r"arms\['a'\]='\\x1b'.*printable"),
        (lambda: ArmTable({"a": {"price": True}}), r"arms\['a'\]\['price'\]=True"),
        (lambda: ArmTable({"a": {"x": float("inf")}}), r"arms\['a'\]\['x'\]=inf"),
        (lambda: ArmTable((("a", {}), ("a", {}))), "arms=.*a distinct name each"),
        (lambda: ArmTable({"a": 3}), r"arms\['a'\]=3 .*a mapping"),  # type: ignore[dict-item]
        (lambda: ArmTable({}, version=0), "version=0"),
    ],
)
def test_what_is_not_allowed(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()

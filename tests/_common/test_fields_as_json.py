"""Settings as JSON values and back, by the parts that fields name."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pytest

from flwr_fbo._common.fields import (
    check_fields,
    from_json,
    holds,
    integer,
    number,
    ruled,
    several,
    to_json,
)
from flwr_fbo.bandits import ContinualSettings, FedGOUCBSettings, Network, NeuralPrivacy
from flwr_fbo.bandits.fed_go_ucb.study import FedGOUCBStudy
from flwr_fbo.privacy.weights import WeightSchedule


@dataclass(frozen=True)
class Inner:
    """A part with a rule."""

    size: int = field(default=1, metadata=integer(1))

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class Round:
    """One of two kinds of a shape."""

    kind: ClassVar[str] = "round"

    radius: float = field(default=1.0, metadata=number(0))


@dataclass(frozen=True)
class Square:
    """The other kind."""

    kind: ClassVar[str] = "square"

    sides: tuple[float, ...] = (1.0, 1.0)


class Point:
    """What travels in a form of its own."""

    def __init__(self, x: float) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point) and other.x == self.x

    def __hash__(self) -> int:
        return hash(self.x)

    def to_json(self) -> str:
        return f"{self.x:g}"

    @classmethod
    def from_json(cls, text: Any) -> Point:
        return cls(float(text))


def _shape(value: Any) -> type:
    return {"round": Round, "square": Square}[value["kind"]]


@dataclass(frozen=True)
class Outer:
    """All that a field may hold."""

    name: str
    inner: Inner = field(default_factory=Inner, metadata=holds(Inner))
    maybe: Inner | None = field(default=None, metadata=holds(Inner))
    many: tuple[Inner, ...] = field(default=(), metadata=several(holds(Inner)))
    shape: Any = field(default_factory=Round, metadata=holds(_shape))
    point: Point = field(default_factory=lambda: Point(0), metadata=holds(Point))
    pairs: tuple[tuple[float, float], ...] = ()
    rounds: tuple[int, ...] = field(default=(), metadata=several(integer(1)))
    free: Any = field(default=None, metadata=ruled(lambda name, value: None))

    def __post_init__(self) -> None:
        check_fields(self)


OUTER = Outer(
    "a",
    Inner(3),
    Inner(4),
    (Inner(5), Inner(6)),
    Square((1.0, 2.0)),
    Point(0.5),
    ((0.0, 1.0), (2.0, 3.0)),
    (1, 2),
)


@pytest.mark.parametrize("value", [OUTER, Outer("b"), replace(OUTER, shape=Round(2.0))])
def test_settings_come_back_as_they_were(value: Outer) -> None:
    assert from_json(Outer, json.loads(json.dumps(to_json(value)))) == value


def test_the_form_is_the_fields_by_name() -> None:
    assert to_json(OUTER) == {
        "name": "a",
        "inner": {"size": 3},
        "maybe": {"size": 4},
        "many": [{"size": 5}, {"size": 6}],
        "shape": {"kind": "square", "sides": [1.0, 2.0]},
        "point": "0.5",
        "pairs": [[0.0, 1.0], [2.0, 3.0]],
        "rounds": [1, 2],
        "free": None,
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inner": {"size": 0}}, "size=0 is not allowed"),
        ({"many": [{"size": 0}]}, "size=0 is not allowed"),
        ({"inner": 3}, "inner=3 is not allowed: of class Inner"),
        ({"inner": [3]}, "is not allowed: of class Inner"),
        ({"many": {"size": 1}}, "is not allowed"),
        ({"nam": "a"}, r"field of Outer='nam' .*did you mean 'name'"),
        ({"inner": {"sizes": 1}}, r"field of Inner='sizes' .*did you mean 'size'"),
    ],
)
def test_what_no_field_allows_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_json(Outer, {**to_json(OUTER), **changes})


def test_a_dataclass_that_no_field_names_is_not_made() -> None:
    made: Outer = from_json(Outer, {**to_json(OUTER), "free": {"size": 1}})
    assert made.free == {"size": 1}


def test_a_field_that_is_missing_is_named() -> None:
    """Its default could differ from process to process, as that of a study's id."""
    values = to_json(OUTER)
    del values["inner"]
    with pytest.raises(ValueError, match="Outer in JSON has no inner"):
        from_json(Outer, values)


def test_it_is_the_form_that_studies_have() -> None:
    privacy = NeuralPrivacy(epsilon=8.0, delta=1e-3, num_features=20)
    settings = FedGOUCBSettings(privacy=privacy)
    network = Network(3)
    study = FedGOUCBStudy(settings, 5, network.num_parameters, network, seed=1)
    assert json.dumps(to_json(study), separators=(",", ":")) == study.text
    for one in (ContinualSettings(3, 2, 1.0, 1e-5), WeightSchedule()):
        assert from_json(type(one), to_json(one)) == one

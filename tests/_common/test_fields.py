"""Rules on the fields of dataclasses."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import pytest

from flwr_fbo._common.fields import (
    FREE,
    check_fields,
    choice,
    fields_by_name,
    flag,
    fraction,
    from_json,
    holds,
    instance,
    integer,
    number,
    positive,
    seed,
    several,
    to_json,
)


@dataclass(frozen=True)
class Settings:
    """One field per rule."""

    count: int = field(default=3, metadata=integer(1, 9, cap="max_features"))
    maybe: int | None = field(default=None, metadata=integer(0, optional=True))
    step: float = field(default=1.0, metadata=positive())
    share: float = field(default=0.5, metadata=fraction())
    level: float = field(default=0.0, metadata=number(0, below=2))
    on: bool = field(default=False, metadata=flag())
    kind: Literal["a", "b"] = field(default="a", metadata=choice(Literal["a", "b"]))
    seed: int | None = field(default=None, metadata=seed())
    text: str = field(default="", metadata=instance(str))
    peak: float = field(default=1.0, metadata=number(1e-6, 1e100))
    wait: float = field(default=1.0, metadata=number(0, math.inf))
    rounds: tuple[int, ...] = field(
        default=(1,), metadata=several(integer(1, cap="max_trials"), least=1)
    )

    def __post_init__(self) -> None:
        check_fields(self)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("count", 0, "an integer >= 1"),
        ("count", 10, "at most 9"),
        ("count", True, "an integer >= 1"),
        ("maybe", -1, "an integer >= 0"),
        ("step", 0.0, "a finite number > 0"),
        ("step", math.inf, "a finite number > 0"),
        ("step", 10**400, "a finite number > 0"),
        ("share", 1.0, "a number between 0 and 1, both excluded"),
        ("level", 2.0, "a finite number >= 0 and < 2"),
        ("level", math.nan, "a finite number >= 0 and < 2"),
        ("on", 1, "True or False"),
        ("kind", "c", "one of ('a', 'b')"),
        ("seed", -1, "an integer >= 0"),
        ("text", 3, "a str"),
        ("peak", 0, "a number from 1e-6 to 1e100"),
        ("peak", math.inf, "a number from 1e-6 to 1e100"),
        ("wait", -1, "a number >= 0"),
        ("rounds", (), "a tuple"),
        ("rounds", [1], "a tuple"),
    ],
)
def test_a_value_that_breaks_a_rule_is_named(
    name: str, value: Any, allowed: str
) -> None:
    with pytest.raises(ValueError, match="not allowed") as error:
        Settings(**{name: value})
    assert str(error.value) == f"{name}={value!r} is not allowed: {allowed}."


def test_a_member_that_breaks_the_rule_of_all_is_named() -> None:
    with pytest.raises(ValueError, match=r"^rounds=0 "):
        Settings(rounds=(3, 0))


def test_infinity_is_allowed_where_it_is_the_bound() -> None:
    assert Settings(wait=math.inf).wait == math.inf


def test_numpy_numbers_become_plain() -> None:
    settings = Settings(count=np.int64(4), step=np.float32(0.5))  # type: ignore[arg-type]
    assert type(settings.count) is int
    assert type(settings.step) is float


def test_an_integer_is_capped_unless_it_is_free() -> None:
    caps = {name: one.metadata["cap"] for name, one in fields_by_name(Settings).items()}
    assert caps["count"] == "max_features"
    assert caps["maybe"] == "max_points"
    assert caps["rounds"] == "max_trials"
    assert caps["seed"] == FREE


@dataclass(frozen=True)
class Circle:
    """One of several kinds."""

    radius: float = field(metadata=positive())
    kind: ClassVar[str] = "circle"

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class Parts:
    """A field of each form that a study has."""

    settings: Settings = field(metadata=instance(Settings, part=Settings))
    shape: Circle = field(metadata=instance(Circle, part=lambda values: Circle))
    named: tuple[tuple[str, Circle], ...] = field(metadata=holds(lambda values: Circle))
    none: Settings | None = field(
        default=None, metadata=instance(Settings, optional=True, part=Settings)
    )

    def __post_init__(self) -> None:
        check_fields(self)


def test_nested_dataclasses_go_through_json() -> None:
    parts = Parts(Settings(count=7), Circle(2.0), (("a", Circle(1.0)),))
    values = json.loads(json.dumps(to_json(parts)))
    assert values["shape"] == {"kind": "circle", "radius": 2.0}
    assert values["named"] == [["a", {"kind": "circle", "radius": 1.0}]]
    assert from_json(Parts, values) == parts


@pytest.mark.parametrize(
    ("changed", "error", "text"),
    [
        ({"settings": 3}, ValueError, "settings=3 is not allowed: a Settings"),
        ({"shape": {"radius": -1.0}}, ValueError, "radius=-1.0 is not allowed"),
        ({"shape": {"radius": 1.0, "side": 2.0}}, ValueError, "side"),
        ({"other": 1}, ValueError, "other"),
        ({"settings": [3]}, ValueError, "a Settings"),
    ],
)
def test_json_that_no_dataclass_gave_is_refused(
    changed: dict[str, Any], error: type[Exception], text: str
) -> None:
    parts = Parts(Settings(), Circle(2.0), ())
    with pytest.raises(error, match=text):
        from_json(Parts, {**to_json(parts), **changed})

"""Checks that name a field, its value and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from flwr_fbo._common.validation import (
    require_all,
    require_function,
    require_instance,
    require_number,
)


class FTSLike:
    """A class whose name is an abbreviation."""


def no(value: Any, allowed: str) -> str:
    """Return the error for a field called x."""
    return f"x={value!r} is not allowed: {allowed}."


@pytest.mark.parametrize(
    ("check", "value", "allowed"),
    [
        (lambda v: require_number("x", v), math.nan, "a finite number"),
        (lambda v: require_number("x", v), math.inf, "a finite number"),
        (lambda v: require_number("x", v), 10**400, "a finite number"),
        (lambda v: require_number("x", v), True, "a finite number"),
        (lambda v: require_number("x", v), "1", "a finite number"),
        (lambda v: require_number("x", v, 0), -1, "a finite number >= 0"),
        (lambda v: require_number("x", v, 0, math.inf), -1, "a number >= 0"),
        (lambda v: require_number("x", v, most=3), 4, "a finite number <= 3"),
        (lambda v: require_number("x", v, 1e-6, 1e6), 0, "a number from 1e-6 to 1e6"),
        (
            lambda v: require_number("x", v, above=0, most=1),
            0,
            "a finite number > 0 and <= 1",
        ),
        (lambda v: require_number("x", v, 0, 1, allowed="a share"), 2, "a share"),
        (lambda v: require_instance("x", v, int, str), None, "an int or a str"),
        (lambda v: require_instance("x", v, FTSLike), 3, "an FTSLike"),
        (lambda v: require_instance("x", v, dict, allowed="keys"), 3, "keys"),
        (lambda v: require_all("x", v, str, allowed="texts"), ["a", 1], "texts"),
        (lambda v: require_all("x", v, str, allowed="texts"), "ab", "texts"),
        (lambda v: require_function("x", v), None, "a function"),
        (lambda v: require_function("x", v, "a key", optional=True), 3, "a key"),
    ],
)
def test_what_is_not_allowed_is_named(
    check: Callable[[Any], None], value: Any, allowed: str
) -> None:
    with pytest.raises(ValueError, match="not allowed") as error:
        check(value)
    assert str(error.value) == no(value, allowed)


def test_what_is_allowed_passes() -> None:
    require_number("x", 0.0, 0, 1)
    require_number("x", math.inf, 0, math.inf)
    require_number("x", -math.inf, -math.inf, 0)
    require_instance("x", None, int, optional=True)
    require_instance("x", True, int)
    require_all("x", [], str, allowed="texts")
    require_all("x", ("a", "b"), str, allowed="texts")
    require_function("x", len)
    require_function("x", None, optional=True)

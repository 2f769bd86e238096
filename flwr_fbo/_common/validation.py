"""Checks whose error names the field, its value and what is allowed."""

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import Collection, Iterable
from typing import Any, TypeGuard, get_args


def require(condition: bool, field: str, value: object, allowed: str) -> None:
    """Raise ValueError unless ``condition`` holds."""
    if not condition:
        raise ValueError(f"{field}={value!r} is not allowed: {allowed}.")


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether ``value`` is a real number, not a bool and not NaN."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    # Of an int that no float holds, isnan would raise OverflowError.
    return isinstance(value, int) or not math.isnan(value)


def require_choice(field: str, value: object, literal: Any) -> None:
    """Raise ValueError unless ``value`` is one of those of a ``Literal``."""
    choices = get_args(literal)
    require(value in choices, field, value, f"one of {choices}")


def require_int(field: str, value: Any, minimum: int, most: int | None = None) -> None:
    """Raise ValueError unless ``value`` is an int from ``minimum`` to ``most``."""
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        require(False, field, value, f"an integer >= {minimum}")
    if most is not None and value > most:
        require(False, field, value, f"at most {most}")


def require_bool(field: str, value: Any) -> None:
    """Raise ValueError unless ``value`` is a bool."""
    require(isinstance(value, bool), field, value, "True or False")


def require_fraction(field: str, value: Any) -> None:
    """Raise ValueError unless ``value`` is a number between 0 and 1, both excluded."""
    ok = is_number(value) and 0 < value < 1
    require(ok, field, value, "a number between 0 and 1, both excluded")


def require_index(field: str, value: Any, length: int) -> None:
    """Raise ValueError unless ``value`` is an int from 0 to ``length - 1``."""
    is_int = isinstance(value, int) and not isinstance(value, bool)
    require(is_int and 0 <= value < length, field, value, f"0 to {length - 1}")


def require_positive(field: str, value: Any) -> None:
    """Raise ValueError unless ``value`` is a positive, finite number."""
    ok = is_number(value) and math.isfinite(value) and value > 0
    require(ok, field, value, "a finite number > 0")


def require_finite(field: str, value: Any) -> None:
    """Raise ValueError unless ``value`` is a number that a float can hold."""
    ok = is_number(value) and abs(value) <= sys.float_info.max
    require(ok, field, value, "a finite number")


def require_name(field: str, value: Any) -> None:
    """Raise ValueError unless ``value`` is a text that can be seen."""
    ok = isinstance(value, str) and value.isprintable() and value.strip() != ""
    require(ok, field, value, "a printable name, not empty")


def require_seed(field: str, value: Any) -> None:
    """Raise ValueError unless ``value`` is None or an int from 0 to 2**128 - 1."""
    if value is not None:
        require_int(field, value, 0)
        require(value < 2**128, field, value, "an integer below 2**128")


def require_known(field: str, value: Any, known: Collection[str]) -> None:
    """Raise ValueError unless ``value`` is a known name; it has the nearest one."""
    if not (isinstance(value, str) and value in known):
        require(False, field, value, nearest(value, known))


def nearest(word: object, known: Iterable[str]) -> str:
    """Return the known words for an error, and which of them was meant, perhaps."""
    names = sorted(known)
    return f"one of {names}{did_you_mean(word, names)}"


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Return which of the known words was meant, for an error, or nothing."""
    close = difflib.get_close_matches(str(word), sorted(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""

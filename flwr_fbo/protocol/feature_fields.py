"""Fields of a context or an arm: how each value is encoded, with norm 1 at most."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from numbers import Real
from typing import Any

import numpy as np

from flwr_fbo._validation import require, require_finite


@dataclass(frozen=True)
class Number:
    """A field that holds a number, scaled linearly from its bounds to [-1, 1].

    Examples
    --------
    >>> from flwr_fbo import Number
    >>> Number(0, 110)
    Number(low=0.0, high=110.0)

    Attributes
    ----------
    low : float
        Lower bound, finite. Smaller numbers are clipped to it.
    high : float
        Upper bound, finite, above ``low``. Larger numbers are clipped to it.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            require_finite(name, getattr(self, name))
            object.__setattr__(self, name, float(getattr(self, name)))
        ok = self.low < self.high and math.isfinite(self.high - self.low)
        allowed = f"above low={self.low}, at a distance that a float holds"
        require(ok, "high", self.high, allowed)

    @property
    def allowed(self) -> str:
        """What a value may be, for an error."""
        return f"a number; it is clipped to [{self.low}, {self.high}]"

    def labels(self, name: str) -> list[str]:
        """Return the name of each coordinate of the field's encoding."""
        return [name]

    def encode(self, value: Any, where: str) -> tuple[list[float], bool]:
        """Return the encoding and whether the value is inside the bounds.

        ValueError names ``where`` if the value is not a number.
        """
        number = plain(value)
        is_number = isinstance(number, Real) and not isinstance(number, bool)
        if not is_number or number != number:
            require(False, where, value, self.allowed)
        clipped = float(min(max(number, self.low), self.high))
        share = (clipped - self.low) / (self.high - self.low)
        return [2 * share - 1], bool(self.low <= number <= self.high)


@dataclass(frozen=True)
class Category:
    """A field that holds one of several texts, encoded as a one-hot vector.

    Examples
    --------
    >>> from flwr_fbo import Category
    >>> Category(["walk-in", "ambulance"])
    Category(values=('walk-in', 'ambulance'))

    Attributes
    ----------
    values : sequence of str
        Known categories: two or more, distinct and printable; kept as a tuple. Any
        other text is encoded as zeros.
    """

    values: Sequence[str]

    def __post_init__(self) -> None:
        allowed = "a list of two or more distinct, printable texts"
        ok = isinstance(self.values, tuple | list) and len(self.values) >= 2
        require(ok, "values", self.values, allowed)
        texts = all(isinstance(v, str) and v.isprintable() for v in self.values)
        ok = texts and len(set(self.values)) == len(self.values)
        require(ok, "values", self.values, allowed)
        object.__setattr__(self, "values", tuple(self.values))

    @property
    def allowed(self) -> str:
        """What a value may be, for an error."""
        return f"a text; {self.values} are told apart"

    def labels(self, name: str) -> list[str]:
        """Return the name of each coordinate of the field's encoding."""
        return [f"{name}={value}" for value in self.values]

    def encode(self, value: Any, where: str) -> tuple[list[float], bool]:
        """Return the encoding and whether the category is known.

        ValueError names ``where`` if the value is not a text.
        """
        if not isinstance(value, str):
            require(False, where, value, self.allowed)
        return [float(value == known) for known in self.values], value in self.values


Field = Number | Category


def plain(value: Any) -> Any:
    """Return a number as an int or float of Python, and anything else as it is.

    numpy rounds bounds to float32 to compare them with a float32: it could exceed them.
    Other numbers, as fractions, could not be recorded.
    """
    if isinstance(value, np.generic):
        value = value.item()  # of a long double itself
    if isinstance(value, Real) and not isinstance(value, int | float):
        return float(value)
    return value


def field_to_dict(field: Field) -> dict[str, Any]:
    """Return a field as JSON values."""
    if isinstance(field, Category):
        return {"values": list(field.values)}
    return asdict(field)


def field_from_dict(fields: Mapping[str, Any]) -> Field:
    """Return the field that `field_to_dict` gave."""
    return Category(**fields) if "values" in fields else Number(**fields)

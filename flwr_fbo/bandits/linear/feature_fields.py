"""Fields of a context or an arm: how each value is encoded, with norm 1 at most."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.conversion import mapping, names, plain
from flwr_fbo._common.fields import check_fields, number
from flwr_fbo._common.validation import (
    did_you_mean,
    is_number,
    require,
    require_name,
)

Columns = tuple[FloatArray, NDArray[np.bool_]]

_USUAL_NUMBERS = {int, float, np.int64, np.float64}


@dataclass(frozen=True)
class Number:
    """A field that holds a number, scaled linearly from its bounds to [-1, 1].

    Examples
    --------
    >>> from flwr_fbo.bandits import Number
    >>> Number(0, 110)
    Number(low=0.0, high=110.0, missing=None)

    Attributes
    ----------
    low : float
        Lower bound, from -1e100 to 1e100. Smaller numbers are clipped to it.
    high : float
        Upper bound, above ``low``, to 1e100. Larger numbers are clipped to it.
    missing : float, optional
        Number in place of a missing value: None, NaN, or a field that is not given. An
        error unless given. To tell missing values apart, declare a `Category` beside
        the number.
    """

    low: float = field(metadata=number(-1e100, 1e100))
    high: float = field(metadata=number(-1e100, 1e100))
    missing: float | None = field(
        default=None, metadata=number(-1e100, 1e100, optional=True)
    )

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("low", "high"):
            object.__setattr__(self, name, float(getattr(self, name)))
        require(self.low < self.high, "high", self.high, f"above low={self.low}")
        if self.missing is not None:
            is_valid = self.low <= self.missing <= self.high
            expected = f"a number from {self.low} to {self.high}"
            require(is_valid, "missing", self.missing, expected)
            object.__setattr__(self, "missing", float(self.missing))

    @property
    def allowed(self) -> str:
        """Text for errors: which values are allowed."""
        return f"a number; it is clipped to [{self.low}, {self.high}]"

    def labels(self, name: str) -> list[str]:
        """Return the name of each coordinate of the field's encoding."""
        return [name]

    def encode(self, value: Any, where: str) -> tuple[list[float], bool]:
        """Return the encoding and whether the value is inside the bounds.

        ValueError names ``where`` if the value is not a number.
        """
        number = plain(value)
        if self.missing is not None and is_missing(number):
            number = self.missing
        if not is_number(number):
            require(False, where, value, self.allowed)
        clipped = float(min(max(number, self.low), self.high))
        share = (clipped - self.low) / (self.high - self.low)
        return [2 * share - 1], bool(self.low <= number <= self.high)

    def encode_plain(self, values: Sequence[Any]) -> Columns | None:
        """Return encodings and which are inside, or None unless all are usual numbers.

        Shapes (T, 1) and (T,): what `encode` gives, to the bit.
        """
        numbers = np.array(values)
        usual = {*map(type, values)} <= _USUAL_NUMBERS and numbers.dtype.kind in "if"
        if not usual or np.isnan(numbers).any():
            return None
        share = (np.clip(numbers, self.low, self.high) - self.low) / (
            self.high - self.low
        )
        inside = (numbers >= self.low) & (numbers <= self.high)
        return (2 * share - 1)[:, None], inside


@dataclass(frozen=True)
class Category:
    """A field that holds one of several texts, encoded as a one-hot vector.

    Examples
    --------
    >>> from flwr_fbo.bandits import Category
    >>> Category(["walk-in", "ambulance"])
    Category(values=('walk-in', 'ambulance'), missing=None)

    Attributes
    ----------
    values : sequence of str
        Known categories: two or more, distinct and printable; kept as a tuple. Any
        other text is encoded as zeros.
    missing : str, optional
        Text in place of a missing value: None, NaN, or a field that is not given. Any
        text: one of ``values``, or another, which is encoded as zeros. An error unless
        given.
    """

    values: Sequence[str]
    missing: str | None = None

    def __post_init__(self) -> None:
        expected = "a list of two or more distinct, printable texts"
        values = tuple(names("values", self.values))
        is_valid = len(values) >= 2 and all(value.isprintable() for value in values)
        require(
            is_valid and len(set(values)) == len(values), "values", values, expected
        )
        object.__setattr__(self, "values", values)
        if self.missing is not None:
            require_name("missing", self.missing)

    @property
    def allowed(self) -> str:
        """Text for errors: which values are allowed."""
        return f"a text; {self.values} are told apart"

    def labels(self, name: str) -> list[str]:
        """Return the name of each coordinate of the field's encoding."""
        return [f"{name}={value}" for value in self.values]

    def encode(self, value: Any, where: str) -> tuple[list[float], bool]:
        """Return the encoding and whether the category is known.

        ValueError names ``where`` if the value is not a text.
        """
        if self.missing is not None and is_missing(plain(value)):
            value = self.missing
        if not isinstance(value, str):
            require(False, where, value, self.allowed)
        return [float(value == known) for known in self.values], value in self.values

    def encode_plain(self, values: Sequence[Any]) -> Columns | None:
        """Return encodings and which are inside, or None unless all are usual texts.

        Shapes (T, C) and (T,): what `encode` gives.
        """
        if not {*map(type, values)} <= {str}:
            return None
        numbers = {known: i for i, known in enumerate(self.values)}
        index = np.array([numbers.get(value, -1) for value in values], dtype=np.int64)
        encodings = index[:, None] == np.arange(len(numbers))
        return encodings.astype(float), index >= 0


Field = Number | Category
Fields = Mapping[str, Field] | Sequence[tuple[str, Field]]


# Actions, and how many values are outside, by field: see `FeatureEncoder.encode`.
Encoded = tuple[FloatArray, dict[str, int]]


def is_missing(value: Any) -> bool:
    """Return whether a value is None or NaN."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def field_kind(values: Mapping[str, Any]) -> type[Field]:
    """Return the class of a field in JSON."""
    return Category if "values" in values else Number


def pairs_of(where: str, given: Any) -> list[tuple[str, Any]]:
    """Return the items of a mapping, or pairs as JSON has them; each name once."""
    expected = "a mapping, or pairs with a distinct name each"
    if hasattr(given, "to_dict"):  # a row for each, or a row
        given = given.to_dict(*["index"] * (given.ndim - 1))
    pairs = given.items() if isinstance(given, Mapping) else given
    is_valid = isinstance(given, Mapping | tuple | list)
    is_valid = is_valid and all(
        isinstance(p, tuple | list) and len(p) == 2 for p in pairs
    )
    require(is_valid, where, given, expected)
    for name, _ in pairs:
        require_name(where, name)
    require(len({name for name, _ in pairs}) == len(pairs), where, given, expected)
    return [(name, value) for name, value in pairs]


def encoded_row(
    where: str, values: Mapping[str, Any], fields: Mapping[str, Field]
) -> tuple[list[float], list[str]]:
    """Return the encodings in a row, and the fields whose values are outside."""
    row: list[float] = []
    outside: list[str] = []
    for name, column in fields.items():
        if name not in values and column.missing is None:
            raise ValueError(f"{where}[{name!r}] is missing: give {column.allowed}.")
        encoding, is_inside = column.encode(values.get(name), f"{where}[{name!r}]")
        row += encoding
        if not is_inside:
            outside.append(name)
    for name in values:
        if name not in fields:
            expected = f"a field of {[*fields]}{did_you_mean(name, fields)}"
            require(False, f"{where}[{name!r}]", values[name], expected)
    return row, outside


def encoded_rows(
    where: str,
    rows: Sequence[Mapping[str, Any]],
    fields: Mapping[str, Field],
    first: int = 0,
) -> tuple[FloatArray, Counter[str]]:
    """Return what `encoded_row` does for T rows, and how many are outside, by field.

    An error has the row's number, which is ``first`` for the first one.
    """
    columns = _encoded_columns(rows, fields)
    if columns is not None:
        return columns
    # Slower, but it takes unusual numbers, and says what is wrong.
    encodings: list[list[float]] = []
    outside: Counter[str] = Counter()
    for i, row in enumerate(rows, first):
        here = f"{where}[{i}]"
        encoding, clipped = encoded_row(here, mapping(here, row), fields)
        encodings.append(encoding)
        outside.update(clipped)
    return np.array(encodings), outside


def _encoded_columns(
    rows: Sequence[Mapping[str, Any]], fields: Mapping[str, Field]
) -> tuple[FloatArray, Counter[str]] | None:
    """Return the same if all rows have the fields, with plain numbers and texts."""
    if not all(issubclass(kind, Mapping) for kind in {*map(type, rows)}):
        return None
    if any(row.keys() != fields.keys() for row in rows):
        return None
    columns, outside = [np.empty((len(rows), 0))], Counter[str]()
    for name, column in fields.items():
        encoded = column.encode_plain([row[name] for row in rows])
        if encoded is None:
            return None
        encodings, inside = encoded
        columns.append(encodings)
        outside[name] = len(rows) - int(inside.sum())
    return np.hstack(columns), +outside

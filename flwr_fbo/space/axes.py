"""One parameter as one axis: its values laid out on [0, 1].

Each kind of axis says where a value lies (`to_unit`, which raises ValueError with what
is allowed), which value is at a place (`from_unit`), and which place near another one
separates two values (`border`). Axes with gaps between their values also move many
places onto them (`centers`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    distribution_to_json,
    json_to_distribution,
)

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.conversion import plain
from flwr_fbo._common.validation import MOST, refuse, require

# Continuous axes are read on this grid: fine enough for any tuning, coarse enough that
# rounding errors of exp and log cannot move a value off its grid point.
_RESOLUTION = 2.0**40


@dataclass(frozen=True)
class ContinuousAxis:
    """Every number from low to high, by its size or its logarithm."""

    low: float
    high: float
    log: bool

    def to_unit(self, value: Any) -> float:
        """Return where a value lies; raise ValueError with what is allowed."""
        v = _real(value)
        if not self.low <= v <= self.high:
            raise ValueError(f"a number from {self.low} to {self.high}")
        return self._cell(v) / _RESOLUTION

    def from_unit(self, u: float) -> float:
        """Return the value at ``u``."""
        cell = round(u * _RESOLUTION)
        if cell <= 0 or cell >= _RESOLUTION:
            return self.low if cell <= 0 else self.high
        u = cell / _RESOLUTION
        if self.log:
            # low exp(t), the inverse of `_log_ratio`, without lost digits.
            low, t = self.low, u * _log_ratio(self.high, self.low)
            v = low + low * math.expm1(t) if t < 0.5 else math.exp(math.log(low) + t)
        else:
            v = self.low + u * (self.high - self.low)
        # The shortest decimal of the cell: a value that a person wrote, 0.1 or 250,
        # comes back as it was written. None is farther off than a cell, and rounding.
        width = (
            v * _log_ratio(self.high, self.low) if self.log else self.high - self.low
        )
        size = v if self.log else max(abs(self.low), abs(self.high))
        reach = width / _RESOLUTION + size / _RESOLUTION / 4.0
        leading = -math.floor(math.log10(abs(v))) if v else 0
        for digits in range(leading, leading + 17):
            decimal = round(v, digits)
            is_near = abs(decimal - v) <= reach and self.low <= decimal <= self.high
            if is_near and self._cell(decimal) == cell:
                return decimal
        return min(max(v, self.low), self.high)

    def _cell(self, v: float) -> int:
        """Return which point of the grid a value is nearest to."""
        if self.log:
            u = _log_ratio(v, self.low) / _log_ratio(self.high, self.low)
        else:
            u = (v - self.low) / (self.high - self.low)
        return min(round(u * _RESOLUTION), int(_RESOLUTION))

    def border(self, u: float) -> float:
        """Return ``u``: it separates two values."""
        return u


@dataclass(frozen=True)
class _BinnedAxis:
    """Choices, or low, low + step, ..., high: each has an equal share of the axis."""

    distribution: CategoricalDistribution | FloatDistribution | IntDistribution
    num_values: int

    def to_unit(self, value: Any) -> float:
        found = self.distribution
        if isinstance(found, CategoricalDistribution):
            if value not in found.choices:
                raise ValueError(f"one of {list(found.choices)}")
            return (found.choices.index(value) + 0.5) / self.num_values
        v, low, high, step = _real(value), found.low, found.high, found.step
        assert step is not None
        if low <= v <= high:
            index = round((v - low) / step)
            if abs(low + index * step - v) <= 1e-8 * step:
                return (index + 0.5) / self.num_values
        raise ValueError(f"{low} to {high} in steps of {step}")

    def from_unit(self, u: float) -> Any:
        found = self.distribution
        index = min(int(u * self.num_values), self.num_values - 1)
        if isinstance(found, CategoricalDistribution):
            return found.choices[index]
        assert found.step is not None
        if isinstance(found, IntDistribution):
            return found.low + index * found.step
        # As a person writes it: 3 * 0.1 would exceed 0.3.
        return float(Decimal(str(found.low)) + index * Decimal(str(found.step)))

    def centers(self, u: FloatArray) -> FloatArray:
        bins = np.minimum(np.floor(u * self.num_values), self.num_values - 1)
        return np.asarray((bins + 0.5) / self.num_values)

    def border(self, u: float) -> float:
        return math.floor(u * self.num_values + 0.5) / self.num_values

    def values(self) -> list[Any]:
        """Return all values, in order."""
        places = (np.arange(self.num_values) + 0.5) / self.num_values
        return [self.from_unit(float(u)) for u in places]


@dataclass(frozen=True)
class _LogIntAxis:
    """Integers from low to high: each has a share in proportion to its logarithm."""

    low: int
    high: int

    def to_unit(self, value: Any) -> float:
        v = _real(value)
        if not self.low <= v <= self.high or v != round(v):
            raise ValueError(f"an integer from {self.low} to {self.high}")
        return self._place(v)

    def from_unit(self, u: float) -> int:
        v = round((self.low - 0.5) * math.exp(u * self._log_range))
        return min(max(v, self.low), self.high)

    def centers(self, u: FloatArray) -> FloatArray:
        v = np.rint((self.low - 0.5) * np.exp(u * self._log_range))
        v = np.clip(v, self.low, self.high)
        return np.asarray(np.log(v / (self.low - 0.5)) / self._log_range)

    def values(self) -> list[int]:
        """Return all values, in order."""
        return list(range(self.low, self.high + 1))

    @property
    def num_values(self) -> int:
        return self.high - self.low + 1

    def border(self, u: float) -> float:
        v = self.from_unit(u)
        return min(self._place(v - 0.5), self._place(v + 0.5), key=lambda b: abs(b - u))

    def _place(self, v: float) -> float:
        return math.log(v / (self.low - 0.5)) / self._log_range

    @property
    def _log_range(self) -> float:
        return math.log((self.high + 0.5) / (self.low - 0.5))


Axis = ContinuousAxis | _BinnedAxis | _LogIntAxis


def _real(value: Any) -> float:
    if not isinstance(value, Real):
        raise ValueError("a number")
    return float(value)


def _log_ratio(v: float, low: float) -> float:
    """Return log(v / low) for v >= low > 0, exact for narrow ranges and for huge."""
    excess = (v - low) / low
    return math.log1p(excess) if excess < 1 else math.log(v) - math.log(low)


def plain_distribution(name: str, distribution: BaseDistribution) -> BaseDistribution:
    """Return the same distribution as Optuna's present class, of Python's numbers.

    Optuna's `UniformDistribution` and its like are older names of the same ones.

    Raises
    ------
    ValueError
        If it is of another kind, or a bound, step or choice is not finite.
    """
    field, kind = f"space[{name!r}]", distribution
    if isinstance(kind, CategoricalDistribution):
        values = tuple(map(plain, kind.choices))
        kind = CategoricalDistribution(values)
    else:
        expected = "an Optuna Float-, Int- or CategoricalDistribution"
        numeric = isinstance(kind, FloatDistribution | IntDistribution)
        require(numeric, field, kind, expected)
        assert isinstance(kind, FloatDistribution | IntDistribution)
        values = kind.low, kind.high, kind.step
    for value in values:
        if isinstance(value, float) and not math.isfinite(value):
            expected = f"finite numbers, and there is {value}"
            refuse(field, distribution, expected)
    # Optuna's older classes are children of these two.
    for present in (FloatDistribution, IntDistribution):
        if isinstance(kind, present) and type(kind) is not present:
            made: Any = present
            kind = made(kind.low, kind.high, kind.log, kind.step)
    return kind


def make_axis(name: str, distribution: BaseDistribution) -> Axis:
    """Return the axis of a distribution.

    Raises
    ------
    ValueError
        If it has a single value, repeats a choice, does not survive JSON, or is too
        large to count.
    """
    field = f"space[{name!r}]"
    expected = "at least two values (write a constant into the objective instead)"
    require(not distribution.single(), field, distribution, expected)
    expected = (
        "what JSON keeps as it is: choices that are numbers, strings, bools or None, "
        "and a step that divides the range"
    )
    try:
        again = json_to_distribution(distribution_to_json(distribution))
    except TypeError:
        again = None
    require(bool(again == distribution), field, distribution, expected)
    if isinstance(distribution, CategoricalDistribution):
        choices = tuple(distribution.choices)
        distinct = all(a != b for i, a in enumerate(choices) for b in choices[:i])
        require(distinct, field, distribution, "choices that differ from each other")
        return _BinnedAxis(distribution, len(choices))
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    low, high = distribution.low, distribution.high
    # Twice that: a value that is rounded to a short decimal must not overflow.
    is_finite = 2 * max(abs(low), abs(high)) <= MOST
    require(is_finite, field, distribution, "a finite range, with bounds below 8e307")
    if isinstance(distribution, FloatDistribution) and distribution.step is None:
        return ContinuousAxis(low, high, distribution.log)
    num_values = round((high - low) / (distribution.step or 1)) + 1
    fits = max(num_values, abs(low), abs(high)) < _RESOLUTION
    require(fits, field, distribution, "values and bounds below 2**40 in number")
    if distribution.log:
        return _LogIntAxis(int(low), int(high))
    return _BinnedAxis(distribution, num_values)


def nearest_number(distribution: BaseDistribution, value: float) -> Any:
    """Return the number of a distribution that is nearest to a value."""
    assert isinstance(distribution, (IntDistribution, FloatDistribution))
    low, high, step = distribution.low, distribution.high, distribution.step
    inside = min(max(value, low), high)
    if step is None:
        return float(inside)
    num_steps = min(round((inside - low) / step), int((high - low) / step + 1e-9))
    # 0.1 + 6 * 0.1 exceeds 0.7.
    return min(low + step * num_steps, high)


def axis_edges(axis: Axis, parts: int) -> FloatArray | None:
    """Return the edges of ``parts`` parts of an axis, or None where it has too few."""
    inner = [axis.border(i / parts) for i in range(1, parts)]
    edges = np.array([0.0, *inner, 1.0])
    return edges if bool(np.all(np.diff(edges) > 0)) else None

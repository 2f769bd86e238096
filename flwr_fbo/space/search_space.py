"""The search space: a dict of Optuna distributions, to and from the unit cube.

Each parameter is one axis of the cube [0, 1]^D, in the order of the dict. Numbers may
be on a log scale; integers, stepped floats and categories share the axis among their
values in equal bins (integers on a log scale in bins of equal ratio). A category keeps
its place in the list of choices, so list the choices that behave alike side by side.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from numbers import Real
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    distribution_to_json,
    json_to_distribution,
)

from flwr_fbo._validation import require

Params = dict[str, Any]
FloatArray = NDArray[np.float64]

# Continuous axes are read on this grid: fine enough for any tuning, coarse enough that
# rounding errors of exp and log cannot move a value off its grid point.
_RESOLUTION = 2.0**40
# And what agents try lies on this one.
_TRIED = 2.0**20


class _Axis(Protocol):
    """One parameter: its values laid out on [0, 1]."""

    continuous: ClassVar[bool]

    def to_unit(self, value: Any) -> float:
        """Return where a value lies; raise ValueError with what is allowed."""

    def from_unit(self, u: float) -> Any:
        """Return the value at ``u``."""

    def centers(self, u: FloatArray) -> FloatArray:
        """Return where the values at many ``u`` lie; a continuous axis moves none."""

    def border(self, u: float) -> float:
        """Return the place nearest to ``u`` where one value ends and another begins."""


@dataclass(frozen=True)
class _ContinuousAxis:
    low: float
    high: float
    log: bool
    continuous: ClassVar[bool] = True

    def to_unit(self, value: Any) -> float:
        v = _real(value)
        if not self.low <= v <= self.high:
            raise ValueError(f"a number from {self.low} to {self.high}")
        return self._cell(v) / _RESOLUTION

    def from_unit(self, u: float) -> float:
        cell = round(u * _RESOLUTION)
        if cell <= 0 or cell >= _RESOLUTION:
            return self.low if cell <= 0 else self.high
        u = cell / _RESOLUTION
        if self.log:
            v = _times_exp(self.low, u * _log_ratio(self.high, self.low))
        else:
            v = self.low + u * (self.high - self.low)
        # The shortest decimal of the cell: a value that a person wrote, 0.1 or 250,
        # comes back as it was written.
        leading = -math.floor(math.log10(abs(v))) if v else 0
        for digits in range(leading, leading + 17):
            decimal = round(v, digits)
            if self.low <= decimal <= self.high and self._cell(decimal) == cell:
                return decimal
        return min(max(v, self.low), self.high)

    def _cell(self, v: float) -> int:
        """Return which point of the grid a value is nearest to."""
        if self.log:
            u = _log_ratio(v, self.low) / _log_ratio(self.high, self.low)
        else:
            u = (v - self.low) / (self.high - self.low)
        return min(round(u * _RESOLUTION), int(_RESOLUTION))

    def centers(self, u: FloatArray) -> FloatArray:
        return u

    def border(self, u: float) -> float:
        return u


@dataclass(frozen=True)
class _SteppedAxis:
    """Values low, low + step, ..., high; ints where these are."""

    low: float
    high: float
    step: float
    num_values: int
    continuous: ClassVar[bool] = False

    def to_unit(self, value: Any) -> float:
        v = _real(value)
        if self.low <= v <= self.high:
            index = round((v - self.low) / self.step)
            if abs(self.low + index * self.step - v) <= 1e-8 * self.step:
                return (index + 0.5) / self.num_values
        raise ValueError(f"{self.low} to {self.high} in steps of {self.step}")

    def from_unit(self, u: float) -> float:
        # 3 * 0.1 exceeds 0.3: the last value is `high` itself.
        return min(self.low + _bin(u, self.num_values) * self.step, self.high)

    def centers(self, u: FloatArray) -> FloatArray:
        return _bin_centers(u, self.num_values)

    def border(self, u: float) -> float:
        return _bin_border(u, self.num_values)


@dataclass(frozen=True)
class _LogIntAxis:
    low: int
    high: int
    continuous: ClassVar[bool] = False

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

    def border(self, u: float) -> float:
        v = self.from_unit(u)
        return min(self._place(v - 0.5), self._place(v + 0.5), key=lambda b: abs(b - u))

    def _place(self, v: float) -> float:
        return math.log(v / (self.low - 0.5)) / self._log_range

    @property
    def _log_range(self) -> float:
        return math.log((self.high + 0.5) / (self.low - 0.5))


@dataclass(frozen=True)
class _CategoricalAxis:
    choices: tuple[Any, ...]
    continuous: ClassVar[bool] = False

    def to_unit(self, value: Any) -> float:
        if value not in self.choices:
            raise ValueError(f"one of {list(self.choices)}")
        return (self.choices.index(value) + 0.5) / len(self.choices)

    def from_unit(self, u: float) -> Any:
        return self.choices[_bin(u, len(self.choices))]

    def centers(self, u: FloatArray) -> FloatArray:
        return _bin_centers(u, len(self.choices))

    def border(self, u: float) -> float:
        return _bin_border(u, len(self.choices))


def _real(value: Any) -> float:
    if not isinstance(value, Real):
        raise ValueError("a number")
    return float(value)


def _log_ratio(v: float, low: float) -> float:
    """Return log(v / low) for v >= low > 0, exact for narrow ranges and for huge."""
    excess = (v - low) / low
    return math.log1p(excess) if excess < 1 else math.log(v) - math.log(low)


def _times_exp(low: float, t: float) -> float:
    """Return low exp(t) for t >= 0, the inverse of `_log_ratio`."""
    return low + low * math.expm1(t) if t < 0.5 else math.exp(math.log(low) + t)


def _bin(u: float, num_values: int) -> int:
    return min(int(u * num_values), num_values - 1)


def _bin_centers(u: FloatArray, num_values: int) -> FloatArray:
    bins = np.minimum(np.floor(u * num_values), num_values - 1)
    return np.asarray((bins + 0.5) / num_values)


def _bin_border(u: float, num_values: int) -> float:
    return math.floor(u * num_values + 0.5) / num_values


def _make_axis(name: str, distribution: BaseDistribution) -> _Axis:
    field = f"space[{name!r}]"
    if not isinstance(distribution, BaseDistribution):
        allowed = "an Optuna Float-, Int- or CategoricalDistribution"
        require(False, field, distribution, allowed)
    allowed = "at least two values (write a constant into the objective instead)"
    require(not distribution.single(), field, distribution, allowed)
    allowed = (
        "what JSON keeps as it is: choices that are numbers, strings, bools or None, "
        "and a step that divides the range"
    )
    require(_survives_json(distribution), field, distribution, allowed)
    if isinstance(distribution, CategoricalDistribution):
        choices = tuple(distribution.choices)
        distinct = all(a != b for i, a in enumerate(choices) for b in choices[:i])
        require(distinct, field, distribution, "choices that differ from each other")
        return _CategoricalAxis(choices)
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    low, high = distribution.low, distribution.high
    require(math.isfinite(high - low), field, distribution, "a finite range")
    if isinstance(distribution, FloatDistribution) and distribution.step is None:
        return _ContinuousAxis(low, high, distribution.log)
    num_values = round((high - low) / (distribution.step or 1)) + 1
    fits = max(num_values, abs(low), abs(high)) < _RESOLUTION
    require(fits, field, distribution, "values and bounds below 2**40 in number")
    if distribution.log:
        return _LogIntAxis(int(low), int(high))
    return _SteppedAxis(low, high, distribution.step or 1, num_values)


def _survives_json(distribution: BaseDistribution) -> bool:
    try:
        again = json_to_distribution(distribution_to_json(distribution))
    except TypeError:
        return False
    return bool(again == distribution)


@dataclass(frozen=True, eq=False)
class SubRegions:
    """Boxes that tile the unit cube (DP-FTS-DE, section 3.3).

    Attributes
    ----------
    edges : tuple of D ndarrays
        Where each axis is cut, from 0 to 1, both included.
    lower, upper : ndarray of shape (P, D)
        The corners of each box. A point on a border belongs to the upper box.
    """

    edges: tuple[FloatArray, ...]
    lower: FloatArray
    upper: FloatArray

    @classmethod
    def from_edges(cls, edges: Sequence[FloatArray]) -> SubRegions:
        """Return every box between neighbouring edges, the last axis fastest."""
        lower = np.array(list(product(*(e[:-1] for e in edges))))
        upper = np.array(list(product(*(e[1:] for e in edges))))
        return cls(tuple(edges), lower, upper)

    def __len__(self) -> int:
        return len(self.lower)

    def index(self, x: FloatArray) -> NDArray[np.intp]:
        """Return the box of each point; ``x`` has shape (n, D), the result (n,)."""
        cells = [
            np.searchsorted(edges[1:-1], x[:, d], side="right")
            for d, edges in enumerate(self.edges)
        ]
        return np.ravel_multi_index(tuple(cells), [len(e) - 1 for e in self.edges])


class SearchSpace:
    """Named parameters on the unit cube.

    Parameters
    ----------
    distributions : mapping of str to Optuna distribution
        ``FloatDistribution``, ``IntDistribution`` or ``CategoricalDistribution``; at
        least one parameter, each with at least two values.

    Raises
    ------
    ValueError
        If the mapping is empty, or a distribution is of another kind, has a single
        value, repeats a choice, does not survive JSON, or is too large to count.

    Notes
    -----
    Integers, steps and categories survive the way to the cube and back exactly, as
    does every value that ``from_unit`` returns, and a continuous value as a person
    would write it (up to about nine digits). Any other continuous value comes back to
    within 2**-40 of its range (log range, where ``log=True``).

    Examples
    --------
    >>> from optuna.distributions import FloatDistribution
    >>> space = SearchSpace({"C": FloatDistribution(1e-3, 1e3, log=True)})
    >>> space.to_unit({"C": 1.0})
    array([0.5])
    """

    def __init__(self, distributions: Mapping[str, BaseDistribution]) -> None:
        require(
            isinstance(distributions, Mapping) and len(distributions) > 0,
            "space",
            distributions,
            "a non-empty dict of name to Optuna distribution",
        )
        for name in distributions:
            named = isinstance(name, str) and name != ""
            require(named, "space", name, "names are non-empty strings")
        self._distributions = dict(distributions)
        self._axes = [_make_axis(name, d) for name, d in self._distributions.items()]

    @property
    def distributions(self) -> dict[str, BaseDistribution]:
        """A copy of the distributions, in the order of the axes."""
        return dict(self._distributions)

    @property
    def dim(self) -> int:
        """D, the number of parameters."""
        return len(self._axes)

    def to_unit(self, params: Mapping[str, Any]) -> FloatArray:
        """Return the point of shape (D,) of a setting.

        Raises
        ------
        ValueError
            If a name is missing or unknown, or a value outside its distribution.
        """
        if set(params) != set(self._distributions):
            allowed = f"exactly the names {list(self._distributions)}"
            require(False, "params", list(params), allowed)
        point = np.empty(self.dim)
        for d, (name, axis) in enumerate(
            zip(self._distributions, self._axes, strict=True)
        ):
            try:
                point[d] = axis.to_unit(params[name])
            except ValueError as error:
                require(False, f"params[{name!r}]", params[name], str(error))
        return point

    def from_unit(self, x: FloatArray) -> Params:
        """Return the setting at a point of shape (D,) with entries in [0, 1].

        Raises
        ------
        ValueError
            If the point has another shape or leaves the cube.
        """
        x = np.asarray(x, dtype=np.float64)
        inside = x.shape == (self.dim,) and bool(np.all((x >= 0) & (x <= 1)))
        require(inside, "x", x, f"shape ({self.dim},) with entries in [0, 1]")
        return {
            name: axis.from_unit(float(u))
            for name, axis, u in zip(self._distributions, self._axes, x, strict=True)
        }

    def snap(self, x: FloatArray) -> FloatArray:
        """Return the point, of shape (D,), of the setting that is tried for ``x``.

        On continuous axes it is one of 2**20, a millionth of the axis apart: the last
        digits of an optimiser's result, which differ between machines, end here.
        """
        rounded = np.round(np.asarray(x) * _TRIED) / _TRIED
        return self.to_unit(self.from_unit(np.where(self.continuous, rounded, x)))

    @property
    def continuous(self) -> NDArray[np.bool_]:
        """Which axes are continuous, shape (D,)."""
        return np.array([axis.continuous for axis in self._axes])

    def snap_discrete(self, x: FloatArray) -> FloatArray:
        """Return points of shape (n, D), moved to the values of their discrete axes."""
        columns = [axis.centers(x[:, d]) for d, axis in enumerate(self._axes)]
        return np.column_stack(columns)

    def sub_regions(self, num_sub_regions: int) -> SubRegions:
        """Tile the cube with boxes of equal volume.

        The prime factors of P go one by one to the axis with the fewest cuts so far,
        discrete axes only where there are no others. A discrete axis is cut between
        its values, as nearly into equal parts as they allow.

        Raises
        ------
        ValueError
            If P is below 1 or does not fit the space.
        """
        splits = [1] * self.dim
        continuous = [int(d) for d in np.flatnonzero(self.continuous)]
        for factor in _prime_factors(num_sub_regions):
            fitting = [
                d
                for d in continuous or range(self.dim)
                if _edges(self._axes[d], splits[d] * factor) is not None
            ]
            allowed = f"boxes with at least one value each in {self!r}"
            require(bool(fitting), "num_sub_regions", num_sub_regions, allowed)
            splits[min(fitting, key=lambda d: splits[d])] *= factor
        edges = [_edges(a, k) for a, k in zip(self._axes, splits, strict=True)]
        return SubRegions.from_edges([e for e in edges if e is not None])

    def to_json(self) -> str:
        """Return the space as JSON, for the wire."""
        pairs = [[n, distribution_to_json(d)] for n, d in self._distributions.items()]
        return json.dumps(pairs)

    @classmethod
    def from_json(cls, text: str) -> SearchSpace:
        """Return the space that ``to_json`` wrote."""
        return cls({name: json_to_distribution(d) for name, d in json.loads(text)})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SearchSpace) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(self.to_json())

    def __repr__(self) -> str:
        return f"SearchSpace({self._distributions})"


def _edges(axis: _Axis, parts: int) -> FloatArray | None:
    """Return the edges of ``parts`` parts of an axis, or None where it has too few."""
    inner = [axis.border(i / parts) for i in range(1, parts)]
    edges = np.array([0.0, *inner, 1.0])
    return edges if bool(np.all(np.diff(edges) > 0)) else None


def _prime_factors(number: int) -> list[int]:
    """Return the prime factors of ``number``, largest first."""
    is_int = isinstance(number, int) and not isinstance(number, bool)
    require(is_int and number >= 1, "num_sub_regions", number, "an integer >= 1")
    factors, divisor = [], 2
    while number > 1:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor = divisor + 1 if divisor * divisor <= number else max(number, 2)
    return factors[::-1]

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
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import (
    BaseDistribution,
    distribution_to_json,
    json_to_distribution,
)

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.validation import (
    refuse,
    require,
    require_instance,
    require_int,
    require_known,
)
from flwr_fbo.space.axes import (
    ContinuousAxis,
    axis_edges,
    make_axis,
    plain_distribution,
)

Params = dict[str, Any]

# Agents try points of this grid, on continuous axes.
_TRIED = 2.0**20
# A new point is drawn so many times at most; of a space with few settings those that
# were not tried are listed.
_MOST_DRAWS, _FEW_SETTINGS = 100, 1000


@dataclass(frozen=True, eq=False)
class SubRegions:
    """Boxes between edges, which tile the unit cube (DP-FTS-DE, section 3.2).

    A point on a border belongs to the upper box.

    Attributes
    ----------
    edges : tuple of D ndarrays
        Cuts of each axis, from 0 to 1, both included.
    """

    edges: tuple[FloatArray, ...]

    @cached_property
    def lower(self) -> FloatArray:
        """The lower corners of the boxes, shape (P, D): the last axis is fastest."""
        return np.array(list(product(*(e[:-1] for e in self.edges))))

    @cached_property
    def upper(self) -> FloatArray:
        """The upper corners, in the same order."""
        return np.array(list(product(*(e[1:] for e in self.edges))))

    def __len__(self) -> int:
        return len(self.lower)

    def index(self, x: FloatArray) -> NDArray[np.intp]:
        """Return the box of each point; ``x`` has shape (n, D), the result (n,)."""
        found = np.zeros(len(x), dtype=np.intp)
        for d, edges in enumerate(self.edges):
            cell = np.searchsorted(edges[1:-1], x[:, d], side="right")
            found = found * (len(edges) - 1) + cell
        return found


def _prime_factors(number: int) -> list[int]:
    """Return the prime factors of ``number``, largest first."""
    require_int("num_sub_regions", number, 1)
    factors, divisor = [], 2
    while number > 1:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor = divisor + 1 if divisor * divisor <= number else max(number, 2)
    return factors[::-1]


class SearchSpace:
    """Named parameters on the unit cube.

    Examples
    --------
    >>> from optuna.distributions import FloatDistribution
    >>> from flwr_fbo.tuning import SearchSpace
    >>> space = SearchSpace({"C": FloatDistribution(1e-3, 1e3, log=True)})
    >>> space.to_unit({"C": 1.0})
    array([0.5])

    Parameters
    ----------
    distributions : mapping of str to Optuna distribution
        ``FloatDistribution``, ``IntDistribution`` or ``CategoricalDistribution``; at
        least one parameter, each with at least two values.

    Attributes
    ----------
    distributions : dict of str to Optuna distribution
        In the order of the axes; not to be changed.
    dim : int
        D, the number of parameters.
    continuous : ndarray of bool, shape (D,)
        True for continuous axes.

    Raises
    ------
    ValueError
        If the mapping is empty, or a distribution is of another kind, is not finite,
        has a single value, repeats a choice, does not survive JSON, or is too large to
        count.

    Notes
    -----
    Integers, steps and categories survive the way to the cube and back exactly, as
    does every value that ``from_unit`` returns, and a continuous value as a person
    would write it (up to about nine digits). Any other continuous value comes back to
    within 2**-40 of its range (log range, where ``log=True``).
    """

    def __init__(self, distributions: Mapping[str, BaseDistribution]) -> None:
        expected = "a non-empty dict of name to Optuna distribution"
        require_instance("space", distributions, Mapping, allowed=expected)
        require(len(distributions) > 0, "space", distributions, expected)
        for name in distributions:
            named = isinstance(name, str) and name != ""
            require(named, "space", name, "names are non-empty strings")
        self.distributions = {
            name: plain_distribution(name, distribution)
            for name, distribution in distributions.items()
        }
        self._axes = [make_axis(name, d) for name, d in self.distributions.items()]
        self.dim = len(self._axes)
        self.continuous = np.array(
            [isinstance(axis, ContinuousAxis) for axis in self._axes]
        )
        self._sub_regions: dict[tuple[int, tuple[str, ...]], SubRegions] = {}
        pairs = [[n, distribution_to_json(d)] for n, d in self.distributions.items()]
        self._json = json.dumps(pairs)

    def to_unit(self, params: Mapping[str, Any], field: str = "params") -> FloatArray:
        """Return the point of shape (D,) of a setting; ``field`` is its name in errors.

        Raises
        ------
        ValueError
            If a name is missing or unknown, or a value outside its distribution.
        """
        if set(params) != set(self.distributions):
            expected = f"exactly the names {list(self.distributions)}"
            refuse(field, list(params), expected)
        point = np.empty(self.dim)
        for d, (name, axis) in enumerate(
            zip(self.distributions, self._axes, strict=True)
        ):
            try:
                point[d] = axis.to_unit(params[name])
            except ValueError as error:
                refuse(f"{field}[{name!r}]", params[name], str(error))
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
        if not inside:
            refuse("x", x, f"shape ({self.dim},) with entries in [0, 1]")
        return {
            name: axis.from_unit(float(u))
            for name, axis, u in zip(self.distributions, self._axes, x, strict=True)
        }

    @property
    def num_settings(self) -> float:
        """Number of settings; infinite where an axis is continuous."""
        return math.prod(
            math.inf if isinstance(axis, ContinuousAxis) else axis.num_values
            for axis in self._axes
        )

    def all_settings(self) -> list[Params]:
        """Return all settings of a space without continuous axes."""
        values = [a.values() for a in self._axes if not isinstance(a, ContinuousAxis)]
        names = self.distributions
        return [dict(zip(names, row, strict=True)) for row in product(*values)]

    @property
    def center(self) -> FloatArray:
        """The point, shape (D,), of the setting in the middle of every axis.

        Where a discrete axis has two middle values it is the first one: the smaller
        integer, the choice that is listed earlier.
        """
        return self.snap(np.full(self.dim, np.nextafter(0.5, 0.0)))

    def snap(self, x: FloatArray) -> FloatArray:
        """Return the point, of shape (D,), of the setting that is tried for ``x``.

        On continuous axes it is one of 2**20, a millionth of the axis apart: the last
        digits of an optimiser's result, which differ between machines, end here.
        """
        rounded = np.round(np.asarray(x) * _TRIED) / _TRIED
        return self.to_unit(self.from_unit(np.where(self.continuous, rounded, x)))

    def new_point(self, rng: np.random.Generator, tried: FloatArray) -> FloatArray:
        """Return a uniform point, shape (D,), of a setting that was not tried yet.

        Of any setting where all were tried.

        Parameters
        ----------
        rng : numpy.random.Generator
            Source of the draws.
        tried : ndarray of shape (t, D)
            Points that `snap` returned.
        """
        for _ in range(_MOST_DRAWS):
            point = self.snap(rng.random(self.dim))
            if not np.any(np.all(tried == point, axis=1)):
                return point
            if self.num_settings <= _FEW_SETTINGS:
                points = [self.to_unit(params) for params in self.all_settings()]
                left = [x for x in points if not np.any(np.all(tried == x, axis=1))]
                return left[rng.integers(len(left))] if left else point
        return point

    def each_once(
        self, points: FloatArray, num_kept: int, rng: np.random.Generator
    ) -> FloatArray:
        """Return points of shape (n, D), with a new one wherever one is repeated.

        The first ``num_kept`` stay as they are.
        """
        points = np.array(points)
        for k in range(num_kept, len(points)):
            if np.any(np.all(points[:k] == points[k], axis=1)):
                points[k] = self.new_point(rng, points)
        return points

    def snap_discrete(self, x: FloatArray) -> FloatArray:
        """Return points of shape (n, D), moved to the values of their discrete axes."""
        moved = np.array(x, order="C")
        for d, axis in enumerate(self._axes):
            if not isinstance(axis, ContinuousAxis):
                moved[:, d] = axis.centers(x[:, d])
        return moved

    def sub_regions(self, num_sub_regions: int, cut: Sequence[str] = ()) -> SubRegions:
        """Tile the cube with boxes of equal volume.

        The prime factors of P go one by one to the axis with the fewest cuts so far. A
        discrete axis is cut between its values, as nearly into equal parts as they
        allow.

        Parameters
        ----------
        num_sub_regions : int
            P >= 1.
        cut : sequence of str
            Parameters whose axes may be cut, the first ones first. Unless given, all
            continuous axes, and discrete ones only where there are no others.

        Raises
        ------
        ValueError
            If P is below 1 or does not fit the space, or a parameter is unknown.
        """
        key = num_sub_regions, tuple(cut)
        if key in self._sub_regions:
            return self._sub_regions[key]
        names = list(self.distributions)
        for name in cut:
            require_known("sub_region_axes", name, names)
        chosen = [names.index(name) for name in cut]
        splits = [1] * self.dim
        continuous = [int(d) for d in np.flatnonzero(self.continuous)]
        for factor in _prime_factors(num_sub_regions):
            fitting = [
                d
                for d in chosen or continuous or range(self.dim)
                if axis_edges(self._axes[d], splits[d] * factor) is not None
            ]
            expected = f"boxes with at least one value each in {self!r}"
            require(bool(fitting), "num_sub_regions", num_sub_regions, expected)
            splits[min(fitting, key=lambda d: splits[d])] *= factor
        edges = [axis_edges(a, k) for a, k in zip(self._axes, splits, strict=True)]
        tiling = SubRegions(tuple(e for e in edges if e is not None))
        return self._sub_regions.setdefault(key, tiling)

    def to_json(self) -> str:
        """Return the space as JSON, for the wire."""
        return self._json

    @classmethod
    def from_json(cls, text: str) -> SearchSpace:
        """Return the space that ``to_json`` wrote."""
        return cls({name: json_to_distribution(d) for name, d in json.loads(text)})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SearchSpace) and self._json == other._json

    def __hash__(self) -> int:
        return hash(self._json)

    def __repr__(self) -> str:
        return f"SearchSpace({self.distributions})"


def move_to_faces(
    points: FloatArray, share: float, probability: float, rng: np.random.Generator
) -> None:
    """Move the first of some points, in place, to faces of the cube.

    Many best settings lie there, and uniform points never do.

    Parameters
    ----------
    points : ndarray of shape (n, D)
        Points of the unit cube, which are changed.
    share : float
        Share of the points that are moved, in [0, 1].
    probability : float
        Probability in [0, 1] that a coordinate of theirs moves.
    rng : numpy.random.Generator
        Generator of coordinates and sides.
    """
    on_faces = points[: round(share * len(points))]
    moved = rng.random(on_faces.shape) < probability
    on_faces[moved] = np.round(on_faces[moved])

"""Releases of FedWarmStart as a file, from which another study may start.

A file has the pool's points and, for each release, the mean of what a cohort's sites
sent about these points, with its noise. Whoever has it starts from it at no epsilon:
that is post-processing.

The points themselves are in the file, and not a seed that they could be drawn from. So
a file means the same with any version of any library, and after it was mapped to
another space.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.fields import (
    FREE,
    check_fields,
    choice,
    flag,
    fraction,
    holds,
    instance,
    integer,
    number,
    text,
    to_json,
)
from flwr_fbo._common.text import write_whole
from flwr_fbo._common.validation import is_number, require, require_instance
from flwr_fbo.privacy.spending_ledger import MOST_NOISE, Charge, composed_epsilon
from flwr_fbo.space.axes import make_axis
from flwr_fbo.space.search_space import SearchSpace
from flwr_fbo.study.codec import read_json
from flwr_fbo.tuning.search.settings import Direction

# Points of a pool.
LEAST_POINTS, MOST_POINTS = 8, 1024
# Only noise that is out of all proportion would be larger.
_LARGEST = 1e100
# As many as a site takes part with, unless it says otherwise: `Limits.max_agents`.
_MOST_SITES = 100_000
_MOST_STD = 1e9
_FORMAT = "flwr_fbo knowledge, version 1"
_ABOUT = (
    "Releases of FedWarmStart: for each, the mean of how the sites of a cohort rank "
    "the settings at the points below (coordinates of the unit cube of the space), "
    "with Gaussian noise. "
)
_PRIVATE = (
    "Each release is differentially private, at its epsilon and delta, for each of its "
    "sites. Who reads this file learns no more. A site that sends again, in another "
    "study, pays again."
)
_NOT_PRIVATE = (
    "NOT PRIVATE: some of the noise was seeded, or there was none. For experiments "
    "only."
)


@dataclass(frozen=True)
class KnownRelease:
    """One release, about the points of a pool.

    Attributes
    ----------
    release_id : str
        Id of the study, ``/``, and the number of the release in it, from 1.
    num_sites : int
        n from 1 to 100,000, the sites of the cohort, whether they answered or not.
    noise_multiplier : float
        z from 0 to 1e6, which epsilon is computed from.
    noise_std : float
        Standard deviation of the noise in the sum of n messages of norm 1, from z to
        1e9: secure aggregation adds more than z.
    delta : float
        In (0, 1): where its epsilon is reported.
    private : bool
        Whether there is noise, known to nobody.
    num_points : int
        m, from 8 to 1024: points that each message was about.
    vector : tuple of float
        The mean of n messages, with noise, at those of these points that are left.

    Raises
    ------
    ValueError
        If a value is not allowed; the message names the field.
    """

    release_id: str = field(metadata=text(100))
    num_sites: int = field(metadata=integer(1, _MOST_SITES, cap="max_agents"))
    noise_multiplier: float = field(metadata=number(0, MOST_NOISE))
    noise_std: float = field(metadata=number(0, _MOST_STD))
    delta: float = field(metadata=fraction())
    private: bool = field(metadata=flag())
    num_points: int = field(
        metadata=integer(LEAST_POINTS, MOST_POINTS, cap="max_features")
    )
    vector: tuple[float, ...] = field(metadata=holds(None, cap=FREE))

    def __post_init__(self) -> None:
        check_fields(self)
        z = self.noise_multiplier
        expected = f"at least noise_multiplier={z:g}"
        require(z * (1 - 1e-9) <= self.noise_std, "noise_std", self.noise_std, expected)
        is_valid = z > 0 or not self.private
        require(is_valid, "private", self.private, "False where noise_multiplier is 0")
        vector = numbers_of("vector", self.vector)
        m, most = len(vector), self.num_points
        expected = f"{LEAST_POINTS} to num_points={most} numbers"
        require(LEAST_POINTS <= m <= most, "len(vector)", m, expected)
        object.__setattr__(self, "vector", vector)

    @cached_property
    def epsilon(self) -> float:
        """Epsilon of the release for each of its sites, at ``delta``."""
        return composed_epsilon([Charge(self.noise_multiplier)], self.delta)


@dataclass(frozen=True)
class Knowledge:
    """Releases about the points of one pool; public.

    `FedWarmStart` takes it, or its file, as ``known``, and so does
    `FederatedSampler.from_knowledge`.

    Examples
    --------
    >>> from optuna.distributions import FloatDistribution
    >>> from flwr_fbo import FedWarmStart, InProcessGrid, tuning_app
    >>> app = tuning_app(lambda context: lambda trial: -abs(trial["C"] - 10.0))
    >>> space = {"C": FloatDistribution(1e-3, 1e3, log=True)}
    >>> strategy = FedWarmStart(space, "maximize", 5, epsilon=8.0, delta=1e-3)
    >>> _ = strategy.start(InProcessGrid(app, num_nodes=5), num_rounds=11)
    >>> [(r.num_sites, round(r.epsilon)) for r in strategy.knowledge.releases]
    [(4, 8)]

    Attributes
    ----------
    space : SearchSpace
        Search space of the studies.
    direction : {"maximize", "minimize"}
        Direction of the objectives.
    points : tuple of tuple of float
        The pool, m points of D coordinates in [0, 1], m from 8 to 1024.
    releases : tuple of KnownRelease
        One at least, each with m numbers.

    Raises
    ------
    ValueError
        If a value is not allowed; the message names the field.

    Notes
    -----
    *Formal guarantees*: each release is (epsilon, delta)-DP for each site of its
    cohort, under the adjacency of `FedWarmStartServer`, if it is ``private``. A site
    that is in several releases has spent them all: they add up.
    """

    space: SearchSpace = field(metadata=instance(SearchSpace))
    direction: Direction = field(metadata=choice(Direction))
    points: tuple[tuple[float, ...], ...] = field(
        metadata=instance(tuple, list, allowed="a list of points", cap=FREE)
    )
    releases: tuple[KnownRelease, ...] = field(metadata=holds(KnownRelease))

    def __post_init__(self) -> None:
        check_fields(self)
        m, dim = len(self.points), self.space.dim
        expected = f"{LEAST_POINTS} to {MOST_POINTS}"
        require(LEAST_POINTS <= m <= MOST_POINTS, "len(points)", m, expected)
        points = tuple(numbers_of(f"points[{i}]", p) for i, p in enumerate(self.points))
        for i, point in enumerate(points):
            is_valid = len(point) == dim and all(0.0 <= u <= 1.0 for u in point)
            require(is_valid, f"points[{i}]", point, f"{dim} numbers from 0 to 1")
        object.__setattr__(self, "points", points)
        object.__setattr__(self, "releases", tuple(self.releases))
        require(len(self.releases) > 0, "releases", self.releases, "one at least")
        for k, release in enumerate(self.releases):
            length, name = len(release.vector), f"len(releases[{k}].vector)"
            require(length == m, name, length, f"{m}, one number a point")
        ids = [release.release_id for release in self.releases]
        expected = "each release once, or it would count twice"
        require(len(set(ids)) == len(ids), "releases", ids, expected)

    @property
    def private(self) -> bool:
        """True if all releases are."""
        return all(release.private for release in self.releases)

    @cached_property
    def pool(self) -> FloatArray:
        """The points, shape (m, D)."""
        return np.array(self.points)

    @cached_property
    def means(self) -> FloatArray:
        """The mean message of each cohort, with noise, shape (K, m).

        In units of a message of norm 1 about the points that are left.
        """
        rows = np.array([release.vector for release in self.releases])
        return np.asarray(rows * self._scales[:, None])

    @cached_property
    def noise_std(self) -> FloatArray:
        """Standard deviation of the noise in each entry of `means`, shape (K,)."""
        stds = [release.noise_std / release.num_sites for release in self.releases]
        return np.asarray(stds * self._scales)

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Sites of each cohort, shape (K,)."""
        return np.array([release.num_sites for release in self.releases])

    @property
    def _scales(self) -> FloatArray:
        counts = np.array([release.num_points for release in self.releases])
        return np.sqrt(counts / len(self.points))

    def onto(self, space: SearchSpace, direction: Direction) -> Knowledge:
        """Return what it says of another space with the same parameters.

        Points are translated by their settings; those outside of the other space are
        left out.

        Raises
        ------
        ValueError
            If the direction differs; if a parameter is missing or of another kind; or
            if fewer than eight points are left. The message names the parameter.
        """
        expected = f"{self.direction!r}, as what is known"
        require(direction == self.direction, "direction", direction, expected)
        if space == self.space:
            return self
        for name, known in self.space.distributions.items():
            new = space.distributions.get(name)
            kind = type(known).__name__
            expected = f"a {kind}, as in what is known"
            require(type(new) is type(known), f"space[{name!r}]", new, expected)
        for name, new in space.distributions.items():
            is_valid = name in self.space.distributions
            require(is_valid, f"space[{name!r}]", new, "a parameter of what is known")
        places: list[tuple[float, ...]] = []
        kept: list[int] = []
        outside: Counter[str] = Counter()
        axes = {name: make_axis(name, d) for name, d in space.distributions.items()}
        for i, point in enumerate(self.pool):
            params, place = self.space.from_unit(point), {}
            for name, axis in axes.items():
                try:
                    place[name] = axis.to_unit(params[name])
                except ValueError:
                    outside[name] += 1
            if len(place) == len(axes):
                places.append(tuple(place.values()))
                kept.append(i)
        if len(kept) < LEAST_POINTS:
            ((worst, _),) = outside.most_common(1)
            known = self.space.distributions[worst]
            expected = (
                f"more of the range that something is known of, {known}: "
                f"{len(kept)} of {len(self.points)} points are in both spaces, and "
                f"{LEAST_POINTS} are needed"
            )
            new = space.distributions[worst]
            require(False, f"space[{worst!r}]", new, expected)
        releases = tuple(
            replace(release, vector=tuple(release.vector[i] for i in kept))
            for release in self.releases
        )
        return Knowledge(space, direction, tuple(places), releases)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Knowledge:
        """Return what `flwr_fbo._common.fields.to_json` gave.

        Raises
        ------
        ValueError
            If it is not; the message names the field.
        """
        require_names("knowledge", values, cls)
        rows, releases = values["releases"], []
        require_instance("releases", rows, list)
        for k, row in enumerate(rows):
            require_names(f"releases[{k}]", row, KnownRelease)
            try:
                releases.append(KnownRelease(**row))
            except ValueError as error:
                raise ValueError(f"releases[{k}]: {error}") from None
        try:
            space = SearchSpace.from_json(values["space"])
        except (TypeError, ValueError, KeyError) as error:
            raise ValueError(f"space is not what was written: {error}.") from None
        return cls(space, values["direction"], values["points"], tuple(releases))

    def save(self, path: str | Path) -> None:
        """Write it to a JSON file, whole or not at all.

        Whoever may read what has been released may read it.

        Raises
        ------
        OSError
            If it cannot be written.
        """
        values = to_json(self)
        document = {
            "format": _FORMAT,
            "about": _ABOUT + (_PRIVATE if self.private else _NOT_PRIVATE),
            "epsilons": [release.epsilon for release in self.releases],
            **values,
            "digests": {name: _digest(value) for name, value in values.items()},
        }
        write_whole(Path(path), json.dumps(document, indent=1) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Knowledge:
        """Return what `save` wrote.

        Raises
        ------
        ValueError
            If the file is of another format, damaged, or was changed by hand; the
            message names the field. A forger who makes new digests is not noticed.
        OSError
            If it cannot be read.
        """
        try:
            document = read_json(Path(path).read_bytes().decode("utf-8"))
            found = document.get("format") if isinstance(document, dict) else None
            expected = f"{_FORMAT!r}, in a file of FedWarmStart's releases"
            require(found == _FORMAT, "format", found, expected)
            names = [field.name for field in fields(cls)]
            values = {name: document[name] for name in names if name in document}
            knowledge = cls.from_json(values)
            digests = document.get("digests")
            require_instance("digests", digests, dict, allowed="one for each field")
            for name, value in values.items():
                changed = "it is not what was written: damaged, or changed by hand"
                if digests.get(name) != _digest(value):
                    raise ValueError(f"{name} is not allowed: {changed}.")
            epsilons = [release.epsilon for release in knowledge.releases]
            found = document.get("epsilons")
            expected = f"{epsilons}, by noise and delta"
            require(found == epsilons, "epsilons", found, expected)
            return knowledge
        except (ValueError, RecursionError) as error:
            reason = error if isinstance(error, ValueError) else "nested too deeply"
            raise ValueError(f"{path} cannot be used: {reason}") from None


def numbers_of(name: str, values: Any) -> tuple[float, ...]:
    """Return numbers as floats; raise ValueError if they are none."""
    is_valid = isinstance(values, tuple | list)
    is_valid = is_valid and all(is_number(v) and abs(v) <= _LARGEST for v in values)
    require(is_valid, name, values, "a list of finite numbers")
    return tuple(float(v) for v in values)


def require_names(where: str, values: Any, kind: type) -> None:
    """Raise ValueError unless these are exactly the fields of a dataclass."""
    require(isinstance(values, Mapping), where, values, "names and values")
    names = {field.name for field in fields(kind)}
    for name in sorted(names - values.keys()):
        raise ValueError(f"{where} has no {name}.")
    for name in sorted(map(str, values.keys() - names)):
        raise ValueError(f"{where} has {name!r}, which is not one of {sorted(names)}.")


def known_from(known: str | Path | Knowledge) -> Knowledge:
    """Return what is known, from its file if it is one.

    Raises
    ------
    ValueError, OSError
        See `Knowledge.load`; or if it is neither.
    """
    if isinstance(known, Knowledge):
        return known
    expected = "a Knowledge, or the path of its file"
    require_instance("known", known, str, Path, allowed=expected)
    return Knowledge.load(known)


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()

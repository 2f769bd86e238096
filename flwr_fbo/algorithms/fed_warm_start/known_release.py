"""One release of FedWarmStart, as another study takes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from flwr_fbo._common.fields import (
    check_fields,
    flag,
    fraction,
    holds,
    integer,
    number,
    ruled,
)
from flwr_fbo._common.validation import is_number, require
from flwr_fbo.privacy.spending import MOST_NOISE, Charge, composed_epsilon

# Points of a pool.
LEAST_POINTS, MOST_POINTS = 8, 1024
# Only noise that is out of all proportion would be larger.
_LARGEST = 1e100
# As many as a site takes part with, unless it says otherwise: `Limits.max_agents`.
_MOST_SITES = 100_000
_MOST_STD = 1e9


def _check_id(name: str, value: Any) -> None:
    ok = isinstance(value, str) and 1 <= len(value) <= 100
    require(ok, name, value, "1 to 100 characters")


@dataclass(frozen=True)
class KnownRelease:
    """One release, about the points of a pool.

    Attributes
    ----------
    release_id : str
        Of the study, ``/``, and which of its releases it is, from 1.
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

    release_id: str = field(metadata=ruled(_check_id))
    num_sites: int = field(metadata=integer(1, _MOST_SITES, cap="max_agents"))
    noise_multiplier: float = field(metadata=number(0, MOST_NOISE))
    noise_std: float = field(metadata=number(0, _MOST_STD))
    delta: float = field(metadata=fraction())
    private: bool = field(metadata=flag())
    num_points: int = field(
        metadata=integer(LEAST_POINTS, MOST_POINTS, cap="max_features")
    )
    vector: tuple[float, ...] = field(metadata=holds(None))

    def __post_init__(self) -> None:
        check_fields(self)
        z = self.noise_multiplier
        allowed = f"at least noise_multiplier={z:g}"
        ok = z * (1 - 1e-9) <= self.noise_std
        require(ok, "noise_std", self.noise_std, allowed)
        ok = z > 0 or not self.private
        require(ok, "private", self.private, "False where noise_multiplier is 0")
        vector = numbers_of("vector", self.vector)
        m, most = len(vector), self.num_points
        allowed = f"{LEAST_POINTS} to num_points={most} numbers"
        require(LEAST_POINTS <= m <= most, "len(vector)", m, allowed)
        object.__setattr__(self, "vector", vector)

    @cached_property
    def epsilon(self) -> float:
        """What the release costs each of its sites, at ``delta``."""
        return composed_epsilon([Charge(self.noise_multiplier)], self.delta)


def numbers_of(name: str, values: Any) -> tuple[float, ...]:
    """Return numbers as floats; raise ValueError if they are none."""
    ok = isinstance(values, tuple | list)
    ok = ok and all(is_number(v) and abs(v) <= _LARGEST for v in values)
    require(ok, name, values, "a list of finite numbers")
    return tuple(float(v) for v in values)


def require_names(where: str, values: Any, kind: type) -> None:
    """Raise ValueError unless these are exactly the fields of a dataclass."""
    require(isinstance(values, Mapping), where, values, "names and values")
    names = {one.name for one in fields(kind)}
    for name in sorted(names - values.keys()):
        raise ValueError(f"{where} has no {name}.")
    for name in sorted(map(str, values.keys() - names)):
        raise ValueError(f"{where} has {name!r}, which is not one of {sorted(names)}.")

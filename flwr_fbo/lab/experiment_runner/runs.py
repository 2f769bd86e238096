"""What one method did on one seed: a line of an experiment's results."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Annotated, Any, Self

import numpy as np
from pydantic import BeforeValidator, TypeAdapter

from flwr_fbo._common.arrays import FloatArray


@dataclass(frozen=True, kw_only=True)
class Run(ABC):
    """What one method did on one seed.

    Attributes
    ----------
    method : str
    seed : int
    epsilon : float
        Spent if the noise had been real: 0 where nothing of the agents was released,
        inf where it was without noise.
    private : bool
        Whether nothing unprotected was released; False under seeded noise.
    seconds : float
        Of CPU time.
    """

    method: str
    seed: int
    epsilon: Annotated[float, BeforeValidator(lambda v: math.inf if v is None else v)]
    private: bool
    seconds: float

    @property
    @abstractmethod
    def curve(self) -> FloatArray:
        """What is drawn, against the experiment's ``steps``."""

    @property
    def scalars(self) -> FloatArray:
        """What was sent by then, where the experiment counts it."""
        raise NotImplementedError

    def compact(self) -> Self:
        """Return what tables and figures show of it, with six digits."""
        return replace(self, seconds=float(f"{self.seconds:.3g}"))

    def to_json(self) -> str:
        """Return a line; what JSON lacks, NaN and infinity, becomes null."""
        return json.dumps(_json_of(asdict(self)), allow_nan=False)


@cache
def run_reader(run_type: type[Run]) -> TypeAdapter[Any]:
    """Return what validates the values of a run's line."""
    return TypeAdapter(run_type)


def six_digits(values: Iterable[float]) -> list[float]:
    """Return numbers rounded to six significant digits."""
    return [float(f"{value:.6g}") for value in values]


def _json_of(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _json_of(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_json_of(one) for one in value]
    finite = not isinstance(value, float) or math.isfinite(value)
    return value if finite else None


@dataclass(frozen=True, kw_only=True)
class RegretRun(Run):
    """What one method did on one seed, where agents play bandits.

    Attributes
    ----------
    regret : list of float
        Added up, after each of the experiment's ``steps``.
    """

    regret: list[float]

    @property
    def curve(self) -> FloatArray:
        """The regret, as an array."""
        return np.array(self.regret)

    def compact(self) -> Self:
        """Return it with six digits of the regret."""
        return replace(super().compact(), regret=six_digits(self.regret))

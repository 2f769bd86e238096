"""Surfaces: stand-ins for slow objectives of a few variables, computed once, kept.

A surface is the objective at the settings of a grid, and bilinear in between: a
function of its own that resembles the objective, not the objective. Distances between
the grid's settings grow from the lower end of each range, where the objectives change
fastest: their square roots are evenly spaced.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pooch
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution
from scipy.interpolate import RegularGridInterpolator

from flwr_fbo.space import SearchSpace
from flwr_fbo.tasks.base import Objective

GRID_SIZE = 41
# Of how surfaces are computed: what is kept of another one is not read.
_VERSION = 1

_LOG = logging.getLogger("flwr.fbo")
_ROOTS = np.linspace(0.0, 1.0, GRID_SIZE)

FloatArray = NDArray[np.float64]


class Surface:
    """An objective that looks its values up.

    Parameters
    ----------
    values : ndarray of shape (41,) * D
        Of `grid_values`.
    space : mapping of str to Optuna distribution
        D variables.
    """

    def __init__(
        self, values: FloatArray, space: Mapping[str, BaseDistribution]
    ) -> None:
        self._space = SearchSpace(space)
        self._lookup = RegularGridInterpolator((_ROOTS,) * values.ndim, values)

    def __call__(self, params: dict[str, Any]) -> float:
        """Return the value between those of the nearest settings of the grid."""
        return float(self._lookup(np.sqrt(self._space.to_unit(params)))[0])


def grid_values(
    objective: Objective, space: Mapping[str, BaseDistribution]
) -> FloatArray:
    """Return an objective's values at the settings of the grid, shape (41,) * D."""
    cube = SearchSpace(space)
    shape = (GRID_SIZE,) * cube.dim
    values = [
        objective(cube.from_unit(_ROOTS[list(index)] ** 2))
        for index in np.ndindex(*shape)
    ]
    return np.reshape(values, shape)


def kept(
    name: str,
    space: Mapping[str, BaseDistribution],
    made_from: Iterable[NDArray[Any]],
    compute: Callable[[], FloatArray],
) -> FloatArray:
    """Return what ``compute`` gives, from the cache folder once it has been computed.

    Parameters
    ----------
    name : str
        Of the file, beside a digest of what it was made from.
    space : mapping of str to Optuna distribution
    made_from : iterable of arrays
        The data: with others, or another space, it is computed anew.
    compute : callable
        Returns an array.
    """
    digest = hashlib.sha256(repr((_VERSION, SearchSpace(space).to_json())).encode())
    for array in made_from:
        digest.update(np.ascontiguousarray(array).tobytes())
    file = f"{name}-surface-{GRID_SIZE}-{digest.hexdigest()[:12]}.npy"
    path = Path(pooch.os_cache("flwr-fbo")) / file
    if path.is_file():
        return np.asarray(np.load(path, allow_pickle=False))
    path.parent.mkdir(parents=True, exist_ok=True)
    _LOG.warning("computing the surface of %s, once: some minutes", name)
    values = compute()
    # Whole or not there at all, whoever else computes it or ends this process.
    partial = path.with_suffix(f".{os.getpid()}.part")
    with partial.open("wb") as part:
        np.save(part, values)
    partial.replace(path)
    return values

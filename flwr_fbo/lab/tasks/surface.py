"""Surfaces: stand-ins for slow objectives of a few variables, computed once, kept.

A surface is the objective at the settings of a grid, and linear in each variable in
between: a function of its own that resembles the objective, not the objective.
Distances between the grid's settings grow from the lower end of each range, where the
objectives change fastest: their square roots are evenly spaced.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
from optuna.distributions import BaseDistribution

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.lab.datasets.base import Split
from flwr_fbo.lab.tasks.base import Objective
from flwr_fbo.space.search_space import SearchSpace

# Of how surfaces are computed: what is kept of another one is not read.
_VERSION = 1

_LOG = logging.getLogger("flwr.fbo")


@dataclass(frozen=True, eq=False)
class SurfaceSource:
    """Source of one client's surface, which is computed once and kept in a cache.

    Attributes
    ----------
    name : str
        Name of the file, beside a digest of data and space: with others it is another
        file.
    objective : callable
        Objective of the client, which the grid is computed from.
    space : mapping of str to Optuna distribution
        D variables.
    grid_shape : tuple of int
        n_1, ..., n_D >= 2 settings of each variable.
    data : Split
        The client's.
    """

    name: str
    objective: Objective
    space: Mapping[str, BaseDistribution]
    grid_shape: tuple[int, ...]
    data: Split

    @cached_property
    def path(self) -> Path:
        """The file that keeps it: an array of shape (n_1, ..., n_D)."""
        form = repr((_VERSION, SearchSpace(self.space).to_json()))
        digest = hashlib.sha256(form.encode())
        for array in vars(self.data).values():
            digest.update(np.ascontiguousarray(array).tobytes())
        grid = "x".join(map(str, self.grid_shape))
        name = f"{self.name}-surface-{grid}-{digest.hexdigest()[:12]}.npy"
        return Path(platformdirs.user_cache_path("flwr-fbo")) / name

    def surface(self) -> Objective:
        """Return the surface, computed if it is not kept yet."""
        from scipy.interpolate import RegularGridInterpolator

        compute_missing([self])
        values, cube = np.load(self.path, allow_pickle=False), SearchSpace(self.space)
        lookup = RegularGridInterpolator(_roots(values.shape), values)

        def value(params: dict[str, Any]) -> float:
            """Return the value between those of the nearest settings of the grid."""
            return float(lookup(np.sqrt(cube.to_unit(params)))[0])

        return value

    def compute(self) -> None:
        """Compute it, and keep it."""
        cube, path = SearchSpace(self.space), self.path
        points = np.square(list(product(*_roots(self.grid_shape))))
        values = [self.objective(cube.from_unit(point)) for point in points]
        path.parent.mkdir(parents=True, exist_ok=True)
        # Whole or not there at all, whoever else computes it or ends this process.
        partial = path.with_suffix(f".{os.getpid()}.part")
        with partial.open("wb") as part:
            np.save(part, np.reshape(values, self.grid_shape))
        partial.replace(path)


def compute_missing(sources: Sequence[SurfaceSource]) -> None:
    """Compute those that are not kept yet, several on all cores; ended, it goes on."""
    missing = [source for source in sources if not source.path.is_file()]
    if not missing:
        return
    _LOG.warning(
        "computing %d surfaces, once, from %s on: this takes a while",
        len(missing),
        missing[0].name,
    )
    from joblib import Parallel, delayed

    jobs = (delayed(source.compute)() for source in missing)
    Parallel(n_jobs=1 if len(missing) == 1 else -1, batch_size=1)(jobs)


def _roots(grid_shape: tuple[int, ...]) -> list[FloatArray]:
    return [np.linspace(0.0, 1.0, size) for size in grid_shape]

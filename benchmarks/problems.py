"""Problems whose best value is known: test functions, and surfaces of real tasks.

All are to be maximised over the unit cube. Ours is to be given values whose spread is
about 1 and whose mean is about 0 (it neither centres nor scales), so the test functions
are shifted and scaled by constants; the peers standardise what they see anyway.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.lab.tasks.nonlinear_bandit import hartmann as hartmann_6
from flwr_fbo.space.search_space import SearchSpace


@dataclass(frozen=True)
class Problem:
    """A function of D variables with a known maximum.

    Attributes
    ----------
    name : str
    dim : int
        D.
    function : callable
        Takes points of shape (n, D), returns values of shape (n,).
    best : float
        Its maximum.
    unit : float
        What a difference of 1 is in the units the function was published in.
    """

    name: str
    dim: int
    function: Callable[[FloatArray], FloatArray]
    best: float
    unit: float = 1.0

    def regret(self, values: FloatArray) -> float:
        """Return how far the best of the values is below the maximum."""
        return float((self.best - np.max(values)) * self.unit)


def _scaled(
    name: str, dim: int, function: Callable[[FloatArray], FloatArray], best: float
) -> Problem:
    """Return the problem with mean 0 and deviation 1 over the cube."""
    values = function(np.random.default_rng(0).random((100_000, dim)))
    mean, std = float(np.mean(values)), float(np.std(values))
    return Problem(
        name, dim, lambda x: (function(x) - mean) / std, (best - mean) / std, std
    )


def branin() -> Problem:
    """Return the negative of Branin's function (Dixon & Szego, 1978)."""

    def function(x: FloatArray) -> FloatArray:
        a, b = 15.0 * x[:, 0] - 5.0, 15.0 * x[:, 1]
        bowl = b - 5.1 / (4.0 * np.pi**2) * a**2 + 5.0 / np.pi * a - 6.0
        waves = 10.0 * (1.0 - 1.0 / (8.0 * np.pi)) * np.cos(a) + 10.0
        return np.asarray(-(bowl**2) - waves)

    return _scaled("Branin", 2, function, -0.39788735772973816)


def hartmann(dim: int) -> Problem:
    """Return the negative of Hartmann's function of 3 or 6 variables (1973)."""
    if dim == 6:
        return _scaled("Hartmann-6", 6, hartmann_6, 3.32236801141551)
    weights = np.array([1.0, 1.2, 3.0, 3.2])
    shape = np.array([[3, 10, 30], [0.1, 10, 35]] * 2, dtype=float)
    centres = 1e-4 * np.array(
        [[3689, 1170, 2673], [4699, 4387, 7470], [1091, 8732, 5547], [381, 5743, 8828]]
    )

    def function(x: FloatArray) -> FloatArray:
        distances = np.sum(shape * (x[:, None, :] - centres) ** 2, axis=-1)
        return np.asarray(np.exp(-distances) @ weights)

    return _scaled("Hartmann-3", 3, function, 3.86278214782076)


def landmine(field: int) -> Problem | None:
    """Return the surface of a landmine field; None without FLWR_FBO_DATA.

    Computed once, for a minute, and kept in the cache folder.
    """
    if "FLWR_FBO_DATA" not in os.environ:
        return None
    from flwr_fbo.lab.tasks.landmine import LandmineTask

    task = LandmineTask(surface=True)
    # Of this field alone: all of them take much longer.
    source, space = task.source(field), SearchSpace(task.space)
    surface = source.surface()

    def function(x: FloatArray) -> FloatArray:
        return np.array([surface(space.from_unit(point)) for point in x])

    name = f"landmine field {field}"
    return Problem(name, 2, function, float(np.load(source.path).max()))

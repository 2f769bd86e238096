"""Look up what others have computed: a table of many data sets, one per client.

The tables are the files of ``surfaces/`` in the folder FLWR_FBO_DATA: real data sets,
or surrogates of real runs, at some hundred settings of D hyperparameters each.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, FloatDistribution

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.fields import flag
from flwr_fbo._common.validation import require
from flwr_fbo.lab.datasets.base import damaged, data_file, read_arrays
from flwr_fbo.lab.tasks.base import Objective, Task, require_clients

_ORIGIN = "from whoever made the tables, as no command does"
_MOST_TABLES = 8  # that are kept in memory, a few MB each


@dataclass(frozen=True, eq=False)
class Table:
    """One data set's values, and linear radial basis functions in between.

    Attributes
    ----------
    points : ndarray of shape (n, D)
        In the unit cube.
    weights : ndarray of shape (n + 1,)
        Weights of the functions around the points, and the constant.
    lowest, highest : float
        The table's range.
    axes : ndarray of int, shape (D,)
        Parameter of each of the table's axes.
    shift : ndarray of shape (D,)
        In [0, 2): how far each axis is shifted around a circle on which it lies twice,
        there and back; 0 for not at all.
    """

    points: FloatArray
    weights: FloatArray
    lowest: float
    highest: float
    axes: NDArray[np.int64]
    shift: FloatArray

    def __call__(self, params: Mapping[str, Any]) -> float:
        """Return the value at a setting, from 0 to 1 between the table's extremes."""
        x = np.array([params[name] for name in names_of(len(self.axes))])[self.axes]
        x = np.abs((x + self.shift + 1.0) % 2.0 - 1.0)
        from scipy.spatial.distance import cdist

        away = np.append(-cdist(x[None], self.points)[0], 1.0)
        share = (away @ self.weights - self.lowest) / (self.highest - self.lowest)
        return float(np.clip(share, 0.0, 1.0))


def names_of(dim: int) -> list[str]:
    """Return what the parameters of a table of D dimensions are called."""
    return [f"x{d}" for d in range(dim)]


@lru_cache(maxsize=_MOST_TABLES)
def _stored(path: Path) -> tuple[FloatArray, FloatArray]:
    """Return settings in the unit cube, and values of the data sets that have any.

    Settings have shape (n, D), or (N, n, D) where each data set has its own; values
    have shape (N, n).
    """
    x, y = read_arrays(path, ("X", "Y"))
    if x.ndim not in (2, 3) or y.ndim < 2 or y.shape[1] != x.shape[-2]:
        raise damaged(path, f"X of shape {x.shape} and Y of shape {y.shape}")
    # The last epoch, and the first metric, of tables that have several.
    y = y[:, :, -1, 0] if y.ndim == 4 else y.reshape(*y.shape[:2], -1)[..., 0]
    of_settings = tuple(range(x.ndim - 1))
    lower, upper = x.min(axis=of_settings), x.max(axis=of_settings)
    for name, is_constant in zip(names_of(len(lower)), lower == upper, strict=True):
        if is_constant:
            raise damaged(path, f"{name}, an axis of X, has one value in all settings")
    x = (x - lower) / (upper - lower)
    varied = np.ptp(y, axis=1) > 0  # else there is nothing to find
    return x[varied] if x.ndim == 3 else x, y[varied]


def weights_of(points: FloatArray, values: FloatArray) -> FloatArray:
    """Return a `Table`'s weights, shape (n + 1,), for values of shape (n,).

    Or of many data sets with the same settings: (n + 1, N) for (n, N).
    """
    n = len(points)
    system = np.ones((n + 1, n + 1))
    from scipy.spatial.distance import cdist

    system[:n, :n], system[n, n] = -cdist(points, points), 0.0
    constant = np.zeros((1, *values.shape[1:]))
    weights, *_ = np.linalg.lstsq(system, np.concatenate([values, constant]))
    return np.asarray(weights)


@lru_cache(maxsize=_MOST_TABLES)
def _grid_weights(path: Path) -> FloatArray:
    """Return the weights of all data sets that share their settings."""
    x, y = _stored(path)
    return weights_of(x, y.T).T


@lru_cache(maxsize=1024)  # each seed draws from the same data sets, a few kB each
def _own_weights(path: Path, data_set: int) -> FloatArray:
    x, y = _stored(path)
    return weights_of(x[data_set], y[data_set])


def tables(path: Path, num_clients: int, seed: int, unrelated: bool) -> list[Table]:
    """Return the objectives of one run: other data sets with another seed.

    There are fewer than ``num_clients`` where there are fewer data sets.
    """
    x, y = _stored(path)
    rng = np.random.default_rng(seed)
    dim, has_own_points, found = x.shape[-1], x.ndim == 3, []
    for data_set in rng.permutation(len(y))[:num_clients]:
        axes = rng.permutation(dim) if unrelated else np.arange(dim)
        shift = np.asarray(2.0 * unrelated * rng.random(dim))
        points, values = x[data_set] if has_own_points else x, y[data_set]
        number = int(data_set)
        weights = (
            _own_weights(path, number)
            if has_own_points
            else _grid_weights(path)[number]
        )
        ends = float(values.min()), float(values.max())
        found.append(Table(points, weights, *ends, axes, shift))
    return found


@dataclass(frozen=True)
class TableTask(Task):
    """Performance of a data set's model, from 0 to 1 between the worst and best known.

    Each client is another data set, drawn by the run's seed. Values between a table's
    settings are those of linear radial basis functions, within the table's range.

    Attributes
    ----------
    table : str
        A file of ``surfaces/`` in the folder FLWR_FBO_DATA, without its ending.
    unrelated : bool
        Whether each client's axes are permuted, and shifted at random (see `Table`), so
        that clients have nothing in common: no place is better than another on average.
    """

    name: Literal["table"] = "table"
    table: str = ""
    unrelated: bool = field(default=False, metadata=flag())
    direction: ClassVar[Literal["maximize"]] = "maximize"
    unit: ClassVar[str] = "share of the table's range"

    def __post_init__(self) -> None:
        super().__post_init__()
        is_name = re.fullmatch(r"\w+", self.table) is not None
        require(is_name, "table", self.table, "the name of a file of surfaces/")

    @property
    def _path(self) -> Path:
        return data_file("surfaces", f"{self.table}.npz", origin=_ORIGIN)

    @property
    def space(self) -> Mapping[str, BaseDistribution]:
        """x0, x1 and so on in [0, 1], the table's axes; DataError without the data."""
        dim = _stored(self._path)[0].shape[-1]
        return {name: FloatDistribution(0.0, 1.0) for name in names_of(dim)}

    def check(self, num_clients: int) -> None:
        """Raise ValueError unless there are as many data sets; DataError without."""
        require_clients(num_clients, len(_stored(self._path)[1]), "data set")

    def objective(self, client: int, num_clients: int, seed: int) -> Objective:
        """Return the values of the client's data set; ``seed`` decides which it is."""
        return tables(self._path, num_clients, seed, self.unrelated)[client]

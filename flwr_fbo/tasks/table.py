"""Look up what others have computed: a table of many data sets, one a client.

The tables are the files of ``surfaces/`` in the folder FLWR_FBO_DATA: real data sets,
or surrogates of real runs, at some hundred settings of D hyperparameters each.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, FloatDistribution
from scipy.spatial.distance import cdist

from flwr_fbo._arrays import FloatArray
from flwr_fbo._validation import require, require_bool
from flwr_fbo.datasets.base import damaged, data_file, read_arrays
from flwr_fbo.tasks.base import Objective, Task, register, require_clients

_ORIGIN = "from whoever made the tables, as no command does"


class Table:
    """One data set's values, and linear radial basis functions in between.

    Parameters
    ----------
    points : ndarray of shape (n, D)
        In the unit cube.
    values : ndarray of shape (n,)
        Larger is better.
    axes : ndarray of int, shape (D,)
        Which parameter each of the table's axes is.
    is_reflected : ndarray of bool, shape (D,)
        Of the parameters.

    Attributes
    ----------
    lowest, highest : float
        The table's range.
    """

    def __init__(
        self,
        points: FloatArray,
        values: FloatArray,
        axes: NDArray[np.int64],
        is_reflected: NDArray[np.bool_],
    ) -> None:
        self._points, self._axes, self._is_reflected = points, axes, is_reflected
        self.lowest, self.highest = float(values.min()), float(values.max())
        n = len(points)
        system = np.ones((n + 1, n + 1))
        system[:n, :n], system[n, n] = -cdist(points, points), 0.0
        self._weights, *_ = np.linalg.lstsq(system, np.append(values, 0.0))

    def __call__(self, params: dict[str, Any]) -> float:
        """Return the value at a setting, from 0 to 1 between the table's extremes."""
        x = np.array([params[name] for name in names_of(len(self._axes))])
        x = np.where(self._is_reflected, 1.0 - x, x)[self._axes]
        away = np.append(-cdist(x[None], self._points)[0], 1.0)
        value = float(np.clip(away @ self._weights, self.lowest, self.highest))
        return (value - self.lowest) / (self.highest - self.lowest)


def names_of(dim: int) -> list[str]:
    """Return what the parameters of a table of D dimensions are called."""
    return [f"x{d}" for d in range(dim)]


@lru_cache(maxsize=2)
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
    x = (x - lower) / (upper - lower)
    varied = np.ptp(y, axis=1) > 0  # else there is nothing to find
    return x[varied] if x.ndim == 3 else x, y[varied]


@lru_cache(maxsize=4)  # a method of one seed asks for one client after another
def tables(path: Path, num_clients: int, seed: int, unrelated: bool) -> list[Table]:
    """Return the objectives of one run: other data sets with another seed."""
    x, y = _stored(path)
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(len(y))[:num_clients]
    dim, found = x.shape[-1], []
    for client in chosen:
        axes, is_reflected = np.arange(dim), np.zeros(dim, dtype=np.bool_)
        if unrelated:
            axes = rng.permutation(dim)
            is_reflected = np.less(rng.random(dim), 0.5)
        points = x[client] if x.ndim == 3 else x
        found.append(Table(points, y[client], axes, is_reflected))
    return found


@register
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
        Whether each client's axes are permuted and reflected at random, so that clients
        have nothing in common.
    """

    name: Literal["table"] = "table"
    table: str = ""
    unrelated: bool = False
    direction: ClassVar[Literal["maximize"]] = "maximize"
    unit: ClassVar[str] = "share of the table's range"

    def __post_init__(self) -> None:
        ok = re.fullmatch(r"\w+", self.table) is not None
        require(ok, "table", self.table, "the name of a file of surfaces/")
        require_bool("unrelated", self.unrelated)

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

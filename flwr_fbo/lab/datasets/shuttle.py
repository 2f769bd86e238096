"""Statlog Shuttle: nine sensors of the space shuttle's radiators, seven classes.

UCI data set 148; both of its parts together, as in OpenML's ``shuttle``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flwr_fbo.lab.datasets.base import damaged, data_file, read_numbers

NUM_FEATURES = 9
_NORMAL, _NUM_CLASSES = 1, 7
_ROWS = {"shuttle.trn": 43_500, "shuttle.tst": 14_500}
_ORIGIN = "archive.ics.uci.edu/ml/machine-learning-databases/statlog/shuttle"


def load() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the table.

    Returns
    -------
    X : ndarray of shape (58000, 9)
        Nine sensor values of each row, as in the file.
    y : ndarray of shape (58000,)
        0 for the normal class, "Rad Flow", and 1 for the six others.

    Raises
    ------
    DataError
        If ``shuttle/shuttle.trn`` or ``shuttle/shuttle.tst`` is missing or damaged.
    """
    table = np.concatenate([_read(name, rows) for name, rows in _ROWS.items()])
    return table[:, :-1], (table[:, -1] != _NORMAL).astype(np.float64)


def _read(name: str, num_rows: int) -> NDArray[np.float64]:
    path = data_file("shuttle", name, origin=f"from {_ORIGIN}/")
    table = read_numbers(path, (num_rows, NUM_FEATURES + 1))
    if not np.isin(table[:, -1], np.arange(1, _NUM_CLASSES + 1)).all():
        raise damaged(path, f"other classes than 1 to {_NUM_CLASSES}")
    return table

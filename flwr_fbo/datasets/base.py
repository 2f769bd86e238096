"""What all loaders share."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_VARIABLE = "FLWR_FBO_DATA"


class DataError(RuntimeError):
    """A data set is missing or damaged; the message names the file and what to do."""


@dataclass(frozen=True, eq=False)
class Split:
    """One client's data, to train on and to validate on.

    Attributes
    ----------
    X_train, X_validation : array of shape (n, d)
        One example a row; n differs between the two.
    y_train, y_validation : array of shape (n,)
        The classes, from 0.
    """

    X_train: NDArray[np.float64]
    y_train: NDArray[np.int64]
    X_validation: NDArray[np.float64]
    y_validation: NDArray[np.int64]


def data_file(*parts: str) -> Path:
    """Return the path of a file in the folder that FLWR_FBO_DATA names.

    Parameters
    ----------
    *parts : str
        Of the path below that folder.

    Raises
    ------
    DataError
        If the variable is not set, or the folder or the file is not there.
    """
    name = "/".join(parts)
    remedy = f"Set {_VARIABLE} to the folder that holds {name}."
    folder = os.environ.get(_VARIABLE)
    if not folder:
        raise DataError(f"{name} cannot be found: {_VARIABLE} is not set. {remedy}")
    if not Path(folder).is_dir():
        raise DataError(f"{name} cannot be found: {folder} is no folder. {remedy}")
    path = Path(folder, *parts)
    if not path.is_file():
        raise DataError(f"{path} is missing. Put it there, or: {remedy}")
    return path

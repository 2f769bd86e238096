"""What all loaders share."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pooch
from numpy.typing import NDArray

_VARIABLE = "FLWR_FBO_DATA"


class DataError(RuntimeError):
    """A data set is missing or damaged; the message names the file and what to do."""


def damaged(
    path: Path, reason: str, remedy: str = "Replace it by the original."
) -> DataError:
    """Return the error for a file that is there, and not what its name promises."""
    return DataError(f"{path} is damaged, or is another file ({reason}). {remedy}")


@dataclass(frozen=True, eq=False)
class Split:
    """One client's data, to train on and to validate on.

    Attributes
    ----------
    X_train, X_validation : array of shape (n, d), or (n, height, width)
        One example a row; n differs between the two. Images are in single precision.
    y_train, y_validation : array of shape (n,)
        The classes, from 0.
    """

    X_train: NDArray[np.float64] | NDArray[np.float32]
    y_train: NDArray[np.int64]
    X_validation: NDArray[np.float64] | NDArray[np.float32]
    y_validation: NDArray[np.int64]


def data_folder() -> Path:
    """Return the folder of all data sets: FLWR_FBO_DATA if set, else a cache folder."""
    return Path(os.environ.get(_VARIABLE) or pooch.os_cache("flwr-fbo"))


def data_file(*parts: str, origin: str = "") -> Path:
    """Return the path of a file of a data set.

    Parameters
    ----------
    *parts : str
        Of the path below ``data_folder()``: the first is the data set's name.
    origin : str
        Where to get it, if there is no command that does.

    Raises
    ------
    DataError
        If the file is not there; the message says how to get it.
    """
    path = data_folder().joinpath(*parts)
    if not path.is_file():
        name = "/".join(parts)
        source = origin or f"with `flwr-fbo data download {parts[0]}`"
        raise DataError(
            f"{path} is missing. Fetch it {source}, or "
            f"set {_VARIABLE} to the folder that holds {name}."
        )
    return path

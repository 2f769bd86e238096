"""Helpers of all loaders."""

from __future__ import annotations

import lzma
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, Any
from zipfile import ZipFile

import numpy as np
import platformdirs
from numpy.typing import NDArray

from flwr_fbo._common.errors import PublicError

_CHUNK = 1 << 20


class DataError(PublicError, RuntimeError):
    """A data set is missing or damaged; the message names the file and what to do."""


def as_is(fetched: Path, to: Path) -> None:
    """Copy what is fetched: it is the data set."""
    with fetched.open("rb") as source:
        _write(source, to)


def decompressed(fetched: Path, to: Path) -> None:
    """Write the one file that is compressed in an ``.xz`` or ``.lzma`` file."""
    with lzma.open(fetched) as source:
        _write(source, to)


def from_zip_in_zip(
    inner: str, folder: str, members: tuple[str, ...]
) -> Callable[[Path, Path], None]:
    """Return what writes some files of a zip archive that lies in a zip archive.

    It raises KeyError if one is not there.

    Parameters
    ----------
    inner : str
        The name of the archive in the archive.
    folder : str
        Folder of the inner archive that holds the files.
    members : tuple of str
        Their names below that folder, here and there. The archive's own names are never
        made into paths, so nothing can be written elsewhere.
    """

    def unpack(fetched: Path, to: Path) -> None:
        with (
            ZipFile(fetched) as outer,
            outer.open(inner) as file,
            ZipFile(file) as archive,
        ):
            for member in members:
                with archive.open(f"{folder}/{member}") as source:
                    _write(source, to / member)

    return unpack


def _write(source: IO[bytes], to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    with to.open("xb") as target:
        shutil.copyfileobj(source, target, _CHUNK)


_VARIABLE = "FLWR_FBO_DATA"


def damaged(path: Path, reason: str) -> DataError:
    """Return the error for a file that is there, and not what its name promises."""
    text = f"{path} is damaged, or is another file ({reason})."
    return DataError(f"{text} Remove it and get it anew.")


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


def halves(X: NDArray[np.float64], y: NDArray[np.int64]) -> Split:
    """Return two halves with the same share of each class: always the same ones."""
    from sklearn.model_selection import train_test_split

    X_train, X_validation, y_train, y_validation = train_test_split(
        X, y, test_size=0.5, stratify=y, random_state=0
    )
    return Split(X_train, y_train, X_validation, y_validation)


def read_arrays(path: Path, names: Iterable[str]) -> list[NDArray[Any]]:
    """Return arrays of a NumPy file, or raise DataError."""
    try:
        with np.load(path) as file:
            return [file[name] for name in names]
    except Exception as error:  # zip, zlib and NumPy raise whatever they stumble over
        raise damaged(path, repr(error)) from error


def read_numbers(path: Path, shape: tuple[int, int]) -> NDArray[np.float64]:
    """Return the numbers of a text file, or raise DataError."""
    content = path.read_bytes()
    lines = content.count(b"\n")  # if the last is cut, so may be its last number
    if lines != shape[0]:
        raise damaged(path, f"{lines} whole lines, not {shape[0]}")
    try:
        numbers = np.loadtxt(BytesIO(content), ndmin=2)
    except ValueError as error:  # rows of several lengths, or no numbers
        raise damaged(path, str(error)) from error
    if numbers.shape != shape or not np.isfinite(numbers).all():
        raise damaged(path, f"not {shape[0]} rows of {shape[1]} finite numbers")
    return numbers


def data_folder() -> Path:
    """Return the folder of all data sets: FLWR_FBO_DATA if set, else a cache folder."""
    return Path(os.environ.get(_VARIABLE) or platformdirs.user_cache_path("flwr-fbo"))


def data_file(*parts: str, origin: str = "") -> Path:
    """Return the path of a file of a data set.

    Parameters
    ----------
    *parts : str
        Parts of the path below ``data_folder()``: the first is the data set's name.
    origin : str
        Address to get it from, if no command does.

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


@dataclass(frozen=True)
class Dataset:
    """One data set. Paths are relative to the folder of all data sets.

    Attributes
    ----------
    name : str
        As in ``flwr-fbo data download NAME``.
    summary : str
        Description in one line.
    url : str
        Address of the file that is fetched.
    sha256 : str
        SHA-256 of that file.
    size : int
        Size of that file, bytes.
    unpack : callable
        Makes the data set (its second argument) of that file (its first).
    unpacked : int
        Size of the unpacked files, bytes.
    target : str
        The file or folder that is the data set, in a folder of its own.
    members : tuple of str
        If ``target`` is a folder: the files in it that must be there.
    accepted : tuple of str
        Files that the loader reads where ``target`` is not there.
    licence, citation : str
        As the origin has them.
    """

    name: str
    summary: str
    url: str
    sha256: str
    size: int
    unpack: Callable[[Path, Path], None]
    unpacked: int
    target: str
    licence: str
    citation: str
    members: tuple[str, ...] = ()
    accepted: tuple[str, ...] = ()

    def is_complete(self, folder: Path) -> bool:
        """Return whether the data set itself is there."""
        target = folder / self.target
        files = [target / m for m in self.members] or [target]
        return all(file.is_file() for file in files)

    def found(self, folder: Path) -> str | None:
        """Return ``target`` if it is there, else what is accepted in its place.

        None where the target is not complete: the loaders refuse to look past it.
        """
        if (folder / self.target).exists():
            return self.target if self.is_complete(folder) else None
        return next((a for a in self.accepted if (folder / a).is_file()), None)

"""Download a data set, check it and unpack it; downloads are atomic."""

from __future__ import annotations

import fcntl
import io
import logging
import lzma
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import pooch
import requests

from flwr_fbo.lab.datasets.base import DataError, Dataset

_LOCK, _WORK = ".lock", ".part"
_CHUNK = 1 << 16
# How long the server may be silent, seconds.
TIMEOUT = 30.0


def fetch(
    dataset: Dataset,
    folder: Path,
    say: Callable[[str], object],
    *,
    progress: bool = False,
) -> bool:
    """Bring a data set into a folder, unless it is there; return whether it was not.

    All that is written before the data set is whole lies in ``.part`` beside its place,
    and goes with the next call at the latest, whatever has ended this one. Two calls at
    once take turns.

    Parameters
    ----------
    dataset : Dataset
        From the catalogue.
    folder : Path
        Of all data sets; made if it is not there.
    say : callable
        Gets a line about each step that may take long.
    progress : bool
        Whether to draw a bar on stderr.

    Raises
    ------
    DataError
        If it could not be fetched, is not the known file, or cannot be stored. Then
        there is nothing under the data set's name that was not there before.
    """
    if dataset.is_complete(folder):
        return False
    home = (folder / dataset.target).parent
    try:
        home.mkdir(parents=True, exist_ok=True)
        with _turn(home, say):
            if dataset.is_complete(folder):
                return False
            _check_place(dataset, folder / dataset.target)
            with _work_folder(home) as work:
                fetched = _retrieve(dataset, work, say, progress)
                _place(dataset, fetched, work, folder / dataset.target)
    except OSError as error:
        raise DataError(
            f"{dataset.name} cannot be stored in {home}: {error.strerror or error}. "
            "Nothing was kept."
        ) from error
    return True


@contextmanager
def _turn(home: Path, say: Callable[[str], object]) -> Iterator[None]:
    """Wait until no other process fetches to the same place."""
    with (home / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Another process is fetching it: waiting for that to end.")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _check_place(dataset: Dataset, target: Path) -> None:
    if target.exists():  # not complete: a folder in place of a file, or files missing
        raise DataError(f"{target} is there, but not complete. Remove it first.")
    free = shutil.disk_usage(target.parent).free
    needed = dataset.size + dataset.unpacked
    if free < needed:
        raise DataError(
            f"{dataset.name} needs {needed / 1e6:,.0f} MB of space in {target.parent}, "
            f"where {free / 1e6:,.0f} MB are free. Nothing was fetched."
        )


@contextmanager
def _work_folder(home: Path) -> Iterator[Path]:
    work = home / _WORK
    shutil.rmtree(work, ignore_errors=True)  # of a process that was killed
    work.mkdir()
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _retrieve(
    dataset: Dataset, work: Path, say: Callable[[str], object], progress: bool
) -> Path:
    """Return where the file is that was fetched and is the known one."""
    say(f"Fetching {dataset.size / 1e6:,.1f} MB from {dataset.url}")
    pooch.get_logger().setLevel(logging.WARNING)  # it would repeat that
    http = pooch.HTTPDownloader(
        progressbar=progress, chunk_size=_CHUNK, timeout=TIMEOUT
    )

    def download(url: str, path: str, registry: Any) -> None:
        with _BoundedFile(path, dataset.size) as file:
            http(url, file, registry)

    try:
        path = pooch.retrieve(
            dataset.url, f"sha256:{dataset.sha256}", "fetched", work, None, download
        )
    except _TooLongError:
        reason = f"more came than the known {dataset.size:,} bytes"
    except requests.RequestException as error:
        reason = _reason(error)
    except ValueError:
        reason = "what came is another file (its SHA-256 differs)"
    else:
        return Path(path)
    raise DataError(
        f"{dataset.name} could not be fetched from {dataset.url}: {reason}. "
        "Nothing was kept; the same command starts anew."
    )


class _TooLongError(Exception):
    """A server sends more than the data set has."""


class _BoundedFile(io.BufferedWriter):
    """A file for at most so many bytes."""

    def __init__(self, path: str, size: int) -> None:
        super().__init__(io.FileIO(path, "wb"))
        self._left = size

    def write(self, content: Any) -> int:
        """Write, unless that is too much."""
        self._left -= len(content)
        if self._left < 0:
            raise _TooLongError
        return super().write(content)


def _reason(error: requests.RequestException) -> str:
    if error.response is not None:
        return f"the server answered {error.response.status_code}"
    if isinstance(error, requests.Timeout):
        return f"no answer within {TIMEOUT:g} s"
    if isinstance(error, requests.exceptions.SSLError):
        return "the server's certificate was not accepted"
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "the connection was cut"
    return "there is no connection, or the server fell silent"


def _place(dataset: Dataset, fetched: Path, work: Path, target: Path) -> None:
    """Unpack, and give the result its name: the whole, in one step."""
    result = work / "unpacked"
    try:
        dataset.unpack(fetched, result)
    except (BadZipFile, KeyError, lzma.LZMAError, EOFError) as error:
        reason = f"what came cannot be unpacked ({error})"
        raise DataError(f"{dataset.name}: {reason}. Nothing was kept.") from error
    for file in [result / m for m in dataset.members] or [result]:
        with file.open("rb") as written:
            os.fsync(written)  # on the disk before it has its name
    result.rename(target)

"""Download a data set, check it and unpack it; downloads are atomic."""

from __future__ import annotations

import fcntl
import hashlib
import lzma
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from zipfile import BadZipFile

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
    advance: Callable[[int], object] = lambda size: None,
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
        Folder of all data sets; made if it is not there.
    say : callable
        Gets a line about each step that may take long.
    advance : callable
        Gets the size of each part of the file as it comes, in bytes.

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
                fetched = _retrieve(dataset, work, say, advance)
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
    dataset: Dataset,
    work: Path,
    say: Callable[[str], object],
    advance: Callable[[int], object],
) -> Path:
    """Return where the file is that was fetched and is the known one."""
    say(f"Fetching {dataset.size / 1e6:,.1f} MB from {dataset.url}")
    path, digest = work / "fetched", hashlib.sha256()
    try:
        with (
            path.open("wb") as file,
            requests.get(dataset.url, stream=True, timeout=TIMEOUT) as answer,
        ):
            answer.raise_for_status()
            for chunk in answer.iter_content(_CHUNK):
                file.write(chunk)
                digest.update(chunk)
                advance(len(chunk))
                if file.tell() > dataset.size:
                    break
    except requests.RequestException as error:
        reason = _reason(error)
    else:
        if digest.hexdigest() == dataset.sha256:
            return path
        reason = "what came is another file (its SHA-256 differs)"
        if path.stat().st_size > dataset.size:
            reason = f"more came than the known {dataset.size:,} bytes"
    raise DataError(
        f"{dataset.name} could not be fetched from {dataset.url}: {reason}. "
        "Nothing was kept; the same command starts anew."
    )


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

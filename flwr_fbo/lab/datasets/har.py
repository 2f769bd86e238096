"""Human activity recognition: smartphones worn by 30 subjects, one per client.

Anguita, Ghio, Oneto, Parra & Reyes-Ortiz, A public domain dataset for human activity
recognition using smartphones, ESANN 2013. Halved by the rule of the code that Dai, Low
& Jaillet (2020, 2021) published for landmines; their code for these data is not public.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.validation import require_index
from flwr_fbo.lab.datasets.base import (
    Dataset,
    Split,
    damaged,
    data_file,
    data_folder,
    from_zip_in_zip,
    halves,
    read_arrays,
    read_numbers,
)

NUM_SUBJECTS = 30
_NUM_FEATURES = 561
_SUBJECTS, _ACTIVITIES = range(1, NUM_SUBJECTS + 1), range(1, 7)
_OFFICIAL = "UCI HAR Dataset"
_REBUILT = "har_features561_rebuilt.npz"
_ROWS = {"train": 7352, "test": 2947}  # of the official parts; 10299 in all


_MEMBERS = (
    "README.txt",
    *(
        f"{part}/{column}_{part}.txt"
        for part in ("train", "test")
        for column in ("X", "y", "subject")
    ),
)
DATASET = Dataset(
    name="har",
    summary="Human activity recognition: smartphones worn by 30 subjects, 10,299 "
    "windows of 561 features, 6 activities.",
    # UCI states no hash. This hash and this size are what independent public
    # repositories recorded of their downloads, all the same.
    url="https://archive.ics.uci.edu/static/public/240/"
    "human+activity+recognition+using+smartphones.zip",
    sha256="c00b803081a5c797cd5e4b83700a9810b38d53d9d84e01917e090e1fdbc81031",
    size=61_005_872,
    unpack=from_zip_in_zip(f"{_OFFICIAL}.zip", _OFFICIAL, _MEMBERS),
    unpacked=92_517_559,
    target=f"har/{_OFFICIAL}",
    members=_MEMBERS,
    accepted=(f"har/{_REBUILT}",),
    licence="CC BY 4.0 by UCI; the README in the archive prohibits commercial use.",
    citation="Anguita, Ghio, Oneto, Parra & Reyes-Ortiz, A public domain dataset for "
    "human activity recognition using smartphones, ESANN 2013.",
)


class _Table(NamedTuple):
    """All windows in the official order: the train part, then the test part."""

    X: NDArray[np.float64]
    y: NDArray[np.int64]
    subject: NDArray[np.int64]


def partition(index: int) -> Split:
    """Return one subject's windows, half to train on and half to validate on.

    The halves have the same share of each activity; the official division, which is
    by subject, plays no part. Nothing is standardised.

    Parameters
    ----------
    index : int
        Number of the subject, from 0 to 29: the official number less one.

    Returns
    -------
    Split
        With d = 561 features from -1 to 1, and classes 0 to 5 in the official order,
        from walking to laying; 281 to 409 examples in all.

    Raises
    ------
    ValueError
        If there is no such subject.
    DataError
        If the data are missing or damaged. Read are the official text files in
        ``har/UCI HAR Dataset/`` or, where that folder is not there,
        ``har/har_features561_rebuilt.npz``.
    """
    require_index("index", index, NUM_SUBJECTS)
    table = _windows(data_folder() / "har")
    mine = table.subject == index + 1
    return halves(table.X[mine], table.y[mine] - 1)


@lru_cache(maxsize=1)
def _windows(folder: Path) -> _Table:
    rebuilt = folder / _REBUILT
    if rebuilt.is_file() and not (folder / _OFFICIAL).is_dir():
        return _checked(rebuilt, *read_arrays(rebuilt, _Table._fields))
    parts = [_read_official(part) for part in _ROWS]
    return _checked(folder / _OFFICIAL, *map(np.concatenate, zip(*parts, strict=True)))


def _read_official(part: str) -> tuple[NDArray[np.float64], ...]:
    """Return X, y and subject of the official text files of a part."""
    X, y, subject = (
        read_numbers(
            data_file("har", _OFFICIAL, part, f"{name}_{part}.txt"),
            (_ROWS[part], _NUM_FEATURES if name == "X" else 1),
        )
        for name in _Table._fields
    )
    return X, y.ravel(), subject.ravel()


def _checked(
    path: Path, X: NDArray[Any], y: NDArray[Any], subject: NDArray[Any]
) -> _Table:
    """Return finite features of every subject in every activity, twice at least."""
    rows = sum(_ROWS.values())
    shapes = (X.shape, y.shape, subject.shape)
    if shapes != ((rows, _NUM_FEATURES), (rows,), (rows,)):
        raise damaged(path, f"X, y and subject have the shapes {shapes}")
    if any(a.dtype.kind not in "fiu" for a in (X, y, subject)):
        raise damaged(path, "X, y or subject are no numbers")
    if not np.isfinite(X).all():
        raise damaged(path, "a feature is not finite")
    if not np.isin(subject, _SUBJECTS).all() or not np.isin(y, _ACTIVITIES).all():
        raise damaged(path, "a subject is not 1 to 30, or an activity not 1 to 6")
    groups = Counter(zip(subject.tolist(), y.tolist(), strict=True))
    for group in product(_SUBJECTS, _ACTIVITIES):
        if groups[group] < 2:
            raise damaged(path, f"too few rows of (subject, activity) {group}")
    return _Table(X.astype(float), y.astype(np.int64), subject.astype(np.int64))

"""Landmine detection: 29 fields seen by radar, one per client.

Xue, Liao, Carin & Krishnapuram, Multi-task learning for classification with Dirichlet
process priors, JMLR 8, 2007. Halved as by Dai, Low & Jaillet (2020, 2021).
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.validation import require_index
from flwr_fbo.lab.datasets.base import Dataset, Split, as_is, damaged, data_file, halves

NUM_FIELDS = 29
_NUM_FEATURES = 9

Field = tuple[NDArray[np.float64], NDArray[np.int64]]


DATASET = Dataset(
    name="landmine",
    summary="Landmines seen by radar: 29 fields, 14,820 examples of 9 features.",
    # The place that the data's authors name offers plain HTTP only, so this is the copy
    # in the repository of the first paper, at one commit; size and hash were counted
    # from that file.
    url="https://raw.githubusercontent.com/daizhongxiang/"
    "Differentially-Private-Federated-Bayesian-Optimization/"
    "e01b3f438de4a70dd03fe33cae231cc375fa8f26/LandmineData.mat",
    sha256="2163ab20a80e33a8b65593c48cf283c540599dcb291105e63fa4af2ce24c2bea",
    size=1_085_456,
    unpack=as_is,
    unpacked=1_085_456,
    target="landmine/LandmineData.mat",
    licence="None stated; published for research.",
    citation="Xue, Liao, Carin & Krishnapuram, Multi-task learning for classification "
    "with Dirichlet process priors, JMLR 8, 2007.",
)


def partition(index: int) -> Split:
    """Return one field, half to train on and half to validate on.

    The halves have the same share of mines, and are the published ones.

    Parameters
    ----------
    index : int
        Number of the field, from 0 to 28.

    Returns
    -------
    Split
        With d = 9 features, and classes 0 (clutter) and 1 (mine); 445 to 690 examples
        in all, 3 % to 9 % of them mines.

    Raises
    ------
    ValueError
        If there is no such field.
    DataError
        If ``landmine/LandmineData.mat`` is missing or damaged.
    """
    require_index("index", index, NUM_FIELDS)
    return halves(*_fields(data_file("landmine", "LandmineData.mat"))[index])


@lru_cache(maxsize=1)
def _fields(path: Path) -> tuple[Field, ...]:
    content = _read(path)
    features, labels = (np.asarray(content.get(name)) for name in ("feature", "label"))
    if not features.shape == labels.shape == (1, NUM_FIELDS):
        raise damaged(path, f"no 1 x {NUM_FIELDS} arrays 'feature' and 'label'")
    pairs = zip(features[0], labels[0], strict=True)
    return tuple(
        _field(path, i, np.asarray(X), np.asarray(y)) for i, (X, y) in enumerate(pairs)
    )


def _read(path: Path) -> dict[str, Any]:
    from scipy.io import loadmat

    try:
        content: dict[str, Any] = loadmat(path, appendmat=False)
    except Exception as error:  # scipy raises whatever its parser stumbles over
        raise damaged(path, repr(error)) from error
    return content


def _field(path: Path, index: int, X: NDArray[Any], y: NDArray[Any]) -> Field:
    """Return finite features and 0/1 labels, with two of each to halve."""
    table = X.ndim == 2 and X.shape[1] == _NUM_FEATURES and y.shape == (len(X), 1)
    numbers = X.dtype.kind in "fiu" and y.dtype.kind in "fiu"
    if not table or not numbers or not np.isfinite(X).all():
        raise damaged(path, f"field {index} is not n x {_NUM_FEATURES} numbers")
    if not np.isin(y, (0, 1)).all() or not 2 <= np.count_nonzero(y) <= len(y) - 2:
        raise damaged(path, f"field {index} has other labels than 0 and 1, or too few")
    return X.astype(np.float64), y.ravel().astype(np.int64)

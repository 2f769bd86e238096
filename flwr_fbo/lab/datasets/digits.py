"""scikit-learn's bundled digits (1797 images of 8 x 8 pixels), split over clients.

The share of each class that a client holds is a Dirichlet draw (Hsu, Qi & Brown, 2019):
the smaller its parameter, here 0.5, the less the clients' data look alike.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.validation import require_index, require_int
from flwr_fbo.lab.datasets.base import Split

_ALPHA = 0.5
# Of an image; and the variance of all pixels of all images.
NUM_PIXELS, PIXEL_VARIANCE = 64, 36.2
# So many clients get at least so many of the 1797 images each, in a few draws.
_MOST_CLIENTS, _MIN_SIZE = 40, 20


def partition(index: int, num_partitions: int, seed: int) -> Split:
    """Return one client's data, half to train on and half to validate on.

    Parameters
    ----------
    index : int
        Number of the client, from 0 to ``num_partitions - 1``.
    num_partitions : int
        From 1 to 40.
    seed : int
        Seed of the Dirichlet draw and the halving, >= 0.

    Returns
    -------
    Split
        With d = 64 features from 0 to 16, and classes 0 to 9.

    Raises
    ------
    ValueError
        If an argument is not allowed.
    """
    require_int("num_partitions", num_partitions, 1, _MOST_CLIENTS)
    require_index("index", index, num_partitions)
    require_int("seed", seed, 0)
    X, y = _images()
    rows = _draw(num_partitions, seed)[index]
    half = len(rows) // 2
    train, validation = rows[:half], rows[half:]
    return Split(X[train], y[train], X[validation], y[validation])


@lru_cache(maxsize=1)
def _images() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    return X, y


@lru_cache(maxsize=8)
def _draw(num_partitions: int, seed: int) -> tuple[NDArray[np.int64], ...]:
    """Return the clients' rows, shuffled, each with two classes in its first half."""
    _, y = _images()
    rng = np.random.default_rng(seed)
    while True:
        parts: list[list[NDArray[np.int64]]] = [[] for _ in range(num_partitions)]
        for label in np.unique(y):
            rows = rng.permutation(np.flatnonzero(y == label))
            shares = rng.dirichlet(np.full(num_partitions, _ALPHA))
            cuts = np.round(np.cumsum(shares)[:-1] * len(rows)).astype(int)
            for part, piece in zip(parts, np.split(rows, cuts), strict=True):
                part.append(piece)
        clients = tuple(rng.permutation(np.concatenate(part)) for part in parts)
        if all(
            len(c) >= _MIN_SIZE and len(set(y[c[: len(c) // 2]])) > 1 for c in clients
        ):
            return clients

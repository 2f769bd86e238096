"""Federated EMNIST: handwritten digits, one writer a client.

Three files hold such digits, and the first that is there is read (``source()``):

1. ``emnist/emnist_all.sqlite``, as TensorFlow Federated publishes it: 3,383 writers,
   about 101 images each to train on and 12 to test (Caldas et al., LEAF, 2018; Cohen et
   al., EMNIST, 2017). Its pixels, 1.0 = background, are turned over here.
2. ``emnist/emnist_digits.npz``, the first writers of that file in the same order, as
   ``flwr-fbo data export-emnist`` writes them: the same arrays.
3. ``digits/digits_by_writer_100.npz``, a stand-in of the same origin, NIST SD19: MNIST
   images with the writers of QMNIST (Yadav & Bottou, 2019). 100 writers of 100 to 130
   images, a ninth of them to test. Pixels have 8 bits, and the digits are centred by
   mass, not by bounding box; results on it are not results on EMNIST.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.validation import require_index
from flwr_fbo.lab.datasets.base import (
    DataError,
    Dataset,
    Split,
    damaged,
    data_file,
    data_folder,
    decompressed,
    read_arrays,
)
from flwr_fbo.lab.datasets.emnist_sqlite import SIDE, SqliteWriters

DATASET = Dataset(
    name="emnist",
    summary="Federated EMNIST: handwritten digits of 3,383 writers, 28 x 28 pixels.",
    # TensorFlow Federated names the place and no hash. Hash and sizes are what public
    # repositories recorded of their downloads, all the same.
    url="https://storage.googleapis.com/tff-datasets-public/emnist_all.sqlite.lzma",
    sha256="c3aaf91b4cf4e69d53d81627ad119eccdc878ff906f68e66063ff10f67faad48",
    size=170_507_172,
    unpack=decompressed,
    unpacked=4_708_990_976,
    target="emnist/emnist_all.sqlite",
    accepted=("emnist/emnist_digits.npz", "digits/digits_by_writer_100.npz"),
    licence="None stated; made of NIST Special Database 19, a U.S. government work.",
    citation="Cohen, Afshar, Tapson & van Schaik, EMNIST: extending MNIST to "
    "handwritten letters, IJCNN 2017; Caldas et al., LEAF: a benchmark for federated "
    "settings, 2018.",
)


def source() -> Path:
    """Return the file that is read.

    Raises
    ------
    DataError
        If there is none of the three.
    """
    for name in (DATASET.target, *DATASET.accepted):
        if (path := data_folder() / name).is_file():
            return path
    names = " and no ".join(DATASET.accepted)
    try:
        return data_file(*DATASET.target.split("/"))
    except DataError as error:
        raise DataError(f"{error} (There is no {names} either.)") from None


def num_partitions() -> int:
    """Return the number of writers in the file that is there.

    Raises
    ------
    DataError
        If there is no such file, or it is damaged.
    """
    return len(_writers(source()))


def partition(index: int) -> Split:
    """Return one writer's digits, in the file's halves and order.

    Parameters
    ----------
    index : int
        Number of the writer, from 0 to ``num_partitions() - 1``, in the order of their
        ids.

    Returns
    -------
    Split
        With float32 images of shape (n, 28, 28), 0.0 = background and 1.0 = ink, and
        classes 0 to 9. The file's test images are those to validate on.

    Raises
    ------
    ValueError
        If there is no such writer.
    DataError
        If there is no such file, or it is damaged.
    """
    writers = _writers(source())
    require_index("index", index, len(writers))
    return writers.split(index)


class ArrayWriters:
    """The writers of a NumPy file, in the order of their ids.

    The images stay in memory as they are in the file: 90 kB a writer where they are of
    8 bits, 350 kB in single precision.

    Parameters
    ----------
    path : Path
        Path of a file of ``images`` (n, 28, 28), 0 = background, uint8 to 255 or
        float32 to 1.0; ``labels`` (n,) from 0 to 9; ``writer`` (n,), numbers or text;
        ``is_test`` (n,) of bool.

    Raises
    ------
    DataError
        If the file has another format.
    """

    def __init__(self, path: Path) -> None:
        arrays = read_arrays(path, ("images", "labels", "writer", "is_test"))
        self._images, self._labels, writer, is_test = arrays
        if fault := _fault(*arrays):
            raise damaged(path, fault)
        _, number, counts = np.unique(writer, return_inverse=True, return_counts=True)
        rows = np.argsort(number, kind="stable")
        each = np.split(rows, np.cumsum(counts)[:-1])
        halves = [(rows[~is_test[rows]], rows[is_test[rows]]) for rows in each]
        self._rows = [
            (train, test) for train, test in halves if len(train) and len(test)
        ]
        if not self._rows:
            raise damaged(path, "no writer has images to train on and to test")

    def __len__(self) -> int:
        return len(self._rows)

    def split(self, index: int) -> Split:
        """Return one writer's images."""
        train, test = (self._take(rows) for rows in self._rows[index])
        return Split(*train, *test)

    def _take(
        self, rows: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        images = self._images[rows]
        if images.dtype == np.uint8:
            images = images / np.float32(255)
        return images, self._labels[rows].astype(np.int64)


@lru_cache(maxsize=1)
def _writers(path: Path) -> SqliteWriters | ArrayWriters:
    return SqliteWriters(path) if path.suffix == ".sqlite" else ArrayWriters(path)


def _fault(
    images: NDArray[Any],
    labels: NDArray[Any],
    writer: NDArray[Any],
    is_test: NDArray[Any],
) -> str | None:
    """Return what is wrong with the arrays, if anything is."""
    size = len(images) if images.ndim else 0
    if images.shape != (size, SIDE, SIDE) or images.dtype not in (np.uint8, np.float32):
        return f"'images' is not n x {SIDE} x {SIDE}, uint8 or float32"
    if not (images.dtype == np.uint8 or ((images >= 0) & (images <= 1)).all()):
        return "'images' has pixels outside 0..1"
    if not labels.shape == writer.shape == is_test.shape == (size,):
        return f"'labels', 'writer' and 'is_test' are not of length {size}"
    if labels.dtype.kind not in "iu" or not np.isin(labels, range(10)).all():
        return "'labels' are not integers from 0 to 9"
    if writer.dtype.kind not in "iuU" or is_test.dtype != bool:
        return "'writer' is neither integers nor text, or 'is_test' is not bool"
    return None

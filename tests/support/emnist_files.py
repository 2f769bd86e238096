"""Files of digits by writer, written by other means than the loader's."""

import sqlite3
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flwr_fbo.lab.datasets import emnist, emnist_sqlite
from flwr_fbo.lab.datasets.base import Split

TRAIN, TEST = emnist_sqlite.SPLITS
STAND_IN = Path("digits", "digits_by_writer_100.npz")
FIELDS = ("X_train", "y_train", "X_validation", "y_validation")

# Of each writer, the numbers of its images; each image shows its number.
Numbers = dict[tuple[str, str], list[int]]
NUMBERS: Numbers = {
    ("f0002_10", TRAIN): [5, 6, 7],
    ("f0000_14", TRAIN): [0, 1, 2, 3],
    ("f0000_14", TEST): [8],
    ("f0002_10", TEST): [9, 10],
    # Of no use to us: one half only, or letters.
    ("f0001_41", TRAIN): [11, 12],
    ("f0003_02", TEST): [13],
    ("f0000_14", "all_train"): [14, 15],
}


# A writer of tf.train.Example: from the wire format's definition, not by its reader.


def _varint(number: int) -> bytes:
    number %= 1 << 64
    digits = []
    while number > 127:
        digits.append(number % 128 + 128)
        number //= 128
    return bytes([*digits, number])


def field_of(number: int, payload: bytes) -> bytes:
    return _varint(number * 8 + 2) + _varint(len(payload)) + payload


def floats_feature(values: Sequence[float], packed: bool = True) -> bytes:
    each = [struct.pack("<f", value) for value in values]
    if packed:
        return field_of(2, field_of(1, b"".join(each)))
    return field_of(2, b"".join(b"\x0d" + one for one in each))


def ints_feature(values: Sequence[int], packed: bool = True) -> bytes:
    each = [_varint(value) for value in values]
    if packed:
        return field_of(3, field_of(1, b"".join(each)))
    return field_of(3, b"".join(b"\x08" + one for one in each))


def example_of(features: dict[str, bytes], unknown: bytes = b"") -> bytes:
    entries = (
        field_of(1, field_of(1, name.encode()) + field_of(2, feature + unknown))
        for name, feature in features.items()
    )
    return unknown + field_of(1, b"".join(entries) + unknown)


def pixels_of(number: int) -> NDArray[np.float32]:
    """A background with the image's number on it, in seven bits."""
    pixels = np.ones(784, np.float32)
    pixels[:7] = 1 - np.float32(0.3) * ((number >> np.arange(7)) & 1)
    return pixels


def message_of(number: int) -> bytes:
    packed = number % 2 == 0
    features = {
        "label": ints_feature([number % 10], packed),
        "pixels": floats_feature(pixels_of(number).tolist(), packed),
    }
    return example_of(features)


INDICES = (
    "CREATE INDEX by_writer ON examples (client_id)",
    "CREATE INDEX by_both ON examples (split_name, client_id)",
)


def write_sqlite(
    path: Path,
    numbers: Numbers = NUMBERS,
    message: Callable[[int], object] = message_of,
    extra: Sequence[str] = INDICES,
) -> Path:
    """Write a file as TFF's, except for what the statements in ``extra`` change."""
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(
            "CREATE TABLE examples (split_name TEXT NOT NULL, client_id TEXT NOT NULL,"
            " serialized_example_proto BLOB NOT NULL)"
        )
        connection.execute(
            "CREATE TABLE client_metadata (client_id TEXT NOT NULL,"
            " split_name TEXT NOT NULL, num_examples INTEGER NOT NULL)"
        )
        for (writer, split), images in numbers.items():
            rows = [(split, writer, message(number)) for number in images]
            connection.executemany("INSERT INTO examples VALUES (?, ?, ?)", rows)
            place = (writer, split, len(images))
            connection.execute("INSERT INTO client_metadata VALUES (?, ?, ?)", place)
        for statement in extra:
            connection.execute(statement)
    connection.close()
    return path


def columns_of(numbers: Numbers = NUMBERS) -> dict[str, NDArray[Any]]:
    """What ``numbers`` are in an .npz file."""
    rows = [
        (1 - pixels_of(number).reshape(28, 28), number % 10, writer, split == TEST)
        for (writer, split), images in numbers.items()
        if split in (TRAIN, TEST)
        for number in images
    ]
    names = ("images", "labels", "writer", "is_test")
    return {n: np.array(c) for n, c in zip(names, zip(*rows, strict=True), strict=True)}


def write_npz(path: Path, columns: dict[str, NDArray[Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **columns)  # type: ignore[arg-type]
    return path


def _eight_bits(columns: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return columns | {"images": np.round(columns["images"] * 255).astype(np.uint8)}


WRITE: dict[str, Callable[[Path], Path]] = {
    "sqlite": lambda path: write_sqlite(path / "emnist" / "emnist_all.sqlite"),
    "export": lambda path: write_npz(
        path / "emnist" / "emnist_digits.npz", columns_of()
    ),
    "stand-in": lambda path: write_npz(path / STAND_IN, _eight_bits(columns_of())),
}


def data_folder_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a data folder, and let the loader look there.

    It remembers the last file by its path, and pytest may give the path of a test that
    has passed to another one.
    """
    emnist._writers.cache_clear()
    # A name with what a URI would read as something else.
    path = tmp_path / "a folder?mode=rwc#50%25"
    path.mkdir()
    monkeypatch.setenv("FLWR_FBO_DATA", str(path))
    return path


def all_splits() -> list[Split]:
    return [emnist.partition(i) for i in range(emnist.num_partitions())]


def assert_equal(one: Split, other: Split) -> None:
    for name in FIELDS:
        a, b = getattr(one, name), getattr(other, name)
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)

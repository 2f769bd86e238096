"""Digits by writer: three files, of which the first that is there is read."""

import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flwr_fbo.lab.datasets import emnist
from flwr_fbo.lab.datasets.base import DataError
from tests.support.emnist_files import (
    INDICES,
    STAND_IN,
    TEST,
    TRAIN,
    WRITE,
    all_splits,
    assert_equal,
    columns_of,
    data_folder_of,
    write_npz,
    write_sqlite,
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return data_folder_of(tmp_path, monkeypatch)


needs_stand_in = pytest.mark.skipif(
    not Path(os.environ.get("FLWR_FBO_DATA", "/nowhere"), STAND_IN).is_file(),
    reason=f"{STAND_IN} is not in the folder that FLWR_FBO_DATA names",
)


def _number(image: NDArray[np.float32]) -> int:
    return int((image.ravel()[:7] > 0.1) @ (1 << np.arange(7)))


# The three files


@pytest.mark.parametrize("kind", WRITE)
def test_each_image_is_with_its_writer_in_its_half(kind: str, folder: Path) -> None:
    assert WRITE[kind](folder) == emnist.source()
    found = {
        (writer, half): [_number(image) for image in getattr(split, f"X_{half}")]
        for writer, split in enumerate(all_splits())
        for half in ("train", "validation")
    }
    assert found == {
        (0, "train"): [0, 1, 2, 3],
        (0, "validation"): [8],
        (1, "train"): [5, 6, 7],
        (1, "validation"): [9, 10],
    }


@pytest.mark.parametrize("kind", WRITE)
def test_arrays_are_what_is_promised(kind: str, folder: Path) -> None:
    WRITE[kind](folder)
    for split in all_splits():
        for half in ("train", "validation"):
            X, y = getattr(split, f"X_{half}"), getattr(split, f"y_{half}")
            assert X.shape == (len(y), 28, 28)
            assert (X.dtype, y.dtype) == (np.float32, np.int64)
            assert not X[:, 1:].any()  # the background
            assert X.max() == pytest.approx(0.3, abs=1 / 255)
            assert [_number(image) % 10 for image in X] == y.tolist()


def test_export_and_original_give_the_same_arrays(folder: Path) -> None:
    WRITE["export"](folder)
    exported = all_splits()
    WRITE["sqlite"](folder)
    for one, other in zip(all_splits(), exported, strict=True):
        assert_equal(one, other)


def test_the_first_file_that_is_there_is_read(folder: Path) -> None:
    for kind in ("stand-in", "export", "sqlite"):
        path = WRITE[kind](folder)
        assert emnist.source() == path
        assert emnist.num_partitions() == 2


def test_without_any_file_all_three_are_named(folder: Path) -> None:
    with pytest.raises(DataError) as error:
        emnist.num_partitions()
    for name in ("emnist_all.sqlite", "emnist_digits.npz", STAND_IN.name, "download"):
        assert name in str(error.value)


@pytest.mark.parametrize("kind", ["sqlite", "export"])
@pytest.mark.parametrize("index", [-1, 2, True])
def test_a_writer_who_is_not_there_is_refused(
    kind: str, index: Any, folder: Path
) -> None:
    WRITE[kind](folder)
    with pytest.raises(ValueError, match=f"index={index!r} is not allowed: 0 to 1"):
        emnist.partition(index)


@needs_stand_in
def test_the_stand_in_is_the_one_that_its_description_counts() -> None:
    path = Path(os.environ["FLWR_FBO_DATA"], STAND_IN)
    writers = emnist.ArrayWriters(path)
    splits = [writers.split(i) for i in range(len(writers))]
    sizes = [(len(s.y_train), len(s.y_validation)) for s in splits]
    assert len(splits) == 100
    assert np.sum(sizes) == 11_705
    assert sum(test for _, test in sizes) == 1296
    assert {100 <= train + test <= 130 for train, test in sizes} == {True}
    assert {11 <= test <= 14 for _, test in sizes} == {True}
    with np.load(path) as file:
        ids, is_test, images = file["writer"], file["is_test"], file["images"]
        assert len(set(file["mnist_index"])) == 11_705  # no image twice
    for split, one in zip(splits, sorted(set(ids)), strict=True):
        assert set(split.y_train) | set(split.y_validation) == set(range(10))
        for X, rows in (
            (split.X_train, (ids == one) & ~is_test),
            (split.X_validation, (ids == one) & is_test),
        ):
            assert X.dtype == np.float32
            np.testing.assert_allclose(X * 255, images[rows], atol=1e-4)
            assert np.median(X) == 0  # the background
            assert X.max() == 1


# One message


# Damaged files


def _refused(path: Path, *words: str) -> None:
    with pytest.raises(DataError) as error:
        all_splits()
    assert str(error.value).startswith(f"{path} is damaged, or is another file")
    assert "get it anew" in str(error.value)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("indexed", [True, False])
def test_a_truncated_database_is_refused(indexed: bool, folder: Path) -> None:
    path = folder / "emnist" / "emnist_all.sqlite"
    write_sqlite(path, extra=INDICES if indexed else ())
    content = path.read_bytes()
    for share in (0.0, 0.02, 0.3, 0.6, 0.9, 0.999):
        path.write_bytes(content[: int(share * len(content))])
        _refused(path)
    path.write_bytes(b"lorem ipsum " * 1000)
    _refused(path, "SQLite: ")


CHANGES = {
    "DROP TABLE examples": "no such table: examples",
    "ALTER TABLE examples RENAME serialized_example_proto TO proto": (
        "no such column: serialized_example_proto"
    ),
    "ALTER TABLE client_metadata RENAME num_examples TO n": (
        "no such column: num_examples"
    ),
    "UPDATE examples SET split_name = 'train'": "has 0 rows of writer 'f0000_14'",
    "DELETE FROM examples WHERE rowid = 2": (
        "digits_only_train has 2 rows of writer 'f0002_10', and 3 by client_metadata"
    ),
    "DELETE FROM client_metadata WHERE client_id = 'f0001_41'": (
        "digits_only_train has 2 rows of writer 'f0001_41', and 0 by client_metadata"
    ),
    "UPDATE client_metadata SET num_examples = 5 WHERE client_id = 'f0003_02'": (
        "digits_only_test has 1 rows of writer 'f0003_02', and 5 by client_metadata"
    ),
    "UPDATE client_metadata SET num_examples = 'many' WHERE rowid = 2": (
        "has 4 rows of writer 'f0000_14', and many by client_metadata"
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_database_is_refused(change: str, folder: Path) -> None:
    path = folder / "emnist" / "emnist_all.sqlite"
    write_sqlite(path, extra=(change,))
    _refused(path, CHANGES[change])


def test_a_database_without_a_whole_writer_is_refused(folder: Path) -> None:
    path = folder / "emnist" / "emnist_all.sqlite"
    write_sqlite(path, {("a", TRAIN): [1], ("b", TEST): [2]})
    _refused(path, "no writer has rows in digits_only_train and in digits_only_test")


@pytest.mark.parametrize("kind", ["export", "stand-in"])
def test_a_truncated_array_file_is_refused(kind: str, folder: Path) -> None:
    path = WRITE[kind](folder)
    content = path.read_bytes()
    for share in (0.0, 0.02, 0.5, 0.99):
        path.write_bytes(content[: int(share * len(content))])
        _refused(path)


def test_a_damaged_array_file_is_refused_or_gives_what_it_held(folder: Path) -> None:
    path = WRITE["export"](folder)
    whole, content = emnist.ArrayWriters(path), path.read_bytes()
    refused = 0
    for place in range(0, len(content), 25):
        damaged = bytearray(content)
        damaged[place] ^= 255
        path.write_bytes(damaged)
        try:
            assert_equal(emnist.ArrayWriters(path).split(1), whole.split(1))
        except DataError:
            refused += 1
    assert refused > len(content) / 25 / 2


@pytest.mark.parametrize("name", columns_of())
def test_an_array_file_without_an_array_is_refused(name: str, folder: Path) -> None:
    columns = columns_of()
    del columns[name]
    _refused(write_npz(folder / STAND_IN, columns), name)


def _replaced(column: NDArray[Any], row: int, value: Any) -> NDArray[Any]:
    column = column.copy()
    column[row] = value
    return column


IMAGES, LABELS, WRITER, IS_TEST = columns_of().values()
BAD_COLUMNS: dict[str, tuple[NDArray[Any], str]] = {
    "flat": (IMAGES.reshape(-1, 784), "images"),
    "NaN": (_replaced(IMAGES, 3, np.nan), "images"),
    "to 255": (IMAGES * 255, "images"),
    "objects": (IMAGES.astype(object), "images"),
    "fewer labels": (LABELS[1:], "labels"),
    "letters": (_replaced(LABELS, 3, 10), "labels"),
    "float writers": (np.arange(14.0), "writer"),
    "0 and 1": (IS_TEST.astype(int), "is_test"),
    "no test": (np.zeros(14, bool), "is_test"),
}


@pytest.mark.parametrize(
    ("column", "name"), BAD_COLUMNS.values(), ids=BAD_COLUMNS.keys()
)
def test_other_arrays_are_refused(
    column: NDArray[Any], name: str, folder: Path
) -> None:
    _refused(write_npz(folder / STAND_IN, columns_of() | {name: column}))


# Frugality


@pytest.mark.parametrize("extra", [INDICES[1:], INDICES[:1], ()])
def test_any_indices_will_do(extra: Sequence[str], folder: Path) -> None:
    write_sqlite(folder / "emnist" / "emnist_all.sqlite", extra=extra)
    found = [[_number(image) for image in split.X_train] for split in all_splits()]
    assert found == [[0, 1, 2, 3], [5, 6, 7]]


def _at_every_statement(
    patch: pytest.MonkeyPatch, seen: Callable[[str], object]
) -> None:
    connect = sqlite3.connect

    def traced(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **options)
        connection.set_trace_callback(seen)
        return connection

    patch.setattr(sqlite3, "connect", traced)


def test_with_the_published_indices_only_an_index_is_gone_through(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = WRITE["sqlite"](folder)
    asked: list[str] = []
    with monkeypatch.context() as patch:
        _at_every_statement(patch, asked.append)
        emnist.partition(0)
    connection = sqlite3.connect(path)
    plans = Counter(
        detail
        for query in asked
        if query.startswith("SELECT")
        for *_, detail in connection.execute(f"EXPLAIN QUERY PLAN {query}")
    )
    connection.close()
    assert plans == {
        "SEARCH examples USING COVERING INDEX by_both (split_name=?)": 1,
        "SCAN client_metadata": 1,
        # Five images, and nobody else's.
        "SEARCH examples USING INTEGER PRIMARY KEY (rowid=?)": 5,
    }


def test_nothing_is_written_beside_the_database(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = WRITE["sqlite"](folder)
    # In this mode others than an immutable connection write two files beside it.
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA journal_mode = WAL").fetchone() == ("wal",)
    connection.close()
    before = path.read_bytes()
    names: set[str] = set()
    _at_every_statement(
        monkeypatch, lambda _: names.update(p.name for p in path.parent.iterdir())
    )
    assert len(all_splits()) == 2
    assert names == {path.name}
    assert path.read_bytes() == before

"""Digits by writer: three files, the reading of TFF's, and the export by TFF itself."""

import json
import os
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import textwrap
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
import uv
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from typer.testing import CliRunner

from flwr_fbo.cli import export_emnist_command as command
from flwr_fbo.cli.errors import ends_like_ctrl_c
from flwr_fbo.datasets import emnist, emnist_sqlite
from flwr_fbo.datasets.base import DataError, Split
from flwr_fbo.datasets.emnist_sqlite import parse_example

TRAIN, TEST = emnist_sqlite.SPLITS
STAND_IN = Path("digits", "digits_by_writer_100.npz")
needs_stand_in = pytest.mark.skipif(
    not Path(os.environ.get("FLWR_FBO_DATA", "/nowhere"), STAND_IN).is_file(),
    reason=f"{STAND_IN} is not in the folder that FLWR_FBO_DATA names",
)
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


def _field(number: int, payload: bytes) -> bytes:
    return _varint(number * 8 + 2) + _varint(len(payload)) + payload


def _floats(values: Sequence[float], packed: bool = True) -> bytes:
    each = [struct.pack("<f", value) for value in values]
    if packed:
        return _field(2, _field(1, b"".join(each)))
    return _field(2, b"".join(b"\x0d" + one for one in each))


def _ints(values: Sequence[int], packed: bool = True) -> bytes:
    each = [_varint(value) for value in values]
    if packed:
        return _field(3, _field(1, b"".join(each)))
    return _field(3, b"".join(b"\x08" + one for one in each))


def _example(features: dict[str, bytes], unknown: bytes = b"") -> bytes:
    entries = (
        _field(1, _field(1, name.encode()) + _field(2, feature + unknown))
        for name, feature in features.items()
    )
    return unknown + _field(1, b"".join(entries) + unknown)


def _pixels(number: int) -> NDArray[np.float32]:
    """A background with the image's number on it, in seven bits."""
    pixels = np.ones(784, np.float32)
    pixels[:7] = 1 - np.float32(0.3) * ((number >> np.arange(7)) & 1)
    return pixels


def _message(number: int) -> bytes:
    packed = number % 2 == 0
    features = {
        "label": _ints([number % 10], packed),
        "pixels": _floats(_pixels(number).tolist(), packed),
    }
    return _example(features)


def _number(image: NDArray[np.float32]) -> int:
    return int((image.ravel()[:7] > 0.1) @ (1 << np.arange(7)))


INDICES = (
    "CREATE INDEX by_writer ON examples (client_id)",
    "CREATE INDEX by_both ON examples (split_name, client_id)",
)


def _write_sqlite(
    path: Path,
    numbers: Numbers = NUMBERS,
    message: Callable[[int], object] = _message,
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


def _columns(numbers: Numbers = NUMBERS) -> dict[str, NDArray[Any]]:
    """What ``numbers`` are in an .npz file."""
    rows = [
        (1 - _pixels(number).reshape(28, 28), number % 10, writer, split == TEST)
        for (writer, split), images in numbers.items()
        if split in (TRAIN, TEST)
        for number in images
    ]
    names = ("images", "labels", "writer", "is_test")
    return {n: np.array(c) for n, c in zip(names, zip(*rows, strict=True), strict=True)}


def _write_npz(path: Path, columns: dict[str, NDArray[Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **columns)  # type: ignore[arg-type]
    return path


def _eight_bits(columns: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return columns | {"images": np.round(columns["images"] * 255).astype(np.uint8)}


WRITE: dict[str, Callable[[Path], Path]] = {
    "sqlite": lambda path: _write_sqlite(path / "emnist" / "emnist_all.sqlite"),
    "export": lambda path: _write_npz(
        path / "emnist" / "emnist_digits.npz", _columns()
    ),
    "stand-in": lambda path: _write_npz(path / STAND_IN, _eight_bits(_columns())),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # A name with what a URI would read as something else.
    path = tmp_path / "a folder?mode=rwc#50%25"
    path.mkdir()
    monkeypatch.setenv("FLWR_FBO_DATA", str(path))
    return path


def _splits() -> list[Split]:
    return [emnist.partition(i) for i in range(emnist.num_partitions())]


def _equal(one: Split, other: Split) -> None:
    for name in FIELDS:
        a, b = getattr(one, name), getattr(other, name)
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


# The three files


@pytest.mark.parametrize("kind", WRITE)
def test_each_image_is_with_its_writer_in_its_half(kind: str, folder: Path) -> None:
    assert WRITE[kind](folder) == emnist.source()
    found = {
        (writer, half): [_number(image) for image in getattr(split, f"X_{half}")]
        for writer, split in enumerate(_splits())
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
    for split in _splits():
        for half in ("train", "validation"):
            X, y = getattr(split, f"X_{half}"), getattr(split, f"y_{half}")
            assert X.shape == (len(y), 28, 28)
            assert (X.dtype, y.dtype) == (np.float32, np.int64)
            assert not X[:, 1:].any()  # the background
            assert X.max() == pytest.approx(0.3, abs=1 / 255)
            assert [_number(image) % 10 for image in X] == y.tolist()


def test_export_and_original_give_the_same_arrays(folder: Path) -> None:
    WRITE["export"](folder)
    exported = _splits()
    WRITE["sqlite"](folder)
    for one, other in zip(_splits(), exported, strict=True):
        _equal(one, other)


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


@pytest.mark.parametrize("kind", WRITE)
@pytest.mark.parametrize("index", [-1, 2, True, 0.0, "0"])
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


PIXELS = arrays(np.float32, 784, elements=st.floats(0, 1, width=32))
# A number, eight bytes, bytes, four bytes: of fields that nobody knows.
UNKNOWN = st.sampled_from(
    [b"", b"\x78\x05", b"\x79" + b"8" * 8, _field(15, b"what"), b"\x7d1234"]
)


@given(
    pixels=PIXELS,
    label=st.integers(0, 9),
    packed=st.tuples(st.booleans(), st.booleans()),
    unknown=UNKNOWN,
    pixels_first=st.booleans(),
    more=st.dictionaries(st.sampled_from(["id", "", "pixel"]), UNKNOWN),
)
def test_what_is_written_is_read(
    pixels: NDArray[np.float32],
    label: int,
    packed: tuple[bool, bool],
    unknown: bytes,
    pixels_first: bool,
    more: dict[str, bytes],
) -> None:
    features = {
        "label": _ints([label], packed[0]),
        **more,
        "pixels": _floats(pixels.tolist(), packed[1]),
    }
    if pixels_first:
        features = dict(reversed(features.items()))
    image, found = parse_example(_example(features, unknown))
    assert image.dtype == np.float32
    np.testing.assert_array_equal(image, 1 - pixels.reshape(28, 28))
    assert found == label


def _bad(pixels: bytes | None = None, label: bytes | None = None) -> bytes:
    return _example(
        {"pixels": pixels or _floats([0.5] * 784), "label": label or _ints([3])}
    )


BAD_MESSAGES: dict[str, tuple[object, str]] = {
    "text": ("pixels", "is no bytes but str"),
    "nothing": (None, "is no bytes but NoneType"),
    "empty": (b"", "has 0 floats"),
    "garbage": (b"\xff\xfe\xfd", "is no tf.train.Example"),
    "cut": (_bad()[:-5], "is no tf.train.Example"),
    "other features": (_example({"x": _ints([1])}), "has 0 floats"),
    "fewer pixels": (_bad(_floats([0.5] * 783)), "has 783 floats"),
    "more pixels": (_bad(_floats([0.5] * 785)), "has 785 floats"),
    "integer pixels": (_bad(_ints([1] * 784)), "has 0 floats"),
    "bytes for pixels": (_bad(_field(1, _field(1, b"1" * 784))), "has 0 floats"),
    "NaN": (_bad(_floats([0.5] * 783 + [np.nan])), r"outside 0\.\.1"),
    "infinity": (_bad(_floats([np.inf] + [0.5] * 783)), r"outside 0\.\.1"),
    "above 1": (_bad(_floats([1.001] + [0.5] * 783)), r"outside 0\.\.1"),
    "below 0": (_bad(_floats([-0.001] + [0.5] * 783)), r"outside 0\.\.1"),
    "no label": (_bad(label=b"\x78\x05"), r"has 'label' \[\]"),
    "letter": (_bad(label=_ints([10])), r"has 'label' \[10\]"),
    "negative label": (_bad(label=_ints([-1])), r"has 'label' \[-1\]"),
    "two labels": (_bad(label=_ints([1, 2])), r"has 'label' \[1, 2\]"),
    "float label": (_bad(label=_floats([1.0])), r"has 'label' \[\]"),
}


@pytest.mark.parametrize(
    ("message", "reason"), BAD_MESSAGES.values(), ids=BAD_MESSAGES.keys()
)
def test_a_wrong_message_is_refused_with_file_and_row(
    message: object, reason: str, folder: Path
) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_example(message)
    # SQLite keeps no NULL in this column, and text as text.
    blob = b"" if message is None else message
    path = folder / "emnist" / "emnist_all.sqlite"
    _write_sqlite(path, message=lambda n: blob if n == 6 else _message(n))
    assert len(emnist.partition(0).y_train) == 4  # whom it does not concern
    with pytest.raises(DataError) as error:
        emnist.partition(1)
    assert f"{path} is damaged" in str(error.value)
    assert "row 2 of examples" in str(error.value)


@given(
    st.binary(max_size=60) | st.integers(0, len(_bad()) - 1).map(lambda i: _bad()[:i])
)
def test_no_bytes_are_read_that_are_no_message(message: bytes) -> None:
    with pytest.raises(ValueError, match=r"has|is"):
        parse_example(message)


@given(st.integers(0, len(_bad()) - 1), st.integers(0, 255))
def test_a_changed_byte_is_refused_or_gives_an_image(place: int, byte: int) -> None:
    message = bytearray(_bad())
    message[place] = byte
    try:
        image, label = parse_example(bytes(message))
    except ValueError:
        return
    assert image.shape == (28, 28)
    assert image.min() >= 0
    assert image.max() <= 1
    assert 0 <= label <= 9


# Damaged files


def _refused(path: Path, *words: str) -> None:
    with pytest.raises(DataError) as error:
        _splits()
    assert str(error.value).startswith(f"{path} is damaged, or is another file")
    assert "get it anew" in str(error.value)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.9, 0.999])
def test_a_truncated_database_is_refused(
    indexed: bool, share: float, folder: Path
) -> None:
    path = folder / "emnist" / "emnist_all.sqlite"
    _write_sqlite(path, extra=INDICES if indexed else ())
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    _refused(path)


@pytest.mark.parametrize("content", [b"", b"lorem ipsum " * 1000])
def test_what_is_no_database_is_refused(content: bytes, folder: Path) -> None:
    path = folder / "emnist" / "emnist_all.sqlite"
    path.parent.mkdir()
    path.write_bytes(content)
    _refused(path, "SQLite: ")


CHANGES = {
    "DROP TABLE examples": "no such table: examples",
    "DROP TABLE client_metadata": "no such table: client_metadata",
    "ALTER TABLE examples RENAME client_id TO client": "no such column: client_id",
    "ALTER TABLE examples RENAME split_name TO split": "no such column: split_name",
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
    _write_sqlite(path, extra=(change,))
    _refused(path, CHANGES[change])


def test_a_database_without_a_whole_writer_is_refused(folder: Path) -> None:
    path = folder / "emnist" / "emnist_all.sqlite"
    _write_sqlite(path, {("a", TRAIN): [1], ("b", TEST): [2]})
    _refused(path, "no writer has rows in digits_only_train and in digits_only_test")


@pytest.mark.parametrize("kind", ["export", "stand-in"])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.99])
def test_a_truncated_array_file_is_refused(
    kind: str, share: float, folder: Path
) -> None:
    path = WRITE[kind](folder)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    _refused(path)


def test_a_damaged_array_file_is_refused_or_gives_what_it_held(folder: Path) -> None:
    path = WRITE["export"](folder)
    whole, content = emnist.ArrayWriters(path), path.read_bytes()
    refused = 0
    for place in range(0, len(content), 5):
        damaged = bytearray(content)
        damaged[place] ^= 255
        path.write_bytes(damaged)
        try:
            _equal(emnist.ArrayWriters(path).split(1), whole.split(1))
        except DataError:
            refused += 1
    assert refused > len(content) / 5 / 2


@pytest.mark.parametrize("name", _columns())
def test_an_array_file_without_an_array_is_refused(name: str, folder: Path) -> None:
    columns = _columns()
    del columns[name]
    _refused(_write_npz(folder / STAND_IN, columns), name)


def _replaced(column: NDArray[Any], row: int, value: Any) -> NDArray[Any]:
    column = column.copy()
    column[row] = value
    return column


IMAGES, LABELS, WRITER, IS_TEST = _columns().values()
BAD_COLUMNS: dict[str, tuple[NDArray[Any], str]] = {
    "flat": (IMAGES.reshape(-1, 784), "images"),
    "one image": (IMAGES[0], "images"),
    "a number": (np.float32(1) * np.ones(()), "images"),
    "double": (IMAGES.astype(np.float64), "images"),
    "NaN": (_replaced(IMAGES, 3, np.nan), "images"),
    "to 255": (IMAGES * 255, "images"),
    "negative": (IMAGES - 1, "images"),
    "objects": (IMAGES.astype(object), "images"),
    "fewer labels": (LABELS[1:], "labels"),
    "letters": (_replaced(LABELS, 3, 10), "labels"),
    "below 0": (_replaced(LABELS, 3, -1), "labels"),
    "float labels": (LABELS.astype(float), "labels"),
    "fewer writers": (WRITER[1:], "writer"),
    "float writers": (np.arange(14.0), "writer"),
    "fewer flags": (IS_TEST[1:], "is_test"),
    "0 and 1": (IS_TEST.astype(int), "is_test"),
    "no test": (np.zeros(14, bool), "is_test"),
    "only test": (np.ones(14, bool), "is_test"),
}


@pytest.mark.parametrize(
    ("column", "name"), BAD_COLUMNS.values(), ids=BAD_COLUMNS.keys()
)
def test_other_arrays_are_refused(
    column: NDArray[Any], name: str, folder: Path
) -> None:
    _refused(_write_npz(folder / STAND_IN, _columns() | {name: column}))


# Frugality


@pytest.mark.parametrize("extra", [INDICES, INDICES[1:], INDICES[:1], ()])
def test_any_indices_will_do(extra: Sequence[str], folder: Path) -> None:
    _write_sqlite(folder / "emnist" / "emnist_all.sqlite", extra=extra)
    found = [[_number(image) for image in split.X_train] for split in _splits()]
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


def test_a_large_file_needs_little_memory(folder: Path) -> None:
    numbers = {
        (f"f{writer:04}", split): list(range(size))
        for writer in range(40)
        for split, size in ((TRAIN, 45), (TEST, 5))
    }
    path = folder / "emnist" / "emnist_all.sqlite"
    _write_sqlite(path, numbers, {n: _message(n) for n in range(45)}.__getitem__)
    emnist_sqlite.parse_example(_message(0))  # what is made once
    tracemalloc.start()
    split = emnist.partition(39)
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert path.stat().st_size > 6_000_000
    assert held < split.X_train.nbytes + split.X_validation.nbytes + 200_000
    assert peak < 1_000_000


@needs_stand_in
def test_the_stand_in_stays_in_memory_as_it_is_in_the_file() -> None:
    path = Path(os.environ["FLWR_FBO_DATA"], STAND_IN)
    tracemalloc.start()
    writers = emnist.ArrayWriters(path)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(writers) == 100
    assert held < 1.1 * 11_705 * 784


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
    assert len(_splits()) == 2
    assert names == {path.name}
    assert path.read_bytes() == before


# The export, by a uv that stands in for the real one


FAKE_UV = f"""#!{sys.executable}
import subprocess, sys, time
from pathlib import Path
run, option, script, folder, writers, result = sys.argv[1:]
assert (run, option) == ("run", "--script") and Path(script).is_file()
# As TFF's worker: it goes on when its parent has ended.
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
Path(folder, "..", "..", "pids").resolve().write_text(str(worker.pid))
print("Installed 67 packages in 300ms", flush=True)
{{action}}
"""
WRITES = """
import numpy as np
images = np.zeros((2 * int(writers), 28, 28), np.float32)
number = np.arange(len(images))
np.savez(result, images=images, labels=number % 10, writer=number // 2,
         is_test=number % 2 == 1)
"""


@pytest.fixture
def fake_uv(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], None]]:
    """A function of what uv shall do; what it started must have ended."""
    path = folder / "uv"

    def write(action: str) -> None:
        path.write_text(FAKE_UV.format(action=textwrap.dedent(action)))
        path.chmod(0o700)
        monkeypatch.setattr(uv, "find_uv_bin", lambda: str(path))

    yield write
    if (folder / "pids").is_file():
        assert _ended(int((folder / "pids").read_text()))


def _ended(pid: int) -> bool:
    """Whether the process ends within some seconds, or has been a zombie since."""
    for _attempt in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.1)
    return False


APP = typer.Typer()
APP.command()(command.export_emnist)


def _export(*arguments: str | Path, answer: str | None = None) -> Any:
    return CliRunner().invoke(APP, [str(a) for a in arguments], input=answer)


def _only_error(result: Any, *words: str) -> None:
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    (line,) = result.stderr.splitlines()
    for word in ("Error: ", *words):
        assert word in line


def _left_by_export(folder: Path) -> set[str]:
    return {p.name for p in (folder / "emnist").glob("*")}


def test_an_export_is_read(folder: Path, fake_uv: Callable[[str], None]) -> None:
    fake_uv(WRITES)
    result = _export("--writers=3", "--yes")
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{folder}/emnist/emnist_digits.npz: 3 writers\n"
    assert _left_by_export(folder) == {"emnist_digits.npz"}
    assert emnist.num_partitions() == 3


def test_an_export_goes_where_it_is_told(
    folder: Path, fake_uv: Callable[[str], None]
) -> None:
    fake_uv(WRITES)
    output = folder / "emnist" / "mine.npz"
    assert _export("--writers=1", "--yes", "--output", output).exit_code == 0
    assert len(emnist.ArrayWriters(output)) == 1
    _only_error(_export("--writers=2", "--yes", "--output", output), "there already")
    assert len(emnist.ArrayWriters(output)) == 1


@pytest.mark.parametrize("answer", ["n\n", "", "\n"])
def test_nothing_is_run_unasked(
    answer: str, folder: Path, fake_uv: Callable[[str], None]
) -> None:
    fake_uv(WRITES)
    result = _export("--writers=3", answer=answer)
    assert result.exit_code == 1
    for figure in ("2.5 GB", "a minute", "170 MB", "4.7 GB"):
        assert figure in result.output
    assert not (folder / "pids").exists()
    assert _left_by_export(folder) == set()


def test_a_yes_runs_it(folder: Path, fake_uv: Callable[[str], None]) -> None:
    source = _write_sqlite(folder / "tff")
    fake_uv(
        f"assert Path(folder, 'emnist_all.sqlite').samefile({str(source)!r})\n" + WRITES
    )
    result = _export("--writers=3", "--source", source, answer="y\n")
    assert result.exit_code == 0, result.output
    assert "170 MB" not in result.output
    assert source.is_file()


@pytest.mark.parametrize(
    ("action", "words"),
    [
        ("print('a'); sys.exit('There are 2 writers, not 3.\\n\\n')", ("2 writers,",)),
        ("raise OSError('no network')", ("OSError: no network",)),
        ("sys.stdout.buffer.write(b'50%\\r\\xff [/x]'); sys.exit(2)", ("\ufffd [/x]",)),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", ("Installed 67",)),
        ("Path(result).write_bytes(b'PK')", ("result.npz is damaged",)),
        ("", ("result.npz is damaged",)),
        (WRITES.replace("int(writers)", "2"), ("2 of 3 writers",)),
    ],
)
def test_a_failure_is_told_and_leaves_nothing(
    action: str, words: tuple[str], folder: Path, fake_uv: Callable[[str], None]
) -> None:
    fake_uv(action)
    _only_error(_export("--writers=3", "--yes"), *words)
    assert _left_by_export(folder) == set()


STOPPED = """
import signal, sys, typer, uv
from flwr_fbo.cli.export_emnist_command import export_emnist
# Whatever a shell or nohup has made of them for the tests.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
path = sys.argv.pop()
uv.find_uv_bin = lambda: path
typer.run(export_emnist)
"""


def test_a_signal_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as under nohup
    try:
        with ends_like_ctrl_c(signal.SIGHUP, signal.SIGTERM):
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        signal.SIGTERM,
        pytest.param(signal.SIGHUP, marks=pytest.mark.slow),
    ],
)
def test_a_stop_ends_everything_and_leaves_nothing(
    number: signal.Signals, folder: Path, fake_uv: Callable[[str], None]
) -> None:
    fake_uv("time.sleep(600)")
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED, "--writers=1", "--yes", folder / "uv"],
        stderr=subprocess.PIPE,
        text=True,
    )
    for _attempt in range(300):
        if (folder / "pids").is_file() and (folder / "pids").read_text():
            break
        time.sleep(0.1)
    assert process.poll() is None
    process.send_signal(number)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 130
    assert error == f"Stopped. {folder}/emnist/emnist_digits.npz was not written.\n"
    assert _left_by_export(folder) == set()


def test_without_uv_it_is_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find() -> str:
        raise FileNotFoundError("nowhere")

    monkeypatch.setattr(uv, "find_uv_bin", find)
    _only_error(_export("--writers=3", "--yes"), "uv is missing", "pip install uv")
    monkeypatch.setitem(sys.modules, "uv", None)
    _only_error(_export("--writers=3", "--yes"), "uv is missing", "pip install uv")


def test_a_full_disk_is_seen_before_the_work(
    folder: Path, fake_uv: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_uv(WRITES)
    usage = type(shutil.disk_usage(folder))(10**12, 10**12 - 10**9, 10**9)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    words = ("4.8 GB are needed, 1.0 GB are free", str(folder / "emnist"))
    _only_error(_export("--writers=300", "--yes"), *words)
    assert not (folder / "pids").exists()
    source = _write_sqlite(folder / "tff")
    assert _export("--writers=3", "--yes", "--source", source).exit_code == 0


def test_an_output_that_cannot_be_written_is_seen_before_the_work(
    folder: Path, fake_uv: Callable[[str], None]
) -> None:
    fake_uv(WRITES)
    (folder / "file").touch()
    output = folder / "file" / "x.npz"
    _only_error(_export("--writers=3", "--yes", "--output", output), "file")
    if os.geteuid() != 0:  # root may write anywhere
        (folder / "emnist").mkdir(0o500)
        _only_error(_export("--writers=3", "--yes"), "Permission denied")
    assert not (folder / "pids").exists()


@pytest.mark.parametrize(
    "option", ["--writers=0", "--writers=3384", "--source=/nowhere", "--output=/tmp"]
)
def test_a_wrong_option_is_refused(option: str, fake_uv: Callable[[str], None]) -> None:
    fake_uv(WRITES)
    result = _export("--writers=3", "--yes", option)
    assert result.exit_code == 2
    assert "Invalid value" in result.output


# The export by tensorflow-federated itself


BY_TENSORFLOW = """
import json, sys
import numpy as np, tensorflow as tf
for line in sys.stdin:
    pixels, label = json.loads(line)
    example = tf.train.Example(features=tf.train.Features(feature={
        "pixels": tf.train.Feature(float_list=tf.train.FloatList(value=pixels)),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }))
    print(example.SerializeToString().hex())
"""


@pytest.fixture(scope="module")
def tff_python() -> str:
    """The Python of the script's environment, made from what uv has in its cache."""
    arguments = ("--offline", "--script", command.SCRIPT)
    synced = subprocess.run(
        [uv.find_uv_bin(), "sync", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if synced.returncode:
        reason = (
            f"uv sync --script {command.SCRIPT} has not been run: {synced.stderr!r}"
        )
        if os.environ.get("FLWR_FBO_REQUIRE_ENGINE"):
            pytest.fail(f"FLWR_FBO_REQUIRE_ENGINE is set, but {reason}")
        pytest.skip(reason)
    found = subprocess.run(
        [uv.find_uv_bin(), "python", "find", *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    return found.stdout.strip()


def _with_marker(marker: str) -> list[int]:
    """The processes that inherited an environment variable, but for this one."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # it has ended, or is somebody else's
        if marker.encode() in environment and int(process.name) != os.getpid():
            found.append(int(process.name))
    return found


@pytest.mark.slow
def test_tff_and_the_loader_agree(
    folder: Path, tff_python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    drawn = [(rng.random(784, np.float32), n % 10) for n in range(16)]
    drawn[0][0][:4] = 0, 1, np.float32(1e-40), np.nextafter(np.float32(1), 0)
    lines = "\n".join(json.dumps([p.tolist(), label]) for p, label in drawn)
    encoded = subprocess.run(
        [tff_python, "-I", "-c", BY_TENSORFLOW],
        input=lines,
        capture_output=True,
        text=True,
        check=True,
    )
    messages = [bytes.fromhex(line) for line in encoded.stdout.split()]
    # Every third one as protobuf also allows it, but TensorFlow does not write it.
    for n in range(0, 16, 3):
        pixels, label = drawn[n]
        features = {
            "pixels": _floats(pixels.tolist(), packed=False),
            "label": _ints([label], packed=False),
        }
        messages[n] = _example(features)
    source = _write_sqlite(
        folder / "emnist" / "emnist_all.sqlite", message=messages.__getitem__
    )
    ours = _splits()
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("FLWR_FBO_TEST", str(folder))
    result = _export("--writers=2", "--source", source, "--yes")
    assert result.exit_code == 0, result.output
    assert not _with_marker(f"FLWR_FBO_TEST={folder}")
    theirs = emnist.ArrayWriters(folder / "emnist" / "emnist_digits.npz")
    assert len(ours) == len(theirs) == 2
    for i, split in enumerate(ours):
        _equal(split, theirs.split(i))
    numbers = NUMBERS["f0002_10", TRAIN]
    expected = [1 - drawn[n][0].reshape(28, 28) for n in numbers]
    np.testing.assert_array_equal(ours[1].X_train, expected)
    assert ours[1].y_train.tolist() == numbers

    output = ("--output", folder / "second.npz")
    result = _export("--writers=3", "--source", source, "--yes", *output)
    _only_error(result, "There are 2 writers, not 3.")
    assert not _with_marker(f"FLWR_FBO_TEST={folder}")

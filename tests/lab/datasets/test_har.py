"""The HAR loader: the published counts, the halves, and what it refuses."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flwr_fbo.lab.datasets import har
from flwr_fbo.lab.datasets.base import DataError, Split
from flwr_fbo.lab.datasets.har import NUM_SUBJECTS, partition

REBUILT = Path("har", "har_features561_rebuilt.npz")
OFFICIAL = Path("har", "UCI HAR Dataset")
FOLDER = Path(os.environ.get("FLWR_FBO_DATA", "/nowhere"))
needs_har = pytest.mark.skipif(
    not (FOLDER / REBUILT).is_file(),
    reason=f"{REBUILT} is not in the folder that FLWR_FBO_DATA names",
)

# As counted from subject_train.txt and subject_test.txt.
ROWS = """347 302 341 317 302 325 308 281 288 294 316 320 327 323 328
          366 368 364 360 354 408 321 372 381 409 392 376 382 344 383"""


def _rows(split: Split) -> list[bytes]:
    both = np.concatenate([split.X_train, split.X_validation])
    return [row.tobytes() for row in both]


@needs_har
def test_the_subjects_are_the_published_ones() -> None:
    subjects = [partition(i) for i in range(NUM_SUBJECTS)]
    sizes = [len(s.y_train) + len(s.y_validation) for s in subjects]
    assert sizes == [int(n) for n in ROWS.split()]
    assert (min(sizes), max(sizes), sum(sizes)) == (281, 409, 10_299)
    for s in subjects:
        assert s.X_train.shape == (len(s.y_train), 561)
        assert s.X_validation.shape == (len(s.y_validation), 561)
        assert s.X_train.dtype == np.float64
        assert s.y_train.dtype == s.y_validation.dtype == np.int64
        assert max(np.abs(s.X_train).max(), np.abs(s.X_validation).max()) <= 1
    y = np.concatenate([np.append(s.y_train, s.y_validation) for s in subjects])
    assert np.bincount(y).tolist() == [1722, 1544, 1406, 1777, 1906, 1944]


@needs_har
def test_no_window_is_used_twice() -> None:
    rows = [row for i in range(NUM_SUBJECTS) for row in _rows(partition(i))]
    assert len(set(rows)) == len(rows) == 10_299  # all windows differ


@needs_har
def test_every_window_comes_with_its_own_subject_and_activity() -> None:
    with np.load(FOLDER / REBUILT) as content:
        X, y, subject = (content[name] for name in ("X", "y", "subject"))
    owner = {
        row.astype(np.float64).tobytes(): (int(s) - 1, int(a) - 1)
        for row, s, a in zip(X, subject, y, strict=True)
    }
    for index in (0, 13, 29):
        split = partition(index)
        labels = np.append(split.y_train, split.y_validation).tolist()
        assert [owner[row] for row in _rows(split)] == [(index, y) for y in labels]


@needs_har
def test_halves_are_even_in_size_and_activities_and_always_the_same() -> None:
    for index in range(NUM_SUBJECTS):
        split, again = partition(index), partition(index)
        assert 0 <= len(split.y_validation) - len(split.y_train) <= 1
        train, validation = np.bincount(split.y_train), np.bincount(split.y_validation)
        assert len(train) == len(validation) == 6
        assert np.abs(train - validation).max() <= 1
        np.testing.assert_array_equal(split.X_train, again.X_train)
        np.testing.assert_array_equal(split.y_validation, again.y_validation)


@needs_har
def test_what_a_caller_changes_stays_with_the_caller() -> None:
    before = partition(3).X_train.copy()
    partition(3).X_train[:] = 7
    np.testing.assert_array_equal(partition(3).X_train, before)


@pytest.mark.parametrize("index", [-1, 30, True, 1.0])
def test_a_bad_subject_is_named(index: Any) -> None:
    with pytest.raises(ValueError, match=f"index={index!r} is not allowed: 0 to 29"):
        partition(index)


@needs_har
@pytest.mark.slow
def test_official_files_of_full_size_give_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with np.load(FOLDER / REBUILT) as content:
        table = {name: content[name] for name in ("X", "y", "subject")}
    rebuilt = [partition(i) for i in range(NUM_SUBJECTS)]
    _write_official(tmp_path, table, 7352)
    monkeypatch.setenv("FLWR_FBO_DATA", str(tmp_path))
    for index, expected in enumerate(rebuilt):
        split = partition(index)
        np.testing.assert_allclose(split.X_train, expected.X_train, atol=1e-7)
        np.testing.assert_array_equal(split.y_train, expected.y_train)
        np.testing.assert_array_equal(split.y_validation, expected.y_validation)


# Small files of the same make

Table = dict[str, NDArray[Any]]


def _small_table() -> Table:
    """Return 30 subjects, 6 activities, 2 windows of 3 features of each."""
    subject, y = (a.ravel() for a in np.mgrid[1:31, 1:7].repeat(2, axis=2))
    X = np.linspace(-1, 1, 360 * 3).reshape(360, 3)
    return {"X": X, "y": y, "subject": subject}


def _write_official(folder: Path, table: Table, train_rows: int) -> None:
    """Write the official text files: blanks, and exponents of three digits."""
    for part, rows in (
        ("train", slice(None, train_rows)),
        ("test", slice(train_rows, None)),
    ):
        home = folder / OFFICIAL / part
        home.mkdir(parents=True)
        lines = (
            "".join(f" {value:15.7e}" for value in row).replace("e-0", "e-00")
            for row in table["X"][rows].tolist()
        )
        (home / f"X_{part}.txt").write_text("".join(f"{line}\n" for line in lines))
        for name in ("y", "subject"):
            np.savetxt(home / f"{name}_{part}.txt", table[name][rows], fmt="%d")


def _write_rebuilt(folder: Path, table: Table) -> None:
    (folder / REBUILT).parent.mkdir(exist_ok=True)
    columns: dict[str, Any] = {**table}
    np.savez_compressed(folder / REBUILT, **columns)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder of data sets; the loader expects the small table."""
    monkeypatch.setenv("FLWR_FBO_DATA", str(tmp_path))
    monkeypatch.setattr(har, "_ROWS", {"train": 240, "test": 120})
    monkeypatch.setattr(har, "_NUM_FEATURES", 3)
    return tmp_path


def _refusal() -> str:
    with pytest.raises(DataError) as error:
        partition(0)
    text = str(error.value)
    assert len(text.splitlines()) == 1
    return text


def test_without_data_the_command_is_named(folder: Path) -> None:
    text = _refusal()
    assert f"{folder / OFFICIAL / 'train' / 'X_train.txt'} is missing" in text
    assert "`flwr-fbo data download har`" in text
    assert "FLWR_FBO_DATA" in text


def test_official_files_are_read_before_rebuilt_ones(folder: Path) -> None:
    table = _small_table()
    _write_rebuilt(folder, {**table, "X": table["X"] / 2})
    np.testing.assert_allclose(partition(29).X_train[:, 0].max(), 0.5, atol=0.05)
    har._windows.cache_clear()  # a running process does not look again
    _write_official(folder, table, 240)
    for index in range(NUM_SUBJECTS):
        split = partition(index)
        expected = table["X"][table["subject"] == index + 1]
        both = np.concatenate([split.X_train, split.X_validation])
        np.testing.assert_allclose(np.sort(both, axis=0), expected, atol=1e-7)
        assert sorted(split.y_train) == sorted(split.y_validation) == list(range(6))


OFFICIAL_FILES = [
    Path(part, f"{name}_{part}.txt")
    for part in ("train", "test")
    for name in ("X", "y", "subject")
]


def test_each_official_file_must_be_there(folder: Path) -> None:
    _write_official(folder, _small_table(), 240)
    _write_rebuilt(folder, _small_table())  # does not stand in for one file
    for name in OFFICIAL_FILES:
        path = folder / OFFICIAL / name
        content = path.read_bytes()
        path.unlink()
        assert f"{path} is missing" in _refusal()
        path.write_bytes(content)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda whole: b"",
    "half": lambda whole: whole[: len(whole) // 2],
    "words": lambda whole: b"words " + whole,
    "in a number": lambda whole: whole[:-2],
    "a line more": lambda whole: whole + whole.splitlines(keepends=True)[0],
    "a column more": lambda whole: whole.replace(b"\n", b" 1\n"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_official_files_are_named(damage: str, folder: Path) -> None:
    _write_official(folder, _small_table(), 240)
    for name in OFFICIAL_FILES[:3]:  # those of the test part are read alike
        path = folder / OFFICIAL / name
        whole = path.read_bytes()
        path.write_bytes(DAMAGES[damage](whole))
        text = _refusal()
        assert f"{path} is damaged, or is another file" in text
        assert "Remove it and get it anew" in text
        path.write_bytes(whole)


def test_the_rebuilt_file_cut_short_is_refused(folder: Path) -> None:
    _write_rebuilt(folder, _small_table())
    path = folder / REBUILT
    whole = path.read_bytes()
    for content in (b"", b"rubbish", whole[:60], whole[: len(whole) // 2], whole[:-9]):
        path.write_bytes(content)
        assert f"{path} is damaged, or is another file" in _refusal()
    path.write_bytes(whole)  # a refusal is not remembered
    assert partition(29).X_train.shape == (6, 3)


def _with(name: str, where: Any, value: Any) -> Table:
    table = _small_table()
    table[name] = table[name].copy()
    table[name][where] = value
    return table


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"X": np.zeros((360, 3))}, "KeyError"),
        (_small_table() | {"X": np.zeros((360, 2))}, "have the shapes"),
        (_small_table() | {"X": np.full((360, 3), "a")}, "are no numbers"),
        (_small_table() | {"X": np.full((360, 3), {})}, "pickle"),
        (_with("X", (359, 2), np.nan), "a feature is not finite"),
        (_with("subject", 5, 31), "a subject is not 1 to 30"),
        (_with("y", 5, 7), "or an activity not 1 to 6"),
        (_small_table() | {"y": np.full(360, 1.5)}, "or an activity not 1 to 6"),
        # Subject 17's windows are said to be subject 18's.
        (_with("subject", slice(192, 204), 18), "few rows of (subject, activity) (17"),
        # One window of subject 1 is given to another activity.
        (_with("y", 0, 2), "too few rows of (subject, activity) (1, 1)"),
    ],
)
def test_other_contents_are_refused(table: Table, words: str, folder: Path) -> None:
    _write_rebuilt(folder, table)
    text = _refusal()
    assert str(folder / REBUILT) in text
    assert words in text


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (_with("X", (359, 2), np.nan), "finite numbers"),
        (_with("subject", slice(192, 204), 18), "few rows of (subject, activity) (17"),
    ],
)
def test_other_official_contents_are_refused(
    table: Table, words: str, folder: Path
) -> None:
    _write_official(folder, table, 240)
    text = _refusal()
    assert text.startswith(str(folder / OFFICIAL))
    assert words in text

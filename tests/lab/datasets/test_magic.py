"""The two tables of clustered bandits, MAGIC and Shuttle, and damage to them."""

from pathlib import Path

import pytest

from flwr_fbo.lab.datasets import magic, shuttle
from flwr_fbo.lab.datasets.base import DataError, data_folder

MAGIC_ROW = "1,2,3,4,5,6,7,8,9,10"


def _need(*parts: str) -> None:
    if not data_folder().joinpath(*parts).is_file():
        pytest.skip(f"{'/'.join(parts)} is not in the folder that FLWR_FBO_DATA names")


def test_the_tables_are_the_known_ones() -> None:
    _need("magic", "magic04.data")
    X, y = magic.load()
    assert X.shape == (19_020, 10)
    assert y.sum() == 12_332
    assert X[0, 0] == 28.7967
    _need("shuttle", "shuttle.tst")
    X, y = shuttle.load()
    assert X.shape == (58_000, 9)
    assert y.sum() == 58_000 - 45_586


def _write(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_missing_tables_say_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLWR_FBO_DATA", str(tmp_path))
    with pytest.raises(DataError, match="flwr-fbo data download magic"):
        magic.load()
    with pytest.raises(DataError, match=r"Fetch it from archive\.ics\.uci\.edu"):
        shuttle.load()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not 2 rows"),
        (f"{MAGIC_ROW},g\n{MAGIC_ROW},x\n", "other classes"),
        (f"{MAGIC_ROW},g\n1,2,3,4,5,6,7,8,9,inf,h\n", "not 2 rows"),
        (f"{MAGIC_ROW},g\na,2,3,4,5,6,7,8,9,10,h\n", "could not convert"),
    ],
)
@pytest.mark.filterwarnings("ignore:loadtxt")
def test_a_damaged_magic_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, reason: str
) -> None:
    monkeypatch.setenv("FLWR_FBO_DATA", str(tmp_path))
    monkeypatch.setattr(magic, "_NUM_ROWS", 2)
    _write(tmp_path, "magic/magic04.data", text)
    with pytest.raises(DataError, match=reason):
        magic.load()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1 2 3\n", "not 1 rows"),
        ("1 2 3 4 5 6 7 8 9 8\n", "other classes"),
    ],
)
def test_a_damaged_shuttle_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, reason: str
) -> None:
    monkeypatch.setenv("FLWR_FBO_DATA", str(tmp_path))
    monkeypatch.setattr(shuttle, "_ROWS", {"shuttle.trn": 1})
    _write(tmp_path, "shuttle/shuttle.trn", text)
    with pytest.raises(DataError, match=reason):
        shuttle.load()

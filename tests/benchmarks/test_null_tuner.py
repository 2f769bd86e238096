"""`python -m benchmarks.null_tuner`, a few tuners of it."""

import sys
from pathlib import Path

import pytest

from benchmarks import null_tuner
from benchmarks.rows import read_rows


@pytest.mark.parametrize("cell", ["key 0.2 8", "key 0.5 8", "identical 8", "app 8"])
def test_a_replay_measures_what_was_compared(cell: str) -> None:
    """Both measure the same: two models where they were compared, and at their ends."""
    for seed in range(20):
        row = null_tuner.row_of(cell, seed, "replayed")
        if "p" in row:
            break
    assert row["chosen"] != 0
    assert all(0 < accuracy <= 1 for accuracy in [*row["test"], *row["final"]])
    assert 0 < row["p"] <= 1
    assert 0 < row["settings_p"] <= 1


def test_rows_are_kept_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.jsonl"
    ways: list[list[str]] = [[], ["--unsteered"], ["--real"]]
    for way in ways:
        options = [str(path), "--cells", "key 0.2 8", "--tuners", "1", *way]
        monkeypatch.setattr(sys, "argv", ["null_tuner", *options])
        null_tuner.main()
    rows = read_rows(path)
    assert [row["how"] for row in rows] == ["replayed", "unsteered", "real"]
    told = capsys.readouterr().out.splitlines()[-3:]
    assert [line.split(" | ")[1] for line in told] == list(null_tuner.HOW)
    assert not any(row["beaten"] for row in rows)

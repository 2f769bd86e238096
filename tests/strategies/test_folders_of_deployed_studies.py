"""A deployed study has a record, and a misspelled one begins no other study."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flwr_fbo.study.kinds import SERVER_FILE
from tests.support.enrolment import KeyGrid
from tests.support.federation import NUM_AGENTS, numpy_app, strategy


def start(folder: Path | None, num_rounds: int = 3, **options: Any) -> KeyGrid:
    grid = KeyGrid(NUM_AGENTS, numpy_app())
    study = strategy(folder=folder, **{"authenticated": True, **options})
    study.start(grid, num_rounds=num_rounds)
    return grid


def test_without_a_folder_it_does_not_start() -> None:
    with pytest.raises(ValueError, match="folder=None is not allowed: an absolute pat"):
        start(None)
    assert start(None, authenticated=False).asked


@pytest.mark.gate
def test_a_misspelled_folder_is_noticed(tmp_path: Path) -> None:
    tmp_path /= "of/this/test"  # beside it are folders of other tests
    assert start(tmp_path / "record").asked
    for wrong in (tmp_path / "recrod", tmp_path, tmp_path / "record" / "record"):
        with pytest.raises(
            ValueError,
            match=r"has no study, and .* after round 3 of 3.* new=true in the run ",
        ):
            start(wrong)
        assert not (wrong / SERVER_FILE).exists()
        assert not (tmp_path / "recrod").exists()
    # The same folder is gone on with, and other settings are another study.
    assert not start(tmp_path / "record").asked
    assert start(tmp_path / "longer", num_rounds=4).asked
    assert start(tmp_path / "again", new=True).asked
    assert start(tmp_path / "simulated", authenticated=False).asked


@pytest.mark.gate
def test_records_that_cannot_be_read_say_nothing(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / SERVER_FILE).write_bytes(b"rubbish" * 999)
    assert start(tmp_path / "record").asked

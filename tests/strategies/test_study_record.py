"""The server's record: what was saved last is what a new run goes on from."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.lab.baselines.random_search import RandomSearchSettings
from flwr_fbo.space.search_space import SearchSpace
from flwr_fbo.strategies.study_record import StudyProgress, StudyRecord
from flwr_fbo.tuning.search.study import TuningStudy
from tests.support.federation import SPACE

STUDY = TuningStudy(SearchSpace(SPACE), "maximize", RandomSearchSettings())
IDENTITY = {"kind": "server"}
ROWS = [LedgerRow(t, {"private": True}, np.full((1, 2), float(t))) for t in range(3)]


def progress(num_releases: int, *names: str) -> StudyProgress:
    """Return that of a server with arrays of these names beside its ledger."""
    state = {name: np.array(num_releases) for name in names}
    return StudyProgress(STUDY, ROWS[:num_releases], {7: 0}, state=state)


def loaded(folder: Path) -> StudyProgress:
    with StudyRecord(folder, IDENTITY) as record:
        found = record.load(STUDY)
    assert found is not None
    return found


def test_an_array_that_is_no_more_is_gone_from_the_record(tmp_path: Path) -> None:
    """As an open sum is once it is released: in this run, or in the next one."""
    with StudyRecord(tmp_path, IDENTITY) as record:
        record.save(progress(0, "kept", "open-sum"))
        record.save(progress(1, "kept"))
    assert loaded(tmp_path).state.keys() == {"kept"}
    for last in (progress(1, "kept", "open-sum"), progress(2, "kept")):
        with StudyRecord(tmp_path, IDENTITY) as record:
            record.load(STUDY)
            record.save(last)
    assert loaded(tmp_path).state == {"kept": np.array(2)}


def test_releases_are_added_and_never_written_twice(tmp_path: Path) -> None:
    for num_releases in (1, 1, 3):
        with StudyRecord(tmp_path, IDENTITY) as record:
            record.load(STUDY)
            record.save(progress(num_releases))
        found = loaded(tmp_path)
        assert [row.iteration for row in found.ledger] == [*range(num_releases)]
        assert found.slots == {7: 0}
    # One that has not loaded them would write them again.
    with StudyRecord(tmp_path, IDENTITY) as record, pytest.raises(JournalError):
        record.save(progress(3))
    assert len(loaded(tmp_path).ledger) == 3


def test_without_a_folder_nothing_is_kept() -> None:
    with StudyRecord(None, IDENTITY) as record:
        record.save(progress(1, "kept"))
        assert record.load(STUDY) is None


def test_only_what_has_changed_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[set[str]] = []
    change = Journal.change_state

    def noted(self: Journal, arrays: Any, gone: Any, releases: Any) -> None:
        written.append({name for name in arrays if not name.startswith("progress")})
        change(self, arrays, gone, releases)

    monkeypatch.setattr(Journal, "change_state", noted)
    kept, other = np.arange(3.0), np.arange(4.0)
    with StudyRecord(tmp_path, IDENTITY) as record:
        for state in ({"kept": kept}, {"kept": kept, "other": other}, {"kept": other}):
            record.save(StudyProgress(STUDY, [], {}, state=state))
    assert written == [{"kept"}, {"other"}, {"kept"}]
    assert loaded(tmp_path).state.keys() == {"kept"}
    np.testing.assert_array_equal(loaded(tmp_path).state["kept"], other)

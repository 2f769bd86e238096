"""The journal: what is recorded stays, whoever is killed."""

import math
import os
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.journal.ledger_table import LedgerRow

ME = {"study": "a", "slot": "0"}
HERE = np.array([0.25, 0.5])


def _fill(journal: Journal) -> None:
    first = journal.begin_trial(0, {"x": 1.5, "k": None}, HERE, "start")
    journal.end_trial(first, 0.75)
    second = journal.begin_trial(1, {"x": 2.5, "k": "a"}, HERE, "start")
    journal.end_trial(second, math.nan)
    journal.put({"vectors": np.eye(2), "count": np.array(3)})


@pytest.mark.parametrize("in_memory", [False, True])
def test_what_is_recorded_comes_back(tmp_path: Path, in_memory: bool) -> None:
    path = None if in_memory else tmp_path / "new" / "journal.sqlite"
    with Journal(ME, path) as journal:
        _fill(journal)
        content = journal.to_bytes()
    with Journal(ME, path, content if in_memory else None) as journal:
        good, bad = journal.trials()
        assert (good.number, good.iteration, good.state) == (0, 0, "complete")
        assert (good.params, good.value) == ({"x": 1.5, "k": None}, 0.75)
        np.testing.assert_array_equal(good.point, HERE)
        assert good.started <= good.finished
        assert (bad.number, bad.iteration, bad.state) == (1, 1, "failed")
        assert math.isnan(bad.value)
        state = journal.load_state()
        assert set(state) == {"vectors", "count"}
        np.testing.assert_array_equal(state["vectors"], np.eye(2))
        journal.change_state({"only": np.zeros(1)}, ["vectors", "count"], [])
        assert set(journal.load_state()) == {"only"}


def test_an_interrupted_trial_is_the_next_one_and_marked(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    with Journal(ME, path) as journal:
        assert journal.begin_trial(0, {"x": 1}, HERE, "start") == 0
    with Journal(ME, path) as journal:
        (cut,) = journal.trials()
        assert (cut.state, cut.source) == ("running", "start")
        assert math.isnan(cut.finished)
        assert journal.begin_trial(0, {"x": 1}, HERE, "start") == 0
        journal.end_trial(0, 2.0)
        (done,) = journal.trials()
        assert (done.state, done.interruptions, done.value) == ("complete", 1, 2.0)
        assert done.source == "start"
        assert journal.begin_trial(1, {"x": 2}, HERE, "start") == 1


def test_a_journal_that_is_opened_again_knows_whether_it_has_changed(
    tmp_path: Path,
) -> None:
    path, number = tmp_path / "journal.sqlite", np.array(1)
    journal = Journal(ME, path)
    for changes in ({}, {"own": number}):
        if changes:
            journal.put(changes)
        journal.close()
        assert not journal.reopen()
    journal.close()
    with Journal(ME, path) as other:
        other.put({"another-7": number})
        [ticket] = other.add_trials(0, [({}, np.zeros(2))], {})
        other.end_trial(ticket, 0.5)
    assert journal.reopen()
    assert journal.load_state() == {"own": 1, "another-7": 1}
    assert [trial.value for trial in journal.trials()] == [0.5]
    journal.close()


def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "journal.sqlite"
    Journal(ME, path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_it_is_synchronous(tmp_path: Path) -> None:
    with Journal(ME, tmp_path / "journal.sqlite") as journal:
        full = journal._connection.execute("PRAGMA synchronous").fetchone()
        assert full == (2,)


def _refused(identity: dict[str, str], path: Path) -> str:
    with pytest.raises(JournalError) as error:
        Journal(identity, path)
    return str(error.value)


def test_a_second_holder_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    with Journal(ME, path):
        assert "another process holds it" in _refused(ME, path)
        code = "from flwr_fbo.journal.journal import *; "
        code += f"Journal({ME!r}, Path({str(path)!r}))"
        other = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
        assert "another process holds it" in other.stderr
    Journal(ME, path).close()


def test_the_journal_of_another_study_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    Journal(ME, path).close()
    text = _refused({"study": "b", "slot": "0"}, path)
    assert "belongs to another study" in text
    assert "{'study': ('a', 'b')}" in text


def test_another_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    Journal(ME, path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    assert "schema version 99" in _refused(ME, path)


def test_damage_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    path.write_bytes(b"no database" * 1000)
    assert "not a database" in _refused(ME, path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    assert "cannot be written" in _refused(ME, Path(os.devnull) / "journal.sqlite")
    assert "unable to open" in _refused(ME, tmp_path)


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    with Journal(ME, tmp_path / "journal.sqlite") as journal:
        _fill(journal)
        unreadable: Any = {"bad": np.array([object()])}
        for store in (
            journal.put,
            lambda arrays: journal.change_state(arrays, [], []),
            lambda arrays: journal.complete_trials(0, [(0, 1.0)], arrays),
            lambda arrays: journal.add_release(LedgerRow(1, {}, HERE), arrays),
        ):
            with pytest.raises(ValueError, match="pickle"):
                store(unreadable)
        journal._connection.execute("PRAGMA query_only = ON")
        with pytest.raises(JournalError, match="cannot be used"):
            journal.put({"other": np.zeros(1)})
        with pytest.raises(JournalError, match="cannot be used"):
            journal.begin_trial(2, {}, HERE, "start")
        journal._connection.execute("PRAGMA query_only = OFF")
        assert set(journal.load_state()) == {"vectors", "count"}
        assert len(journal.trials()) == 2


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    """SQLite ends the transaction itself then."""
    with Journal(ME, tmp_path / "journal.sqlite") as journal:
        _fill(journal)
        journal._connection.execute("PRAGMA max_page_count = 1")
        with pytest.raises(JournalError, match="disk is full"):
            journal.put({"large": np.zeros(100_000)})
        journal._connection.execute("PRAGMA max_page_count = 1000")
        journal.put({"large": np.zeros(10_000)})
        assert len(journal.trials()) == 2


def test_a_database_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "trials.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    before = path.read_bytes()
    assert "is no journal of flwr_fbo" in _refused(ME, path)
    assert path.read_bytes() == before


def test_a_release_is_added_with_its_arrays_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    first, second = (LedgerRow(k, {"k": k}, k * np.eye(2)) for k in (1, 2))
    with Journal(ME, path) as journal:
        _fill(journal)
        journal.add_release(first, {"draw-1": HERE})
        with pytest.raises(JournalError, match="cannot be used"):
            journal.add_release(first, {"draw-2": HERE})  # the release is there
        with pytest.raises(JournalError, match="cannot be used"):
            journal.add_release(second, {"draw-1": HERE})  # the array is there
    with Journal(ME, path) as journal:
        (row,) = journal.ledger()
        assert (row.iteration, row.facts) == (1, {"k": 1})
        np.testing.assert_array_equal(row.vectors, np.eye(2))
        assert set(journal.load_state()) == {"vectors", "count", "draw-1"}

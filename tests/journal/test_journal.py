"""The journal: what is recorded stays, whoever is killed."""

import math
import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flwr_fbo._common.files import OPEN_TO_OTHERS
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import JournalError, JournalHeldError
from flwr_fbo.journal.tables import LedgerRow
from tests.support.connection import connection_of

ME = {"kind": "a", "slot": "0"}
HERE = np.array([0.25, 0.5])


def _fill(journal: Journal) -> None:
    first = journal.begin_trial(0, {"x": 1.5, "k": None}, HERE, "start")
    journal.end_trial(first, 0.75)
    second = journal.begin_trial(1, {"x": 2.5, "k": "a"}, HERE, "start")
    journal.end_trial(second, math.nan)
    journal.put({"vectors": np.eye(2), "count": np.array(3)})


class Kept:
    """A journal that is opened again and again: in a file, or as bytes."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._content: bytes | None = None

    @contextmanager
    def held(self, identity: dict[str, str] | None = ME) -> Iterator[Journal]:
        with Journal(identity, self._path, self._content) as journal:
            yield journal
            if self._path is None:
                self._content = journal.to_bytes()


@pytest.fixture(params=["file", "memory"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Kept:
    in_memory = request.param == "memory"
    return Kept(None if in_memory else tmp_path / "new" / "journal.sqlite")


def test_a_file_that_another_process_has_just_begun_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.sqlite"
    with Journal(ME, path) as journal:
        _fill(journal)
    with monkeypatch.context() as before:
        before.setattr(Path, "exists", lambda _: False)
        with Journal(ME, path) as journal:
            assert journal.num_trials == 2


def test_what_is_recorded_comes_back(kept: Kept) -> None:
    with kept.held() as journal:
        _fill(journal)
    with kept.held() as journal:
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


def test_every_array_and_number_comes_back_to_the_last_bit(kept: Kept) -> None:
    arrays = {
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "view": np.arange(10)[::3],
        "scalar": np.array(math.nan),
        "empty-7": np.empty((0, 2), dtype=np.int64),
        "text-64": np.array(["ä", "b"]),
        "big-endian": np.array([1.5, -0.0], dtype=">f8"),
    }
    with kept.held() as journal:
        journal.put(arrays)
        arrays["view"][:] = 0  # what was stored is a copy
        for value in (-0.0, math.inf, np.float64(0.1), math.nan):
            journal.end_trial(
                journal.begin_trial(2, {"x": "ä"}, HERE, "own search"), value
            )
        journal.add_release(LedgerRow(3, {"x": [math.inf]}, 1j * np.eye(2)), {})
    with kept.held() as journal:
        found = journal.load_state()
        assert set(found) == set(arrays)
        np.testing.assert_array_equal(found.pop("view"), np.arange(10)[::3])
        for name, array in found.items():
            assert (array.dtype, array.shape) == (arrays[name].dtype, array.shape)
            assert array.tobytes() == arrays[name].tobytes()
        assert journal.load_unnumbered().keys() == arrays.keys() - {
            "empty-7",
            "text-64",
        }
        assert journal.load_array("absent") is None
        values = [trial.value for trial in journal.trials()]
        np.testing.assert_array_equal(values, [0.0, math.inf, 0.1, math.nan])
        assert math.copysign(1, values[0]) == 1  # as SQLite has it
        assert journal.trials()[0].params == {"x": "ä"}
        [release] = journal.ledger()
        assert release.facts == {"x": [math.inf]}
        np.testing.assert_array_equal(release.vectors, 1j * np.eye(2))


def test_decisions_are_found_by_number_iteration_and_state(kept: Kept) -> None:
    with kept.held() as journal:
        for i in range(3):
            numbers = journal.add_trials(i, [({"i": i}, HERE)] * 50, {})
            assert numbers == list(range(50 * i, 50 * i + 50))
        rewarded = [number for number in range(150) if number % 7]
        journal.complete_trials(2, [(k, 0.5 * k) for k in rewarded[:80]], {})
        journal.complete_trials(3, [(k, 0.5 * k) for k in rewarded[80:]], {})
        journal.complete_trials(3, [(777, 1.0)], {})  # which does not exist
    with kept.held() as journal:
        assert journal.num_trials == 150
        waiting = [trial.number for trial in journal.trials(running=True)]
        assert waiting == list(range(0, 150, 7))
        late = [trial.number for trial in journal.trials() if trial.iteration >= 3]
        assert late == rewarded[80:]
        assert [trial.number for trial in journal.trials(first=147)] == [147, 148, 149]
        one = journal.trial(99)
        assert one is not None
        assert (one.number, one.value, one.params) == (99, 49.5, {"i": 1})
        assert journal.trial(150) is None


def test_an_interrupted_trial_is_the_next_one_and_marked(kept: Kept) -> None:
    with kept.held() as journal:
        assert journal.begin_trial(0, {"x": 1}, HERE, "start") == 0
    with kept.held() as journal:
        (cut,) = journal.trials()
        assert (cut.state, cut.source) == ("running", "start")
        assert math.isnan(cut.finished)
        assert journal.begin_trial(0, {"x": 1}, HERE, "start") == 0
        journal.end_trial(0, 2.0)
        (done,) = journal.trials()
        assert (done.state, done.interruptions, done.value) == ("complete", 1, 2.0)
        assert done.source == "start"
        assert journal.begin_trial(1, {"x": 2}, HERE, "start") == 1
        journal.drop_trial(1)
        journal.drop_trial(0)  # which has ended
        journal.drop_trial(77)  # which does not exist
        assert journal.num_trials == 1
        assert journal.begin_trial(1, {"x": 3}, HERE, "start") == 1


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
        full = connection_of(journal).execute("PRAGMA synchronous").fetchone()
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


def test_another_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    Journal(ME, path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    assert "has schema 99 and was made by flwr_fbo" in _refused(ME, path)


def test_damage_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    path.write_bytes(b"no database" * 1000)
    path.chmod(0o600)
    assert "not a database" in _refused(ME, path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    assert "cannot be written" in _refused(ME, Path(os.devnull) / "journal.sqlite")
    assert "unable to open" in _refused(ME, tmp_path)


def test_a_journal_that_others_can_read_or_replace_is_not_used(tmp_path: Path) -> None:
    """Nor is one begun where others could; who only shows it may read it."""
    path = tmp_path / "site" / "journal.sqlite"
    Journal(ME, path).close()
    for mode, where in ((0o644, path), (0o777, path.parent), (0o1777, path.parent)):
        before = where.stat().st_mode & 0o777
        where.chmod(mode)
        with pytest.raises(JournalError, match="is not used, as ") as error:
            Journal(ME, path)
        assert error.value.public == OPEN_TO_OTHERS
        Journal.snapshot(path).close()
        where.chmod(before)
    Journal(ME, path).close()
    path.parent.chmod(0o775)
    with pytest.raises(JournalError, match=f": chmod go-w {path.parent}"):
        Journal(ME, path.parent / "new.sqlite")
    assert os.listdir(path.parent) == [path.name]


def test_a_held_journal_is_not_taken_again_from_others(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    with Journal(ME, path) as journal:
        journal.close()
        path.chmod(0o666)
        with pytest.raises(JournalError, match=f": chmod 600 {path}"):
            journal.reopen()


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    with Journal(ME, tmp_path / "journal.sqlite") as journal:
        _fill(journal)
        connection_of(journal).execute("PRAGMA query_only = ON")
        with pytest.raises(JournalError, match="cannot be used"):
            journal.put({"other": np.zeros(1)})
        with pytest.raises(JournalError, match="cannot be used"):
            journal.begin_trial(2, {}, HERE, "start")
        connection_of(journal).execute("PRAGMA query_only = OFF")
        assert set(journal.load_state()) == {"vectors", "count"}
        assert len(journal.trials()) == 2


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    """SQLite ends the transaction itself then."""
    with Journal(ME, tmp_path / "journal.sqlite") as journal:
        _fill(journal)
        connection_of(journal).execute("PRAGMA max_page_count = 1")
        with pytest.raises(JournalError, match="disk is full"):
            journal.put({"large": np.zeros(100_000)})
        connection_of(journal).execute("PRAGMA max_page_count = 1000")
        journal.put({"large": np.zeros(10_000)})
        assert len(journal.trials()) == 2


def test_a_database_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "trials.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    path.chmod(0o600)
    before = path.read_bytes()
    assert "is no journal of flwr_fbo" in _refused(ME, path)
    assert path.read_bytes() == before


def test_a_release_is_added_with_its_arrays_or_not_at_all(kept: Kept) -> None:
    first, second = (LedgerRow(k, {"k": k}, k * np.eye(2)) for k in (1, 2))
    with kept.held() as journal:
        _fill(journal)
        journal.add_release(first, {"draw-1": HERE})
        with pytest.raises(JournalError, match="cannot be used"):
            journal.add_release(first, {"draw-2": HERE})  # the release is there
        with pytest.raises(JournalError, match="cannot be used"):
            journal.add_release(second, {"draw-1": 2 * HERE})  # the array is there
        with pytest.raises(JournalError, match="comes too late"):
            journal.add_release(LedgerRow(0, {}, HERE), {"draw-0": HERE})
    with kept.held() as journal:
        (row,) = journal.ledger()
        assert (row.iteration, row.facts) == (1, {"k": 1})
        np.testing.assert_array_equal(row.vectors, np.eye(2))
        state = journal.load_state()
        assert set(state) == {"vectors", "count", "draw-1"}
        np.testing.assert_array_equal(state["draw-1"], HERE)


def test_a_change_that_fails_half_way_is_undone(kept: Kept) -> None:
    with kept.held() as journal:
        _fill(journal)
        running = journal.begin_trial(2, {}, HERE, "start")
        journal.add_release(LedgerRow(1, {}, HERE), {})
        again = LedgerRow(1, {}, HERE)
        with pytest.raises(JournalError, match="cannot be used"):
            journal.change_state({"count": HERE, "new": HERE}, ["vectors"], [again])
        broken: Any = [(running, 1.0), (running, None)]
        with pytest.raises(TypeError):
            journal.complete_trials(2, broken, {})
    with kept.held() as journal:
        state = journal.load_state()
        assert set(state) == {"vectors", "count"}
        np.testing.assert_array_equal(state["count"], 3)
        assert [trial.number for trial in journal.trials(running=True)] == [running]
        assert (journal.num_trials, journal.num_releases) == (3, 1)


def test_an_array_that_cannot_be_written_changes_nothing(kept: Kept) -> None:
    with kept.held() as journal:
        _fill(journal)
        unreadable: Any = {"good": HERE, "bad": np.array([object()])}
        for store in (
            journal.put,
            lambda arrays: journal.change_state(arrays, [], []),
            lambda arrays: journal.complete_trials(0, [(0, 1.0)], arrays),
            lambda arrays: journal.add_release(LedgerRow(1, {}, HERE), arrays),
        ):
            with pytest.raises(ValueError, match="pickle"):
                store(unreadable)
    with kept.held() as journal:
        assert set(journal.load_state()) == {"vectors", "count"}
        assert journal.trials()[0].value == 0.75
        assert journal.num_releases == 0


def test_it_belongs_to_what_it_was_made_for(kept: Kept) -> None:
    with pytest.raises(JournalError, match="no journal"), kept.held(None):
        pass
    with kept.held():
        pass
    with kept.held(None) as journal:
        assert journal.identity == ME
        journal.require_kind("a")
    with (
        pytest.raises(
            JournalError, match=r"belongs to another.*{'kind': \('a', 'b'\)}"
        ),
        kept.held({**ME, "kind": "b"}),
    ):
        pass
    with kept.held() as journal, pytest.raises(JournalError, match="is of kind 'a'"):
        journal.require_kind("b")


def test_bytes_that_are_no_journal_are_refused() -> None:
    with Journal(ME) as journal:
        _fill(journal)
        content = journal.to_bytes()
    for length in range(len(content)):
        with pytest.raises(JournalError, match="in memory is damaged"):
            Journal(ME, content=content[:length])
    for other in (b"no journal" * 100, content + b"0"):
        with pytest.raises(JournalError, match="in memory is damaged"):
            Journal(ME, content=other)


def test_what_is_removed_is_overwritten_in_the_file(tmp_path: Path) -> None:
    """Keys and noise that are done with are not there for whoever gets the file."""
    path, secret = tmp_path / "journal.sqlite", np.arange(400.0)
    with Journal(ME, path) as journal:
        journal.put({"secret": secret, "other": HERE})
    assert secret.tobytes() in path.read_bytes()
    with Journal(ME, path) as journal:
        journal.change_state({}, ["secret"], [])
    assert secret.tobytes() not in path.read_bytes()
    assert HERE.tobytes() in path.read_bytes()


WRITER = """
import sys
import time
from pathlib import Path

import numpy as np

from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.tables import LedgerRow

with Journal({"kind": "a"}, Path(sys.argv[1])) as journal:
    print("begun", flush=True)
    for i in range(10**9):
        journal.add_release(LedgerRow(i, {"i": i}, np.full(500, i)), {})
        journal.put({f"noise-{i}": np.full(500, i), "last": np.array(i)})
        time.sleep(0.01)
"""


def test_a_snapshot_is_read_while_another_process_writes(tmp_path: Path) -> None:
    """It is whole: never a part of a transaction."""
    path = tmp_path / "journal.sqlite"
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "begun\n"
        with pytest.raises(JournalHeldError):
            Journal(None, path)
        seen: list[int] = []
        while len(seen) < 20 or seen[-1] == seen[0]:
            with Journal.snapshot(path) as journal:
                assert journal.identity == {"kind": "a"}
                ledger, state = journal.ledger(), journal.load_state()
            seen.append(len(ledger))
            assert [row.facts["i"] for row in ledger] == list(range(len(ledger)))
            count = len(state) - 1 if state else 0
            assert len(ledger) in (count, count + 1)
            assert writer.poll() is None
    finally:
        writer.kill()
        writer.wait()
    # What it was killed in is undone, by whoever opens the file next.
    with Journal.snapshot(path) as journal:
        num_releases = journal.num_releases
    with Journal(None, path) as journal:
        assert journal.num_releases in (num_releases, num_releases - 1)
    before = path.read_bytes()
    with (
        Journal.snapshot(path) as journal,
        pytest.raises(JournalError, match="readonly"),
    ):
        journal.put({"last": np.zeros(9)})
    assert path.read_bytes() == before


@pytest.mark.gate
def test_a_snapshot_of_what_is_no_journal_is_refused(tmp_path: Path) -> None:
    for content in (b"", b"no database" * 1000):
        path = tmp_path / "journal.sqlite"
        path.write_bytes(content)
        with pytest.raises(JournalError, match=str(path)):
            Journal.snapshot(path)
        assert path.read_bytes() == content
    with pytest.raises(JournalError, match="There is no journal"):
        Journal.snapshot(tmp_path / "none.sqlite")

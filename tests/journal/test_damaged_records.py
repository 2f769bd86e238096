"""Damage of a journal ends with JournalError that names what is damaged, or is none."""

import sqlite3
import struct
from collections.abc import Callable
from pathlib import Path
from tokenize import TokenError

import numpy as np
import pytest

from flwr_fbo.journal import npy
from flwr_fbo.journal.checksums import ARRAYS_IN_PART, TRIALS_IN_PART
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.journal.tables import LedgerRow
from tests.adversaries.damaged_records import DAMAGES, counted

ME = {"study": "a", "slot": "0"}
HERE = np.array([0.25, 0.5])
NUM_TRIALS = 2 * TRIALS_IN_PART + 5
SAMPLE = 60


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a journal with trials, releases and arrays."""
    path = tmp_path / "journal.sqlite"
    with Journal(ME, path) as journal:
        for i in range(NUM_TRIALS):
            [number] = journal.add_trials(i // 10, [({}, i * HERE)], {})
            if i % 10:
                journal.complete_trials(i // 10, [(number, 0.5 * i)], {})
        for k in range(4):
            journal.add_release(LedgerRow(k, {"k": k}, k * np.eye(2)), {})
        journal.put({f"noise-{k}": k * HERE for k in range(4)})
    return path


def read_all(path: Path) -> None:
    """Read everything that is in a journal."""
    with Journal(ME, path) as journal:
        journal.trials()
        journal.trials(running=True)
        journal.ledger()
        journal.load_state()


def changed(path: Path, *statements: str) -> None:
    """Change a journal as no journal does."""
    connection = sqlite3.connect(path)
    for statement in statements:
        assert connection.execute(statement).rowcount in (-1, 1), statement
    connection.commit()
    connection.close()


def refusal(path: Path, read: Callable[[Path], None] = read_all) -> str:
    """Return why a journal is refused; its file is always named."""
    with pytest.raises(JournalError) as error:
        read(path)
    assert f"The journal {path} is damaged: " in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("statement", "row"),
    [
        ("UPDATE trial SET value = value + 1e-9 WHERE number = 7", "trial 7 in"),
        ("UPDATE trial SET state = 'complete' WHERE number = 10", "trial 10 in"),
        (
            "UPDATE state SET value = (SELECT value FROM state WHERE name = 'noise-1')"
            " WHERE name = 'noise-3'",
            "array 'noise-3' in",
        ),
        (
            "UPDATE ledger SET facts = '{' WHERE iteration = 2",
            "the row iteration=2 in",
        ),
        (
            "UPDATE identity SET value = '{' WHERE name = 'slot'",
            "'slot' of the identity",
        ),
        ("UPDATE part SET count = 9 WHERE name = 'state'", "checksum of 'state'"),
        ("DELETE FROM trial WHERE number = 70", "trials 64 to 127: rows are missing"),
        ("DELETE FROM state WHERE name = 'noise-3'", "the table state: rows are"),
        ("DELETE FROM ledger WHERE iteration = 3", "the table ledger: rows are"),
        ("DELETE FROM identity WHERE name = 'slot'", "the table identity: rows are"),
        ("DELETE FROM part WHERE name = 'head'", "the table part: rows are"),
        ("UPDATE part SET total = 'a' WHERE name = 'head'", "the table part: rows are"),
        (
            "INSERT INTO ledger SELECT 9, facts, vectors, committed, digest FROM ledger"
            " WHERE iteration = 3",
            "the row iteration=9 in",
        ),
    ],
)
def test_a_changed_row_is_named(path: Path, statement: str, row: str) -> None:
    read_all(path)
    changed(path, statement)
    assert row in refusal(path)


@pytest.mark.parametrize("table", ["trial", "state", "part"])
def test_an_older_row_is_refused(path: Path, table: str) -> None:
    older = path.with_name("older")
    older.write_bytes(path.read_bytes())
    with Journal(ME, path) as journal:
        journal.put({"noise-3": HERE})
        journal.complete_trials(3, [(10, 1.0)], {})
    read_all(path)
    back = f"REPLACE INTO {table} SELECT * FROM older.{table}"
    back += {
        "trial": " WHERE number = 10",
        "state": " WHERE name = 'noise-3'",
        "part": " WHERE name = 'state'",
    }[table]
    changed(path, f"ATTACH '{older}' AS older", back)
    assert "older versions" in refusal(path)


def test_arrays_that_are_read_alone_are_checked_too(path: Path) -> None:
    """With those whose numbers are near, and no others."""
    far = f"noise-{10 * ARRAYS_IN_PART}"
    with Journal(ME, path) as journal:
        journal.put({"plain": HERE, far: HERE})
    changed(path, "UPDATE state SET value = zeroblob(9) WHERE name = 'noise-3'")
    with Journal(ME, path) as journal:
        assert journal.load_unnumbered().keys() == {"plain"}
        found = journal.load_array(far)
        assert found is not None
        assert np.array_equal(found, HERE)
        assert journal.load_array("absent") is None
        journal.put({far: 2 * HERE, "plain": 3 * HERE})

    def read_one(path: Path) -> None:
        with Journal(ME, path) as journal:
            journal.load_array("noise-1")

    assert "array 'noise-3' in" in refusal(path, read_one)
    assert "array 'noise-3' in" in refusal(path)


@pytest.mark.parametrize(
    ("statement", "row"),
    [
        ("UPDATE state SET value = '' WHERE name = 'plain'", "array 'plain' in"),
        ("UPDATE part SET last = 9 WHERE name = 'ledger'", "checksum of 'ledger'"),
    ],
)
def test_what_changed_before_a_journal_is_opened_again_is_checked(
    path: Path, statement: str, row: str
) -> None:
    journal = Journal(ME, path)
    journal.close()
    with Journal(ME, path) as other:
        other.put({"plain": HERE})
    changed(path, statement)

    def read(_: Path) -> None:
        assert journal.reopen()
        journal.load_unnumbered()

    assert row in refusal(path, read)
    journal.close()


def test_what_is_read_alone_is_checked_too(path: Path) -> None:
    """A reward for an old action reads no other part of the trials."""
    changed(path, "UPDATE trial SET point = zeroblob(9) WHERE number = 10")

    def reward(path: Path) -> None:
        with Journal(ME, path) as journal:
            journal.trial(10)

    assert "trial 10 in" in refusal(path, reward)
    with Journal(ME, path) as journal:
        assert journal.trial(100) is not None
        last = journal.trials(first=NUM_TRIALS - 1)
        assert [trial.number for trial in last] == [NUM_TRIALS - 1]
        with pytest.raises(JournalError, match="trial 10 in"):
            journal.complete_trials(1, [(10, 1.0)], {})


def test_a_failed_change_leaves_the_checksums_as_they_were(path: Path) -> None:
    with Journal(ME, path) as journal:
        row = LedgerRow(3, {}, HERE)
        with pytest.raises(JournalError, match="UNIQUE"):
            journal.change_state({"noise-1": HERE, "new": HERE}, ["noise-0"], [row])
        assert journal.num_releases == 4
        assert set(journal.load_state()) == {f"noise-{k}" for k in range(4)}
        journal.change_state({"new": HERE}, ["noise-0"], [LedgerRow(4, {}, HERE)])
        assert len(journal.ledger()) == journal.num_releases == 5
    read_all(path)


def test_all_that_a_trial_can_become_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with Journal(ME, path) as journal:
        journal.end_trial(journal.begin_trial(0, {"x": "ä"}, HERE, "start"), -0.0)
        journal.end_trial(journal.begin_trial(1, {}, HERE, "start"), float("inf"))
        journal.end_trial(journal.begin_trial(1, {}, HERE, "start"), float("nan"))
        journal.end_trial(journal.begin_trial(2, {}, HERE, "start"), np.float64(3))
        journal.drop_trial(journal.begin_trial(2, {}, HERE, "start"))
        journal.drop_trial(77)  # which does not exist
        journal.begin_trial(2, {}, HERE, "start")
        journal.begin_trial(3, {}, HERE, "start")
    with Journal(ME, path) as journal:
        assert journal.num_trials == 5
        assert [t.interruptions for t in journal.trials() if t.iteration >= 3] == [1]
        assert [t.value for t in journal.trials()][:2] == [0.0, float("inf")]
    read_all(path)


def test_a_source_that_is_changed_is_found(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with Journal(ME, path) as journal:
        journal.end_trial(journal.begin_trial(0, {}, HERE, "federation"), 1.0)
    changed(path, "UPDATE trial SET source = 'own search' WHERE number = 0")
    assert "trial 0" in refusal(path)


@pytest.mark.parametrize(
    "error",
    [
        TokenError("EOF in multi-line statement"),
        struct.error("unpack_from requires a buffer"),
        MemoryError(),
    ],
)
def test_whatever_reading_an_array_raises_is_explained(
    path: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: bytes) -> None:
        raise error

    monkeypatch.setattr(npy, "_read_header", fails)
    assert type(error).__name__ in refusal(path)


def test_damaged_copies_of_real_records_are_refused_or_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # which may be memory
    counts, wrong = counted(SAMPLE, seed=1)
    assert wrong == []
    assert set(counts) == set(DAMAGES)
    total = sum(sum(row.values()) for row in counts.values())
    refused = sum(row["refused"] for row in counts.values())
    assert total == SAMPLE
    assert refused > SAMPLE / 2

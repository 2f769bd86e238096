"""A file without tables is a journal that never began, whoever looks at it."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flwr_fbo.cli.ledger_command import app as ledger_app
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import JournalError, has_journal
from flwr_fbo.privacy.spending_ledger import (
    FILE_NAME,
    Charge,
    SpendingLedger,
    charge_facts,
)
from flwr_fbo.site.proofs import recover
from flwr_fbo.site.readiness import check_site
from flwr_fbo.site.study_journals import journals_with_charges, note_charge
from flwr_fbo.tuner.records import trials_record
from flwr_fbo.tuner.records.trials_record import TrialsRecord, has_begun
from tests.support.killing import killed_in

FACTS = charge_facts(("tuner", "a"), 1, Charge(1.0))
# More than the statements that make a journal.
MOST_STATEMENTS = 60


def _begin(path: Path) -> None:
    Journal({"kind": "any"}, path).close()


def test_a_journal_is_begun_whole_or_not_at_all(tmp_path: Path) -> None:
    """Killed before each statement of its making: the next process begins it."""
    was_begun = []
    for number in range(MOST_STATEMENTS):
        path = tmp_path / f"{number}.sqlite"
        was_killed = killed_in(number, _begin, path) is None
        was_begun.append(has_journal(path))
        if was_begun[-1]:
            Journal(None, path).close()
        else:
            with pytest.raises(JournalError, match="There is no journal"):
                Journal(None, path)
        with Journal({"kind": "any"}, path) as journal:
            assert journal.identity == {"kind": "any"}
        if not was_killed:
            break
    assert not was_killed
    assert was_begun == sorted(was_begun)
    assert was_begun.count(False) > 10


def test_a_journal_that_is_held_was_begun(tmp_path: Path) -> None:
    with Journal({"kind": "any"}, tmp_path / "one.sqlite"):
        assert has_journal(tmp_path / "one.sqlite")
    (tmp_path / "two.sqlite").write_text("no journal, but not nothing")
    assert has_journal(tmp_path / "two.sqlite")
    assert not has_journal(tmp_path / "three.sqlite")
    assert not has_journal(tmp_path)


@pytest.fixture(params=["empty", "without tables"])
def unbegun(request: pytest.FixtureRequest) -> Any:
    def make(path: Path) -> None:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.touch(mode=0o600)
        if request.param == "without tables":
            with sqlite3.connect(path) as connection:
                connection.execute("CREATE TABLE gone (x)")
                connection.execute("DROP TABLE gone")
            connection.close()
            assert path.stat().st_size

    return make


def test_a_tuner_that_was_killed_at_once_begins_anew(
    tmp_path: Path, unbegun: Any
) -> None:
    unbegun(tmp_path / trials_record.FILE_NAME)
    assert not has_begun(tmp_path)
    with TrialsRecord(tmp_path, {"seed": 1}, 0.0) as record:
        assert record.journal.identity["seed"] == 1
    assert has_begun(tmp_path)


def test_a_site_goes_on_beside_a_journal_that_never_began(
    tmp_path: Path, unbegun: Any
) -> None:
    """It was killed once it had noted the charge, before the journal had it."""
    note_charge(tmp_path, FACTS)
    [path] = journals_with_charges(tmp_path)
    path.unlink()
    unbegun(path)
    assert not [*journals_with_charges(tmp_path)]
    with SpendingLedger.held(tmp_path):
        pass
    # The doctor reads all journals.
    findings = check_site({"fbo-folder": str(tmp_path)})
    assert not [one for one in findings if "no journal of" in str(one)]
    assert recover(tmp_path).total == 0
    note_charge(tmp_path, FACTS)
    assert recover(tmp_path).total == 1


def test_a_ledger_that_never_began_is_none(tmp_path: Path, unbegun: Any) -> None:
    unbegun(tmp_path / FILE_NAME)
    shown = CliRunner().invoke(ledger_app, ["show", str(tmp_path)])
    assert "There is no ledger in" in shown.output
    with SpendingLedger.held(tmp_path) as ledger:
        assert not ledger.rows

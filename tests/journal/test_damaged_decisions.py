"""A bandit's record that was changed is refused: what was chosen, and out of what."""

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flwr_fbo import LinearBanditPolicy
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.journal.parts import Parts
from tests.support.policies import (
    ARMS,
    CONTEXT,
    FILE_NAME,
    KINDS,
    SETTINGS,
    enrolled,
)

READS: dict[str, Callable[[LinearBanditPolicy], Any]] = {
    "decisions": lambda policy: list(policy.decisions()),
    "choose": lambda policy: policy.choose(CONTEXT),
    "summary": lambda policy: policy.summary(),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a site with three decisions, out of two versions of its arms."""
    policy = enrolled(tmp_path, SETTINGS)
    policy.choose(CONTEXT)
    policy.reward(0, 0.5)
    policy.choose({**CONTEXT, "age": 300}, ["home", "ward"])
    policy.set_arms(ARMS.change("home", price=7.0))
    policy.choose(CONTEXT)
    for read in READS.values():
        read(LinearBanditPolicy.open(tmp_path))
    return tmp_path


def changed(folder: Path, statement: str) -> None:
    connection = sqlite3.connect(folder / FILE_NAME)
    assert connection.execute(statement).rowcount == 1
    connection.commit()
    connection.close()


def params(old: str, new: str) -> str:
    where = f"number = 1 AND params != replace(params, '{old}', '{new}')"
    return f"UPDATE trial SET params = replace(params, '{old}', '{new}') WHERE {where}"


@pytest.mark.parametrize("read", ["decisions", "choose"])
@pytest.mark.parametrize(
    ("statement", "named"),
    [
        # Of two arms that were equally good.
        (params('"propensity": 0.5', '"propensity": 1.0'), "trial 1 in"),
        (params('"age": 300', '"age": 30'), "trial 1 in"),
        (
            "UPDATE state SET value = (SELECT value FROM state WHERE name = 'arms-2')"
            " WHERE name = 'arms-1'",
            "array 'arms-1' in",
        ),
        (
            "UPDATE state SET value = CAST(replace(CAST(value AS TEXT), 'home', 'homf')"
            " AS BLOB) WHERE name = 'arms-2'",
            "array 'arms-2' in",
        ),
        ("DELETE FROM state WHERE name = 'newest-arms'", "rows are missing"),
        ("DELETE FROM trial WHERE number = 1", "rows are missing"),
        ("UPDATE state SET value = x'00' WHERE name = 'outside'", "array 'outside' in"),
    ],
)
def test_a_changed_record_is_named(
    folder: Path, read: str, statement: str, named: str
) -> None:
    changed(folder, statement)
    reader = READS[read]
    if read == "choose" and "trial" in statement:
        # A choice reads no trials, and does not have to; the next reward does.
        reader = lambda policy: policy.reward(1, 0.5)  # noqa: E731
    with pytest.raises(JournalError, match="is damaged") as error:
        reader(LinearBanditPolicy.open(folder))
    assert named in str(error.value)


def test_an_older_table_of_arms_does_not_come_back(tmp_path: Path) -> None:
    policy = enrolled(tmp_path, SETTINGS)
    path = tmp_path / FILE_NAME
    older = tmp_path / "older"
    older.write_bytes(path.read_bytes())
    policy.set_arms(ARMS.remove("home"))
    connection = sqlite3.connect(path)
    connection.execute(f"ATTACH '{older}' AS older")
    connection.execute(
        "REPLACE INTO state SELECT * FROM older.state WHERE name = 'newest-arms'"
    )
    connection.commit()
    connection.close()
    with pytest.raises(JournalError, match="older versions"):
        LinearBanditPolicy.open(tmp_path).choose(CONTEXT)


@pytest.mark.parametrize("kind", ["sampling"])
def test_a_failed_write_records_no_part_of_a_slate(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither decisions nor counts; the next call reads what is on disk."""
    policy = enrolled(tmp_path, replace(SETTINGS, exploration=KINDS[kind]))

    def fails(*_: Any) -> None:
        raise OSError("no space")

    with monkeypatch.context() as broken:
        broken.setattr(Parts, "write", fails)
        for call in (
            lambda: policy.choose_slate({**CONTEXT, "age": 300}, 3),
            lambda: policy.set_arms(ARMS.remove("home")),
        ):
            with pytest.raises(OSError, match="no space"):
                call()
    assert policy.num_trials == 0
    assert policy.summary().outside == {}
    assert policy.arms.names == ARMS.names
    assert policy.choose(CONTEXT).ticket == 0

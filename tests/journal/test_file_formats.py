"""The numbers of file formats: journals of other versions are named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from flwr_fbo._common.version import __version__
from flwr_fbo.journal import file_formats
from flwr_fbo.journal.file_formats import JOURNAL, LEDGER
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.study.codec import PROTOCOL_VERSION


def test_the_journal_of_another_version_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.sqlite"
    with monkeypatch.context() as other:
        other.setattr("flwr_fbo.journal.journal_file.__version__", "0.0.9")
        Journal({"kind": "a", "width": 1}, path).close()
    with pytest.raises(JournalError, match=r"made by flwr_fbo 0\.0\.9, this is"):
        Journal({"kind": "a", "width": 2}, path)
    Journal({"kind": "a", "width": 1}, path).close()
    newer = replace(JOURNAL, schema=JOURNAL.schema + 1)
    monkeypatch.setattr(file_formats, "JOURNAL", newer)
    with pytest.raises(JournalError) as error:
        Journal({"kind": "a", "width": 1}, path)
    found = f"has schema {JOURNAL.schema} and was made by flwr_fbo 0.0.9."
    assert found in str(error.value)
    assert "Finish its study with flwr_fbo 0.0.9" in str(error.value)
    assert str(tmp_path) not in error.value.public


def test_the_page_has_the_numbers_of_this_version() -> None:
    page = Path(__file__).parents[2] / "docs/site/keep-it-running.md"
    numbers = f"{PROTOCOL_VERSION} | {JOURNAL.schema} | {LEDGER.schema} "
    assert f"\n| {__version__} | {numbers}" in page.read_text()

"""A journal goes on with its own study, and with no other."""

from pathlib import Path

import pytest

from flwr_fbo._common.version import __version__
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.journal.same_study import check_same_study


def test_the_journal_of_another_study_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    Journal({"kind": "a", "slot": "0"}, path).close()
    with pytest.raises(JournalError) as error:
        Journal({"kind": "b", "slot": "0"}, path)
    text = str(error.value)
    assert "belongs to another study" in text
    assert "{'kind': ('a', 'b')}" in text
    assert "a private one then spends epsilon again" in text
    Journal(None, path).close()  # it was let go


def test_settings_are_compared_as_they_are_stored() -> None:
    check_same_study(None, {"rounds": [6, 10]}, {"rounds": (6, 10)}, "")
    with pytest.raises(JournalError, match=r"\(stored, now\): {'seed': \(None, 3\)}"):
        check_same_study(None, {"rounds": [6]}, {"rounds": (6,), "seed": 3}, "")


def test_the_version_that_made_the_journal_is_told_if_it_is_another() -> None:
    for made_by, is_told in (("0.0.1", True), (__version__, False), ("", False)):
        with pytest.raises(JournalError) as error:
            check_same_study(None, {"kind": "a"}, {"kind": "b"}, made_by)
        assert ("It was made by" in str(error.value)) is is_told

"""The page of a tuner: its rungs, its choice, and what it says while it runs."""

from pathlib import Path

import pytest

from tests.support.pages import (
    assert_figures_can_be_read,
    assert_self_contained,
    headings_of,
    invoke,
    page,
)
from tests.support.tuner_folders import OPTIONS, record, record_first_rung


@pytest.mark.parametrize("kind", OPTIONS)
def test_the_page_of_a_tuner_has_all_rungs(kind: str, tmp_path: Path) -> None:
    result = record(tmp_path / "tuner", kind)
    text = page(tmp_path / "tuner", tmp_path / "a.html")
    assert_self_contained(text)
    assert_figures_can_be_read(text)
    parts = ["Before and after", "Scores", "Privacy", "Trials", "Releases", "Settings"]
    if kind == "exact":  # the app's own means over the clients
        parts.insert(1, "Course")
    assert headings_of(text) == [*parts, "Versions"]
    assert f"Trial {result.best_trial} was chosen." in text
    for rung in result.rungs:
        assert f"score at round {rung.rounds}" in text
        for score in rung.scores:
            assert f"<td>{score:.4g}</td>" in text
    for settings in result.settings:
        assert f"<td>{settings['learning-rate']:.4g}</td>" in text
    assert "<title>Tuning for distance</title>" in text
    assert ("NOT PRIVATE" in text) == (kind in ("seeded", "exact"))
    assert ("does not cover the training" in text) == (kind != "exact")
    if result.privacy_spent is not None:
        assert result.privacy_spent.text(".4f") in text


def test_a_page_that_is_watched_lives_until_the_tuner_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_first_rung(tmp_path / "tuner", "seeded")
    seen = []

    def sleep(seconds: float) -> None:
        """The tuner goes on while the command waits."""
        seen.append((tmp_path / "a.html").read_text())
        record(tmp_path / "tuner", "seeded")

    monkeypatch.setattr("flwr_fbo.cli.report_command.time.sleep", sleep)
    arguments = ["report", tmp_path / "tuner", "--watch", "--output"]
    done = invoke(*arguments, tmp_path / "a.html")
    assert done.exit_code == 0, done.output
    [text] = seen
    assert_self_contained(text)
    assert 'http-equiv="refresh"' in text
    assert "Nothing is chosen yet." in text
    text = (tmp_path / "a.html").read_text()
    assert 'http-equiv="refresh"' not in text
    assert " was chosen." in text


def test_the_page_of_a_tuner_that_was_ended_names_no_choice(tmp_path: Path) -> None:
    record_first_rung(tmp_path / "tuner", "private")
    text = page(tmp_path / "tuner", tmp_path / "a.html")
    assert "Nothing is chosen yet." in text
    assert text.count("<td>goes on</td>") == 2
    assert "<td>chosen</td>" not in text

"""The command ``flwr-fbo export``."""

from pathlib import Path

from typer.testing import CliRunner

from flwr_fbo.cli import app
from tests.support.begun_journals import begin_journal


def test_export_of_a_sites_folder_names_its_journals(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/trials.db"
    for name in ("study-a-agent-0.sqlite", "study-b-agent-0.sqlite"):
        begin_journal(tmp_path / name)
    done = CliRunner().invoke(app, ["export", str(tmp_path), storage])
    assert done.exit_code == 1
    names = "study-a-agent-0.sqlite, study-b-agent-0.sqlite"
    assert f"is not allowed: one of its journals: {names}." in done.output
    (tmp_path / "empty").mkdir()
    done = CliRunner().invoke(app, ["export", str(tmp_path / "empty"), storage])
    assert done.exit_code == 1
    assert "a client's journal, or the folder of a tuner." in done.output
    assert not (tmp_path / "trials.db").exists()

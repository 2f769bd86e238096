"""The command ``flwr-fbo superexec``: what it passes on, and what it refuses."""

from __future__ import annotations

import fcntl
import os
import subprocess
from importlib import import_module
from pathlib import Path

import pytest
from flwr.supercore.constant import TASK_TYPE_TO_COMMAND
from typer.testing import CliRunner

from flwr_fbo.cli import app, superexec_command
from flwr_fbo.cli.superexec_command import write_launchers

REFUSED = [
    "--executor=kubernetes",
    "--executor kubernetes",
    "--executor-config pods.yaml",
    "--allow-runtime-dependency-installation",
    "--allow",
    "--runtime 127.0.0.1:9094",
    "-- --insecure",
]


@pytest.mark.parametrize("options", REFUSED)
def test_options_that_run_apps_elsewhere_are_refused(
    options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        superexec_command, "run_superexec", lambda _: pytest.fail("it has run")
    )
    (tmp_path / "apps").write_text("")
    arguments = ["superexec", str(tmp_path / "apps"), "--", "--insecure"]
    result = CliRunner().invoke(app, [*arguments, *options.split()])
    assert result.exit_code == 1
    option = options.split()[0]
    assert f"OPTION='{option}' is not allowed: one of --health" in result.output


def test_other_options_are_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nobody takes away the folder with what SuperExec starts."""
    (tmp_path / "apps").write_text("")
    monkeypatch.setenv("PATH", os.environ["PATH"])
    options = ["--root-certificates", "ca.crt", "--runtime-api-address=127.0.0.1:9094"]
    seen: list[list[str]] = []

    def run_superexec(arguments: list[str]) -> None:
        seen.append(arguments)
        folder = os.open(os.environ["PATH"], os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(folder, fcntl.LOCK_SH | fcntl.LOCK_NB)
        os.close(folder)

    monkeypatch.setattr(superexec_command, "run_superexec", run_superexec)
    CliRunner().invoke(
        app,
        ["superexec", str(tmp_path / "apps"), "--", *options],
        catch_exceptions=False,
    )
    assert seen == [options]
    parser = import_module("flwr.supercore.cli.flower_superexec")._parse_args()
    known = parser.format_help()
    assert all(option in known for option in superexec_command._OPTIONS)


def test_other_kinds_of_tasks_are_refused(tmp_path: Path) -> None:
    """Such as an agent app, which would bring code of its own."""
    write_launchers(tmp_path, tmp_path / "apps")
    names = {path.name for path in tmp_path.iterdir()}
    assert set(TASK_TYPE_TO_COMMAND.values()) <= names
    for name in names - {"flwr-clientapp"}:
        done = subprocess.run(
            [str(tmp_path / name), "--token", "1"],
            capture_output=True,
            text=True,
            check=False,
            env={"PATH": str(tmp_path)},
        )
        assert done.returncode == 1
        assert done.stderr == f"This site runs no {name}: only client apps.\n"
    assert "reviewed_apps" in (tmp_path / "flwr-clientapp").read_text()

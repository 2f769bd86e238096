"""`flwr-fbo init`: an app that `flwr run` starts, and that is an example too."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flwr_fbo.cli import app, init_command
from tests.support.engine import FlwrRun

EXAMPLES = Path(__file__).parents[2] / "examples"


def _init(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["init", *arguments], env={"COLUMNS": "200"})


def _files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_it_writes_the_digits_example(tmp_path: Path) -> None:
    """Compared in a process of its own: in this one there may be a module `digits`."""
    code = "from flwr_fbo.cli import app; app()"
    subprocess.run(
        [sys.executable, "-c", code, "init", "digits", "--template", "sites"],
        cwd=tmp_path,
        check=True,
    )
    assert _files(tmp_path / "digits") == _files(EXAMPLES / "digits")


def test_without_a_folder_it_takes_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "My-study2").mkdir()
    monkeypatch.chdir(tmp_path / "My-study2")
    result = _init()
    assert result.exit_code == 0, result.output
    assert 'name = "My-study2"' in Path("pyproject.toml").read_text()
    code = Path("My_study2", "client_app.py").read_text()
    assert "from My_study2 import task" in code
    assert "flwr run . --stream" in result.output


@pytest.mark.parametrize("missing", [(), ("ray",), ("opendp", "sklearn")])
def test_it_says_what_has_to_be_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: tuple[str, ...]
) -> None:
    def found(module: str) -> object:
        is_known = module in ("opendp", "ray", "sklearn")
        return object() if is_known and module not in missing else None

    monkeypatch.setattr(init_command, "find_spec", found)
    printed = _init(str(tmp_path / "mine")).output
    assert f"  cd {tmp_path / 'mine'}\n" in printed
    assert ("install what is missing here" in printed) == bool(missing)
    assert ("flwr-fbo[simulation]" in printed) == ("ray" in missing)
    assert ("flwr-fbo[secure], scikit-learn." in printed) == ("opendp" in missing)


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    folder.mkdir()
    (folder / ".hidden").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for path in (folder, tmp_path / "file"):
        result = _init(str(path))
        assert result.exit_code == 1
        wanted = (
            f"Error: FOLDER='{path}' is not allowed: an empty folder, or a new one."
        )
        assert result.output.splitlines() == [wanted]
    assert _files(tmp_path) == {"study/.hidden": b"mine", "file": b"mine"}


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("my_study", "at most 32 letters, digits and hyphens"),
        ("2nd", "a letter first"),
        ("sklearn", "a name that no Python module has"),
    ],
)
def test_a_name_that_no_app_can_have(tmp_path: Path, name: str, allowed: str) -> None:
    result = _init(str(tmp_path / name))
    assert result.exit_code == 1
    assert f"FOLDER='{name}' is not allowed: " in result.output
    assert allowed in result.output
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("answer", ["y", "n"])
def test_in_a_terminal_it_asks_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    monkeypatch.setattr(init_command, "is_terminal", lambda: True)
    arguments = ["init", str(tmp_path / "mine")]
    result = CliRunner().invoke(app, arguments, input=f"{answer}\n")
    assert result.exit_code == 0, result.output
    server = (tmp_path / "mine" / "mine" / "server_app.py").read_text()
    assert ("FederationTuner" in server) == (answer == "y")


def test_nothing_is_asked_of_a_folder_that_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(init_command, "is_terminal", lambda: True)
    result = CliRunner().invoke(app, ["init", str(tmp_path / "2nd")])
    assert "Do the sites" not in result.output


@pytest.mark.gate
def test_the_app_of_a_federation_runs_as_it_is(
    tmp_path: Path, flwr_run: FlwrRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tuned with real noise, and keeps its record."""
    assert _init(str(tmp_path / "new-app")).exit_code == 0
    record = tmp_path / "record"
    printed = flwr_run(tmp_path / "new-app", 5, {"folder": str(record)})
    assert "Accuracy on test data: 0.8" in printed, printed
    assert "NOT PRIVATE" not in printed
    shown = CliRunner().invoke(app, ["show", str(record)])
    assert "chosen" in shown.output


@pytest.mark.slow
def test_the_app_of_sites_runs_as_it_is(tmp_path: Path, flwr_run: FlwrRun) -> None:
    """With real noise, on as many simulated sites as there are."""
    assert _init(str(tmp_path / "new-study"), "--template", "sites").exit_code == 0
    printed = flwr_run(tmp_path / "new-study", 12, {})
    assert "Start for new sites: " in printed, printed
    assert "releases: epsilon 2.0" in printed, printed
    assert "NOT PRIVATE" not in printed

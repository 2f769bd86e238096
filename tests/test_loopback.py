"""`python -m loopback` of the deployment example, as a user runs it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.engine import end_processes

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "deployment"

Loopback = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """A copy of the example's folder."""
    ignored = shutil.ignore_patterns("__pycache__", "federation")
    return Path(shutil.copytree(EXAMPLE, tmp_path / "example", ignore=ignored))


@pytest.fixture
def loopback(example: Path) -> Iterator[Loopback]:
    """A function that runs the command; whatever is left of it is ended afterwards."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "loopback", *arguments],
            cwd=example,
            # What is tested here, whatever is installed.
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )

    yield run
    end_processes(example / "federation" / "flower")


def _break(server_app: Path) -> None:
    code = server_app.read_text()
    begin = "    config = context.run_config\n"
    assert begin in code
    server_app.write_text(code.replace(begin, f'    raise RuntimeError("a")\n{begin}'))


@pytest.mark.slow
def test_it_reports_the_status_of_its_own_run(
    loopback_only: None, loopback: Loopback, example: Path
) -> None:
    """Of a study, of the same one shown again, of an app that fails, and of none."""
    app = example / "app"
    for _ in range(3):
        done = loopback("--num-rounds", "2")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Spent: PrivacySpent" in done.stdout, done.stdout
        assert "The run is finished:completed." in done.stdout
    _break(app / "hospitals" / "server_app.py")
    done = loopback("--num-rounds", "2")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "The run is finished:failed." in done.stdout
    (app / "pyproject.toml").write_text("")
    done = loopback("--num-rounds", "2")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "flwr run" in done.stderr
    assert "The run is" not in done.stdout


def test_its_folder_is_not_part_of_the_app(loopback: Loopback, example: Path) -> None:
    done = loopback("--folder", "app/study")
    assert done.returncode == 2
    assert "--folder=app/study is not allowed: outside of" in done.stderr
    assert not (example / "app" / "study").exists()

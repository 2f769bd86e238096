"""A federation of real processes on 127.0.0.1, and runs in it."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.engine import end_processes, processes

needs_nginx = pytest.mark.skipif(
    shutil.which("nginx") is None and "FLWR_FBO_REQUIRE_NGINX" not in os.environ,
    reason="nginx is not installed",
)

DEPLOYMENT = Path(__file__).parents[2] / "examples" / "deployment"


@contextmanager
def deployment(folder: Path) -> Iterator[Any]:
    """A federation as in `examples/deployment`; what is left of it is ended."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DEPLOYMENT))
        # What is tested here, whatever is installed.
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
        patch.setenv("OMP_NUM_THREADS", "1")
        from loopback.federation import Federation

        with Federation(folder) as all_processes:
            yield all_processes
        end_processes(all_processes.folder / "flower")


@pytest.fixture
def federation(loopback_only: None, tmp_path: Path) -> Iterator[Any]:
    """A federation of one test."""
    with deployment(tmp_path / "federation") as all_processes:
        yield all_processes


@contextmanager
def begun(federation: Any, app: Path, config: str) -> Iterator[Callable[[float], str]]:
    """Begin ``flwr run``; give a function that waits for its end: what it printed."""
    printed: Path = federation.folder / f"run-{time.monotonic_ns()}.out"
    command = [str(Path(sys.executable).parent / "flwr"), "run", str(app), "loopback"]
    with printed.open("wb") as out:
        run: subprocess.Popen[bytes] = subprocess.Popen(
            [*command, "--stream", "--run-config", config],
            env=federation.environment(),
            stdout=out,
            stderr=subprocess.STDOUT,
        )

        def end(timeout: float) -> str:
            try:
                run.wait(timeout)
            except subprocess.TimeoutExpired:
                pytest.fail(printed.read_text() + federation.log("superlink"))
            return printed.read_text()

        try:
            yield end
        finally:
            run.kill()
            run.wait()


def await_condition(condition: Callable[[], object], what: str, seconds: float) -> Any:
    """Return what a condition gives, once that is true."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def process_named(federation: Any, name: str) -> int:
    """Return the process of that name."""
    for process in processes(federation.folder / "flower"):
        line = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
        if any(part.endswith(name.encode()) for part in line[:2]):
            return process
    pytest.fail(f"no {name} is running")

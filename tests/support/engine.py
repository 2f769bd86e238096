"""`flwr run` on Flower's simulation engine, where Ray has nothing but loopback."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from flwr.app import UserConfig

FlwrRun = Callable[[Path, int, UserConfig], str]


@pytest.fixture(scope="session")
def loopback_only() -> None:
    """Skip where Ray, which listens on every interface, could be reached."""
    names = {name for _, name in socket.if_nameindex()}
    if names == {"lo"}:
        return
    reason = f"starts Ray, which must see no interface but lo (here: {sorted(names)})"
    if os.environ.get("FLWR_FBO_REQUIRE_ENGINE"):
        pytest.fail(f"FLWR_FBO_REQUIRE_ENGINE is set, but this test {reason}")
    pytest.skip(reason)


@pytest.fixture
def flower_home(tmp_path: Path) -> Iterator[Path]:
    """A folder for Flower's own files; what was started in it is ended afterwards."""
    home = tmp_path / "flower"
    home.mkdir()
    yield home
    end_processes(home)


def end_processes(home: Path) -> None:
    """End what runs with this folder as Flower's home."""
    for _attempt in range(120):  # a busy machine takes its time to end one
        left = processes(home)
        for process in left:
            with suppress(ProcessLookupError):  # it may have ended since
                os.kill(process, signal.SIGTERM)
        if not left:
            return
        time.sleep(0.5)
    pytest.fail(f"still running: {left}")


def processes(home: Path) -> list[int]:
    """Return the ids of the processes with this folder as Flower's home."""
    marker = f"FLWR_HOME={home}".encode()
    found = [p for p in Path("/proc").glob("[0-9]*") if _runs_in(p, marker)]
    return sorted(int(process.name) for process in found)


@pytest.fixture
def flwr_run(loopback_only: None, flower_home: Path, tmp_path: Path) -> FlwrRun:
    """A function of an app, the number of nodes and a run config: what it prints."""

    def run(app: Path, num_nodes: int, run_config: UserConfig) -> str:
        copy = tmp_path / "app"
        shutil.copytree(app, copy, ignore=shutil.ignore_patterns("__pycache__"))
        binaries = str(Path(sys.executable).parent)
        config = " ".join(
            f"{name}={str(value).lower() if isinstance(value, bool) else repr(value)}"
            for name, value in run_config.items()
        )
        environment = {
            **os.environ,
            "PATH": binaries + os.pathsep + os.environ["PATH"],
            # What is tested here, whatever is installed.
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "FLWR_HOME": str(flower_home),
            # Else tests that run at once share one SuperLink: it ends with the first.
            "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
        }
        done = subprocess.run(
            [
                *("flwr", "run", str(copy), "--stream"),
                *("--federation-config", f"num-supernodes={num_nodes}"),
                *(("--run-config", config) if config else ()),
            ],
            cwd=tmp_path,  # an app may write where it is run
            env=environment,
            capture_output=True,
            text=True,
            timeout=1800,  # of a run that hangs: a busy machine takes minutes
            check=False,
        )
        printed = done.stdout + done.stderr
        assert done.returncode == 0, printed
        # `flwr run` ends with 0 after a run that failed, too.
        link = flower_home / "local-superlink" / "superlink.log"
        status = _status(environment)
        assert status == "finished:completed", (
            f"The run is {status}.\n{printed}\n{link.read_text()}"
        )
        return done.stdout

    return run


def free_port() -> int:
    """Return a port of 127.0.0.1 that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def _status(environment: dict[str, str], patience: float = 120.0) -> str:
    """Return how the only run ended; the stream of its log may end before it does."""
    deadline = time.monotonic() + patience
    while True:
        done = subprocess.run(
            ["flwr", "list", "--format", "json"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        try:
            (run,) = json.loads(done.stdout)["runs"]
            status = str(run["status"])
        except (ValueError, LookupError):
            return f"not the only one listed: {done.stdout + done.stderr}"
        if status.startswith("finished") or time.monotonic() > deadline:
            return status
        time.sleep(1.0)


def _runs_in(process: Path, marker: bytes) -> bool:
    try:
        return marker in (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False  # it has ended, or is somebody else's

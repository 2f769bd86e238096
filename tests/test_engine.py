"""`flwr run` on Flower's simulation engine gives the in-process grid's histories."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict, UserConfig

from flwr_fbo import InProcessGrid

EXAMPLE = Path(__file__).parents[1] / "examples" / "digits"
NUM_AGENTS, NUM_ROUNDS = 4, 6  # round 1 is the initial points: five queries an agent


@pytest.fixture
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
    marker = f"FLWR_HOME={home}".encode()
    for _attempt in range(20):
        left = [p for p in Path("/proc").glob("[0-9]*") if _runs_in(p, marker)]
        for process in left:
            os.kill(int(process.name), signal.SIGTERM)
        if not left:
            return
        time.sleep(0.5)
    pytest.fail(f"still running: {left}")


def _runs_in(process: Path, marker: bytes) -> bool:
    try:
        return marker in (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False  # it has ended, or is somebody else's


def _run_config(folder: Path) -> UserConfig:
    return {
        "num-agents": NUM_AGENTS,
        "num-rounds": NUM_ROUNDS,
        "data-seed": 0,
        "experiment": True,
        "trial-folder": str(folder),
    }


def _trials(folder: Path) -> list[str]:
    return [(folder / f"client-{n}.jsonl").read_text() for n in range(NUM_AGENTS)]


def _in_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    from digits import client_app, server_app

    config = _run_config(folder)
    grid = InProcessGrid(client_app.app, NUM_AGENTS, run_config=config)
    context = Context(
        run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=config
    )
    server_app.app(grid, context)
    return _trials(folder)


def test_the_example_runs_in_the_in_process_grid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = _in_process(tmp_path, monkeypatch)
    assert [len(t.splitlines()) for t in trials] == [10 + NUM_ROUNDS - 1] * NUM_AGENTS


@pytest.mark.slow
@pytest.mark.usefixtures("loopback_only")
def test_the_engine_gives_the_same_histories(
    tmp_path: Path, flower_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / "engine", tmp_path / "in-process"]
    for folder in folders:
        folder.mkdir()
    app = tmp_path / "app"
    shutil.copytree(EXAMPLE, app, ignore=shutil.ignore_patterns("__pycache__"))
    binaries = str(Path(sys.executable).parent)
    config = " ".join(
        f"{name}={str(value).lower() if isinstance(value, bool) else repr(value)}"
        for name, value in _run_config(folders[0]).items()
    )
    done = subprocess.run(
        [
            *("flwr", "run", str(app), "--stream"),
            *("--federation-config", f"num-supernodes={NUM_AGENTS}"),
            *("--run-config", config),
        ],
        env={
            **os.environ,
            "PATH": binaries + os.pathsep + os.environ["PATH"],
            "FLWR_HOME": str(flower_home),
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "Privacy spent: epsilon" in done.stdout, done.stdout + done.stderr
    assert _trials(folders[0]) == _in_process(folders[1], monkeypatch)

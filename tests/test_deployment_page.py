"""The deployment tutorial: each of its commands, in order, from a clean folder.

SuperLink, proxy and SuperNodes listen on 127.0.0.1, and run until the page ends. Only
`pip` is not run: tests/support/strangers_path.py installs.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.deployed import needs_nginx
from tests.support.deployment_page import commands_under
from tests.support.documents import (
    ROOT,
    Command,
    assert_output,
)
from tests.support.documents_not_run import NOT_RUN
from tests.support.engine import end_processes, free_port

PAGE = ROOT / "examples" / "deployment" / "README.md"
# What a program prints once it serves.
SERVERS = {
    "(umask 077; flower-superlink ": "Uvicorn running on https://127.0.0.1:",
    "nginx": "start worker processes",
    "flower-supernode": "SuperNode ID:",
    "flwr-fbo superexec": "Starting Flower SuperExec",
}
# What a command must print, whatever its exit status.
PRINTED = {
    "python -m loopback": "The run is finished:completed.",
    "flwr run ": "Recommended for all sites: ",
    "flwr list ": "finished:completed",
}


class Terminals:
    """Where a reader types the page's commands: all are in one folder."""

    def __init__(self, folder: Path, flower_home: Path) -> None:
        self.folder = folder
        self._servers: dict[str, subprocess.Popen[bytes]] = {}
        ours = ("FLWR_", "PYTHONPATH")
        self._environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(ours)},
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            # What is tested here, whatever is installed.
            "PYTHONPATH": str(ROOT),
            "FLWR_HOME": str(flower_home),
            "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
            "COLUMNS": "200",
        }

    def type(self, command: Command) -> None:
        """Run a command to its end, a server until it serves.

        A server in the same terminal is stopped first, as a reader has to.
        """
        self._stop(command.terminal)
        for beginning, text in SERVERS.items():
            if " ".join(command.words).startswith(beginning):
                self._serve(command, text)
                return
        done = subprocess.run(
            ["bash", "-c", command.line],
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, f"{command.line}\n{done.stdout}"
        assert_output(done.stdout, command.output, command.line)
        for beginning, text in PRINTED.items():
            if " ".join(command.words).startswith(beginning):
                assert text in done.stdout, f"{command.line}\n{done.stdout}"

    def _serve(self, command: Command, text: str) -> None:
        log = self.folder.parent / f"{command.terminal}.log"
        with log.open("wb") as file:
            server = subprocess.Popen(
                ["bash", "-c", command.line],
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._servers[command.terminal] = server
        deadline = time.monotonic() + 120
        while text not in log.read_text():
            waits = server.poll() is None and time.monotonic() < deadline
            assert waits, f"{command.line}\n{log.read_text()}"
            time.sleep(0.2)

    def end(self) -> None:
        """End the servers, those that were started last first."""
        for terminal in reversed(list(self._servers)):
            self._stop(terminal)

    def _stop(self, terminal: str) -> None:
        if server := self._servers.pop(terminal, None):
            os.killpg(server.pid, signal.SIGTERM)
            server.wait(30)


@pytest.fixture
def terminals(flower_home: Path, tmp_path: Path) -> Iterator[Terminals]:
    """Terminals in a copy of the example; what is left of it is ended afterwards."""
    ignored = shutil.ignore_patterns("__pycache__", "federation", "by-hand")
    folder = Path(shutil.copytree(PAGE.parent, tmp_path / "deployment", ignore=ignored))
    all_terminals = Terminals(folder, flower_home)
    yield all_terminals
    all_terminals.end()
    end_processes(folder / "federation" / "flower")


@pytest.mark.slow
@needs_nginx
def test_the_page_runs_from_a_clean_folder(
    loopback_only: None, terminals: Terminals
) -> None:
    [pip] = (one for one in NOT_RUN if one.pattern == "pip install ")
    typed = []
    for command in commands_under(PAGE, containers=False):
        if command.words[0] == "pip":
            pip.check(command.words)
        else:
            terminals.type(command)
            typed.append(command.words[0])
    assert typed.count("flower-supernode") == 2 + 1 + 3
    assert typed.count("nginx") == 1
    assert [word for word in typed if word == "flwr-fbo"]
    modes = {
        p.name: p.stat().st_mode & 0o77 for p in terminals.folder.glob("by-hand/*")
    }
    assert modes["superlink.db"] == 0
    assert modes["site-0"] == modes["server.key"] == modes["ca.key"] == 0

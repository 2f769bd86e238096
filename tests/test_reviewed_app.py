"""Sites behind a proxy, which run only what they have reviewed: real processes.

A SuperLink with TLS and node keys, nginx in front of it, and a SuperNode whose apps are
run by ``flwr-fbo superexec``.
"""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.deployed import begun, needs_nginx
from tests.support.documents import run_command

PROJECT = """
[project]
name = "reviewed"
version = "1.0.0"
description = "Asks each node for a word"
license = { file = "LICENSE" }
dependencies = ["flwr>=1.41,<1.43"]

[tool.flwr.app]
publisher = "us"
fab-format-version = 1
flwr-version-target = "1.41.0"

[tool.flwr.app.components]
serverapp = "words.server_app:app"
clientapp = "words.client_app:app"

[tool.flwr.app.config]
"""
SERVER = """
import time

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    deadline = time.monotonic() + 60
    while not (nodes := list(grid.get_node_ids())) and time.monotonic() < deadline:
        time.sleep(1)
    content = RecordDict({"config": ConfigRecord({})})
    messages = [Message(content, node, "query") for node in nodes]
    for reply in grid.send_and_receive(messages, timeout=60):
        if reply.has_error():
            print("REFUSED:", " ".join(reply.error.reason.split()))
        else:
            print("ANSWERED:", reply.content["config"]["word"])
"""
CLIENT = """
from pathlib import Path

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

with Path({marks!r}).open("a") as file:  # as soon as it is imported
    file.write("{word}\\n")
app = ClientApp()


@app.query()
def query(message, context):
    content = RecordDict({{"config": ConfigRecord({{"word": "{word}"}})}})
    return Message(content, reply_to=message)
"""


def write_app(folder: Path, marks: Path, word: str) -> Path:
    package = folder / "words"
    package.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(PROJECT)
    (package / "__init__.py").write_text('"""Words."""\n')
    (folder / "LICENSE").write_text("Anybody may use it.\n")
    (package / "server_app.py").write_text(SERVER)
    code = CLIENT.format(marks=str(marks), word=word)
    (package / "client_app.py").write_text(code)
    return folder


def build(app: Path, folder: Path) -> Path:
    flwr = str(Path(sys.executable).with_name("flwr"))
    command = [flwr, "build", "--app", str(app)]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    [bundle] = folder.glob("*.fab")
    return bundle


@pytest.mark.slow
@needs_nginx
def test_a_site_runs_what_it_reviewed_and_reaches_the_fleet_alone(
    federation: Any, tmp_path: Path
) -> None:
    federation.start_superlink()
    federation.start_proxy()
    federation.register("site-0")
    trusted, marks = tmp_path / "trusted", tmp_path / "marks"
    app = write_app(tmp_path / "app", marks, "reviewed")
    bundle = build(app, tmp_path)
    run_command(["trust", str(bundle), str(trusted)])
    federation.start_supernode("site-0", {}, trusted)
    federation.await_supernode("site-0", {})
    with begun(federation, app, "") as end:
        printed = end(120)
    assert "ANSWERED: reviewed" in printed, printed
    assert marks.read_text() == "reviewed\n"

    # The same name and version, other code.
    write_app(app, marks, "changed")
    with begun(federation, app, "") as end:
        printed = end(120)
    assert "REFUSED: " in printed, printed
    assert "This site has not reviewed this app: us/reviewed 1.0.0, SHA-256" in printed
    assert "Nothing of it was run." in printed
    assert "has not reviewed this app" in federation.log("site-0-executor")
    assert marks.read_text() == "reviewed\n"

    _check_what_a_site_reaches(federation, app, tmp_path / "stranger")


def _check_what_a_site_reaches(federation: Any, app: Path, home: Path) -> None:
    """Nothing but the fleet, with all that a site has: the certificate, its key."""
    node = federation.flwr("supernode", "list", "loopback", "--format", "json")
    assert '"online"' in node
    home.mkdir()
    (home / "config.toml").write_text(
        '[superlink]\ndefault = "proxy"\n\n[superlink.proxy]\n'
        f'address = "127.0.0.1:{federation.port("proxy")}"\n'
        f'root-certificates = "{federation.keys / "ca.crt"}"\n'
    )
    key = str(federation.keys / "site-0" / "node_key.pub")
    commands = (
        ("run", str(app), "proxy"),
        ("log", "1", "proxy", "--show"),
        ("ls", "proxy"),
        ("stop", "1", "proxy"),
        ("supernode", "list", "proxy"),
        ("supernode", "register", key, "proxy"),
        ("supernode", "unregister", "1", "proxy"),
    )
    flwr = str(Path(sys.executable).with_name("flwr"))
    for command in commands:
        done = subprocess.run(
            [flwr, *command],
            env={**federation.environment(), "FLWR_HOME": str(home)},
            capture_output=True,
            text=True,
            check=False,
        )
        said = done.stdout + done.stderr
        assert done.returncode != 0, f"{command}\n{said}"
    # The proxy's log: those requests, and no other, were refused.
    log = (federation.folder / "proxy" / "proxy.log").read_text().splitlines()
    of_control = [line for line in log if "/v1/control/" in line]
    assert len(of_control) >= len(commands)
    assert all('" 403 ' in line for line in of_control), of_control
    for path in (
        "/v1/control/list-runs",
        "/v1/fleet/../control/list-runs",
        "/v1/fleet/%2e%2e/control/list-runs",
        "/v1/fleet/..%2fcontrol/list-runs",
        "/v1/fleet/%2e%2e%2fcontrol%2flist-runs",
        "//v1//control//list-runs",
        "/v1/./control/list-runs",
        "/V1/control/list-runs",
        "/v1/control/list-runs;/v1/fleet/",
        "/v1/runtime/acquire-task",
        "/openapi.json",
        "/health",
    ):
        assert _status(federation, "proxy", path) in (400, 403, 404), path
    # What is refused there, the SuperLink itself would have answered.
    assert _status(federation, "superlink", "/v1/control/list-runs") not in (403, 404)


def _status(federation: Any, server: str, path: str) -> int:
    """Return the status of the answer to a request as it stands."""
    context = ssl.create_default_context(cafile=str(federation.keys / "ca.crt"))
    address = "127.0.0.1", federation.port(server)
    with (
        socket.create_connection(address, timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        kind = "Content-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n"
        connection.sendall((head + kind).encode())
        return int(connection.recv(4096).split()[1])

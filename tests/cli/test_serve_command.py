"""``flwr-fbo serve``: the command, killed and started again."""

import http.client
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from flwr_fbo import LinearBanditPolicy
from tests.support.policies import CONTEXT, enrolled


def serving(folder: Path) -> tuple[subprocess.Popen[str], int]:
    """Start the command; return it and its port."""
    command = ["-c", "from flwr_fbo.cli import app; app()", "serve", str(folder)]
    process = subprocess.Popen(
        [sys.executable, *command, "--port", "0"], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "running on" in line:
            assert "http://127.0.0.1:" in line
            return process, int(line.split("127.0.0.1:")[1].split()[0])
    raise AssertionError("it has ended")


def ask(port: int, content: Any) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"Content-Type": "application/json", "Idempotency-Key": "visit-1"}
    connection.request("POST", "/choose", json.dumps(content), headers)
    return json.loads(connection.getresponse().read())


def test_a_killed_service_goes_on_as_it_was(tmp_path: Path) -> None:
    enrolled(tmp_path)
    answers = []
    for _ in range(2):
        process, port = serving(tmp_path)
        answers.append(ask(port, {"context": CONTEXT}))
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()
        time.sleep(0.05)
    assert answers[0] == answers[1]
    assert LinearBanditPolicy.open(tmp_path).num_trials == 1

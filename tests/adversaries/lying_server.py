"""What a lying server costs a site with default limits: seconds, and memory.

    python -m tests.adversaries.lying_server [NAME ...]

Sends each of `hostile_messages` to a client of its kind, in a process of its own that
has answered an honest study before, by both of Flower's client APIs; then studies that
are as large as the limits allow. Printed is what the longest message took, in CPU time
and by the clock, the largest memory above that before, and how it ended.
The exit status is 1 if a message takes more than 1 s of CPU time, or 200 MB.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from flwr_fbo._compat import (
    ClientApi,
    ensure_task_identity,
    instruction_content,
    message_type,
    reply_metrics,
)
from flwr_fbo.site.site import SiteError
from flwr_fbo.study.codec import Config
from tests.adversaries.hostile_messages import (
    APPS,
    HONEST,
    HOSTILE,
    LARGEST,
    Dialogue,
    answered,
)

LONGEST, MOST_MEMORY = 1.0, 200e6
APIS: tuple[ClientApi, ...] = ("message", "numpy")
DIALOGUES = {dialogue.name: dialogue for dialogue in (*HOSTILE, *LARGEST)}


@dataclass(frozen=True)
class Cost:
    """What a dialogue costs a client.

    Attributes
    ----------
    seconds, passed : float
        Of its longest message: of CPU time, and by the clock.
    memory : int
        Bytes: the largest resident memory, above that before.
    end : str
        The error's text, or ``"answered"``.
    """

    seconds: float
    passed: float
    memory: int
    end: str

    @property
    def ok(self) -> bool:
        """Whether it is below both bars."""
        return self.seconds <= LONGEST and self.memory <= MOST_MEMORY


class Client:
    """A client app, its context, and the journal that it has named."""

    def __init__(self, app: ClientApp, api: ClientApi) -> None:
        ensure_task_identity()
        self._app, self._api = app, api
        self._context = Context(1, 1, {"agent-id": 0}, RecordDict(), {})
        self._journal: int | None = None
        self.seconds = self.passed = 0.0

    def ask(self, config: Config, arrays: ArrayRecord) -> None:
        """Have it answer a message, and keep the time if it is the longest one."""
        if self._journal is not None and config["fbo-phase"] == "round":
            config = {**config, "fbo-journal": self._journal}
        content = instruction_content(arrays, ConfigRecord({**config}), self._api)
        message = Message(content, 1, message_type(self._api))
        began, cpu = time.perf_counter(), time.process_time()
        try:
            reply = self._app(message, self._context)
        finally:
            self.passed = max(self.passed, time.perf_counter() - began)
            self.seconds = max(self.seconds, time.process_time() - cpu)
        if reply.has_error():
            raise SiteError((reply.error.reason or "").removeprefix("SiteError: "))
        journal = reply_metrics(reply.content).get("journal")
        self._journal = self._journal if journal is None else int(journal)


def cost(dialogue: Dialogue, api: ClientApi) -> Cost:
    """Return what a dialogue costs in this process."""
    make = APPS[dialogue.kind, api]
    honest = Client(make(), api)
    for config, arrays in answered(HONEST[dialogue.kind]):
        honest.ask(config, arrays)
    messages = list(dialogue.make())
    client, end = Client(make(), api), "answered"
    before = _resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    try:
        for config, arrays in messages:
            client.ask(config, arrays)
    except Exception as error:  # of any kind: that is what is looked at
        end = f"{type(error).__name__}: {error}"
    return Cost(client.seconds, client.passed, _resident("VmHWM") - before, end)


def _resident(name: str) -> int:
    """Return the bytes of resident memory, now or at most."""
    status = Path("/proc/self/status").read_text()
    [line] = [row for row in status.splitlines() if row.startswith(f"{name}:")]
    return 1024 * int(line.split()[1])


def measured(name: str, api: str) -> Cost:
    """Return what a dialogue costs in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "tests.adversaries.lying_server",
        "--json",
        api,
        name,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return Cost(float("inf"), 0.0, 0, done.stderr.strip().splitlines()[-1])
    return Cost(**json.loads(done.stdout))


def main() -> None:
    """Measure all, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--json", metavar="API", choices=APIS, help="in this process")
    options = parser.parse_args()
    if options.json:
        logging.disable(logging.CRITICAL)
        found = cost(DIALOGUES[options.names[0]], options.json)
        print(json.dumps(asdict(found)))
        return
    missed = 0
    print(f"{'message':44} {'api':8} {'s':>5} {'clock':>5} {'MB':>4}  end")
    for name in options.names or DIALOGUES:
        for api in APIS:
            one = measured(name, api)
            missed += not one.ok
            figures = f"{one.seconds:5.2f} {one.passed:5.2f} {one.memory / 1e6:4.0f}"
            mark = "" if one.ok else "MISSED "
            print(f"{name:44} {api:8} {figures}  {mark}{one.end[:90]}", flush=True)
    sys.exit(missed > 0)


if __name__ == "__main__":
    main()

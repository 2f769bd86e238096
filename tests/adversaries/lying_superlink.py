"""A SuperLink that lies about an app, at a site with ``flwr-fbo superexec``.

    python -m tests.adversaries.lying_superlink [NAME ...]

A site has reviewed one app. For each lie a message arrives with another FAB id,
version, SHA-256, bundle, entry point, task or run config. It is answered as in a
deployment: by the launcher of ``flwr-fbo superexec``, in a process of its own, which
asks the Runtime API of a SuperNode, played on 127.0.0.1. A local user has planted code
where the lie points, in the current folder, and in Flower's folder of the site. Code
that runs says so in a file. Printed is a line per lie: which code ran, and the end.
The exit status is 1 if unreviewed code ran, or if the honest message does not run the
reviewed app.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict, UserConfig
from flwr.app.message import remove_content_from_message
from flwr.cli.build import build_fab_from_files
from flwr.common.serde import context_to_proto, message_to_proto, user_config_to_proto
from flwr.proto.fab_pb2 import Fab
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedResponse,
    PullObjectRequest,
    PullObjectResponse,
    PushObjectResponse,
)
from flwr.proto.run_pb2 import Run
from flwr.proto.runtime_pb2 import (
    AcquireTaskResponse,
    PullAppMessagesResponse,
    PullTaskInputResponse,
    PushAppMessagesResponse,
    PushTaskOutputRequest,
    PushTaskOutputResponse,
    SendTaskHeartbeatResponse,
)
from flwr.proto.task_pb2 import Task
from flwr.supercore.constant import TASK_TYPE_TO_COMMAND, TaskType
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
)
from flwr.supernode.runtime import run_clientapp

from flwr_fbo import _compat
from flwr_fbo._compat import ensure_task_identity
from flwr_fbo.cli.superexec_command import write_launchers
from flwr_fbo.site import reviewed_apps

PROJECT = """
[project]
name = "reviewed"
version = "1.0.0"
license = {{ file = "LICENSE" }}
dependencies = ["flwr>=1.41,<1.43"]
[tool.flwr.app]
publisher = "us"
fab-format-version = 1
flwr-version-target = "1.41.0"
[tool.flwr.app.components]
serverapp = "words.server_app:app"
clientapp = "{clientapp}"
[tool.flwr.app.config]
word = "a"
"""
# It says that it ran as soon as it is imported.
CODE = """
import os

with open({marks!r}, "a") as file:
    file.write("{word}\\n")
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.query()
def query(message, context):
    return Message(RecordDict(), reply_to=message)
"""
# Modules that a planted folder has: the app's, one that no bundle has, and others that
# are imported before the app is loaded.
PLANTED = ("words/client_app", "planted", "flwr/__init__", "flwr_fbo/__init__", "json")


@dataclass(frozen=True)
class Lie:
    """What a SuperLink says of an app, and sends as its bundle."""

    name: str
    content: bytes
    digest: str
    fab_id: str = "us/reviewed"
    version: str = "1.0.0"
    run_digest: str | None = None
    verifications: dict[str, str] = field(default_factory=dict)
    override_config: UserConfig = field(default_factory=dict)
    run_config: UserConfig = field(default_factory=dict)
    run_id: int = 7
    message_type: str = "query"
    task_type: str = TaskType.CLIENT_APP

    def task_input(self) -> PullTaskInputResponse:
        """Return the task as the SuperNode hands it over."""
        run = Run(
            run_id=self.run_id,
            fab_id=self.fab_id,
            fab_version=self.version,
            fab_hash=self.digest if self.run_digest is None else self.run_digest,
            override_config=user_config_to_proto(self.override_config),
            primary_task_type=self.task_type,
        )
        fab = Fab(
            hash_str=self.digest,
            content=self.content,
            verifications=self.verifications,
        )
        context = Context(self.run_id, 1, {}, RecordDict(), self.run_config)
        return PullTaskInputResponse(
            context=context_to_proto(context), run=run, fab=fab, task_id=1
        )


@dataclass(frozen=True)
class Outcome:
    """Which code ran, "reviewed" or "planted", and how the task ended."""

    ran: frozenset[str]
    end: str

    @property
    def is_violation(self) -> bool:
        """Whether code ran that the site has not reviewed."""
        return bool(self.ran - {"reviewed"})


class Runtime(ThreadingHTTPServer):
    """The Runtime API of a SuperNode, for one task at a time."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.address = f"127.0.0.1:{self.server_address[1]}"
        self.waiting: list[Lie] = []
        self.ended = threading.Event()
        self.end = ""

    def begin(self, lie: Lie) -> None:
        """Have a lie be the task that is handed over."""
        ensure_task_identity()
        self._task, self.end = lie.task_input(), ""
        self.ended.clear()
        content = RecordDict({"config": ConfigRecord({"word": "b"})})
        message = Message(content, 1, lie.message_type)
        message.metadata.__dict__["_message_id"] = message.object_id
        self._objects = {
            name: part.deflate()
            for name, part in get_all_nested_objects(message).items()
        }
        self._message = PullAppMessagesResponse(
            messages_list=[message_to_proto(remove_content_from_message(message))],
            message_object_trees=[get_object_tree(message)],
        )

    def answer(self, path: str, body: bytes) -> Any:
        """Return the answer to a request."""
        if path == "acquire-task":
            if not self.waiting:
                return AcquireTaskResponse()
            lie = self.waiting.pop()
            self.begin(lie)
            task = Task(task_id=1, run_id=1, type=lie.task_type, fab_hash=lie.digest)
            return AcquireTaskResponse(token="1", task=task)
        if path == "pull-object":
            name = PullObjectRequest.FromString(body).object_id
            return PullObjectResponse(
                object_found=True,
                object_available=True,
                object_content=self._objects[name],
            )
        if path == "push-task-output":
            output = PushTaskOutputRequest.FromString(body)
            self.end = output.details or output.sub_status
            self.ended.set()
        answers = {
            "send-task-heartbeat": SendTaskHeartbeatResponse(success=True),
            "pull-task-input": self._task,
            "pull-messages": self._message,
            "confirm-message-received": ConfirmMessageReceivedResponse(),
            "push-messages": PushAppMessagesResponse(session_id="1"),
            "push-object": PushObjectResponse(stored=True),
            "push-task-output": PushTaskOutputResponse(),
        }
        return answers[path]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Runtime

    def do_POST(self) -> None:
        """Answer a request."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        answer = self.server.answer(self.path.rpartition("/")[2], body)
        sent = answer.SerializeToString()
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


class Site:
    """A site with a reviewed app, a planter on its machine, and its SuperNode."""

    def __init__(self, folder: Path, runtime: Runtime) -> None:
        self.folder, self.runtime = folder, runtime
        self._marks = folder / "marks"
        self._launchers = folder / "launchers"
        self.trusted = folder / "trusted"
        for name in ("tmp", "home", "cwd", "launchers"):
            (folder / name).mkdir()
        self.reviewed = self.bundle("reviewed")
        self.planted = self.bundle("planted")
        # Its entry point is a module that it does not have.
        self.hollow = self.bundle("reviewed", "planted:app")
        for content in (self.reviewed, self.hollow):
            reviewed_apps.trust(content, self.trusted)
        write_launchers(self._launchers, self.trusted)
        for place in ("cwd", "tmp", "home", "flower", "flower/apps"):
            self.plant(folder / place)

    def bundle(self, word: str, clientapp: str = "words.client_app:app") -> bytes:
        """Return an app's bundle as ``flwr build`` makes it."""
        files: dict[str, bytes | Path] = {
            "pyproject.toml": PROJECT.format(clientapp=clientapp).encode(),
            "LICENSE": b"Anybody may use it.\n",
            "words/__init__.py": b"",
            "words/server_app.py": b"",
            "words/client_app.py": self._code(word).encode(),
        }
        return build_fab_from_files(files)[0]

    def _code(self, word: str) -> str:
        return CODE.format(marks=str(self._marks), word=word)

    def plant(self, folder: Path) -> None:
        """Write an app with modules of the planter to a folder."""
        for module in PLANTED:
            path = folder / f"{module}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self._code("planted"))
        (folder / "words" / "__init__.py").write_text("")
        project = PROJECT.format(clientapp="words.client_app:app")
        (folder / "pyproject.toml").write_text(project)

    def plant_for(self, lie: Lie) -> None:
        """Plant an app where Flower would look for the one that a lie names."""
        name = f"{lie.fab_id.replace('/', '.', 1)}.{lie.version}.{lie.digest[:8]}"
        for home in (self.folder / "tmp" / "new", self.folder / "flower"):
            path = Path(os.path.normpath(home / "apps" / name))
            if path.is_relative_to(self.folder) and path.name != "new":
                with suppress(OSError, ValueError):  # no file has such a name
                    self.plant(path)

    def environment(self) -> dict[str, str]:
        """Return the environment of the site's processes."""
        return {
            "PATH": str(self._launchers),
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "TMPDIR": str(self.folder / "tmp"),
            "HOME": str(self.folder / "home"),
            "FLWR_HOME": str(self.folder / "flower"),
            "FLWR_TELEMETRY_ENABLED": "0",
        }

    def ran(self) -> frozenset[str]:
        """Return which code has run since the last call."""
        words = self._marks.read_text().split() if self._marks.exists() else []
        self._marks.unlink(missing_ok=True)
        return frozenset(words)

    def answer(self, lie: Lie, fault: str | None = None) -> Outcome:
        """Have the site answer one message, perhaps with a fault that is planted."""
        self.plant_for(lie)
        self.ran()
        self.runtime.begin(lie)
        command = [str(self._launchers / TASK_TYPE_TO_COMMAND[TaskType(lie.task_type)])]
        if fault is not None:
            module = "tests.adversaries.lying_superlink", f"--fault={fault}"
            command = [sys.executable, "-P", "-m", *module, str(self.trusted)]
        address = "--runtime-api-address", self.runtime.address
        done = subprocess.run(
            [
                *command,
                *address,
                "--token=1",
                "--insecure",
                f"--parent-pid={os.getpid()}",
            ],
            cwd=self.folder / "cwd",
            env=self.environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        return Outcome(self.ran(), self.runtime.end or last)


@contextmanager
def site() -> Iterator[Site]:
    """A site in a temporary folder."""
    runtime = Runtime()
    thread = threading.Thread(target=runtime.serve_forever, daemon=True)
    thread.start()
    try:
        with tempfile.TemporaryDirectory(prefix="lying-superlink-") as folder:
            yield Site(Path(folder), runtime)
    finally:
        runtime.shutdown()
        runtime.server_close()
        thread.join()


def honest(at: Site) -> Lie:
    """Return the message of a SuperLink that does not lie."""
    return Lie("honest", at.reviewed, _digest(at.reviewed))


def lies(at: Site) -> list[Lie]:
    """Return all lies, each with a name of its own."""
    truth = honest(at)
    found = [
        *_lies_about_version(at, truth),
        *_lies_about_id(at, truth),
        *_lies_about_digest(at, truth),
        *_lies_about_content(at, truth),
        *_other_lies(at, truth),
    ]
    assert len({lie.name for lie in found}) == len(found)
    return found


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _lies_about_version(at: Site, truth: Lie) -> Iterator[Lie]:
    # From the folder that Flower unpacks to, in a home of the site's temporary folder.
    inside = f"1.0.0.{truth.digest[:8]}"
    root = str(at.folder).lstrip("/")
    paths = {
        "up to apps": f"{inside}/../planted",
        "up to Flower's home": f"{inside}/../../planted",
        "up to the temporary folder": f"{inside}/../../../planted/",
        "up to the temporary folder, a name": f"{inside}/../../../planted",
        "up to the site": f"{inside}/../../../../planted/",
        "up to the root": f"{inside}{'/..' * 40}/{root}/planted/",
        "up to the root, a name": f"{inside}{'/..' * 40}/{root}/another",
        "through a package": f"{inside}/words/../../../../planted/",
        "through itself": f"{inside}/././../../../planted/",
        "double slashes": f"{inside}//..//..//..//planted//",
        "to the current folder": f"{inside}{'/..' * 40}/{root}/cwd/",
        "up without a start": f"1.0.0{'/..' * 40}/{root}/planted/",
        "absolute": f"/{root}/planted/",
        "a folder": "1.0.0/",
        "back": "1.0.0\\..\\..\\..\\planted\\",
        "escaped": "1.0.0%2f..%2f..%2f..%2fplanted",
        "wide": "1.0.0\uff0f..\uff0f..\uff0fplanted",
        "dots": "..",
        "a slash": "/",
    }
    for name, version in paths.items():
        yield replace(truth, name=f"version: {name}", version=version)
    for version in ("", "1.0.1", "1.0", " 1.0.0", "1.0.0\n", "v1.0.0", "01.0.0"):
        yield replace(truth, name=f"version: {version!r}", version=version)
    yield replace(truth, name="version: a NUL", version="1.0.0\0")
    yield replace(truth, name="version: long", version="1" * 100_000)


def _lies_about_id(at: Site, truth: Lie) -> Iterator[Lie]:
    words = [
        "",
        "us",
        "us/",
        "/reviewed",
        "us/reviewed/",
        "us//reviewed",
        "../reviewed",
    ]
    words += ["us/..", "them/reviewed", "US/Reviewed", "us/reviewed ", "us\\reviewed"]
    words += ["us/planted", "u\u0455/reviewed", "us/reviewed\0", "us.reviewed/1"]
    for fab_id in (*words, f"us/reviewed/../../..{at.folder}/planted"):
        name = f"id: {fab_id[:30]!r}"
        yield replace(truth, name=name, fab_id=fab_id)
    up = f"1.0.0.{truth.digest[:8]}/../../../planted/"
    yield replace(truth, name="id and version", fab_id="us/planted", version=up)


def _lies_about_digest(at: Site, truth: Lie) -> Iterator[Lie]:
    true, up = truth.digest, f"1.0.0.{truth.digest[:8]}/../../../"
    digests = {
        "none": "",
        "upper case": true.upper(),
        "eight digits": true[:8],
        "one less": true[:-1],
        "one more": f"{true}0",
        "another end": f"{true[:8]}{'0' * 56}",
        "another start": f"{'0' * 8}{true[8:]}",
        "its algorithm": f"sha256:{true}",
        "SHA-512": hashlib.sha512(truth.content).hexdigest(),
        "BLAKE2": hashlib.blake2s(truth.content).hexdigest(),
        "base64": base64.b64encode(bytes.fromhex(true)).decode(),
        "of the planted app": _digest(at.planted),
        "a path": "/../../planted",
        "an end and a path": f"{true}/../../planted",
    }
    for name, digest in digests.items():
        yield replace(truth, name=f"SHA-256: {name}", digest=digest)
    for digest in ("/evil", "evil", ""):
        name = f"SHA-256: {digest!r} after a path"
        yield replace(truth, name=name, digest=digest, version=f"{up}planted")


def _lies_about_content(at: Site, truth: Lie) -> Iterator[Lie]:
    larger = io.BytesIO(at.reviewed)
    with zipfile.ZipFile(larger, "a") as archive:
        archive.writestr("words/planted.py", "")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo("pyproject.toml"))
    contents = {
        "planted": at.planted,
        "planted after reviewed": at.reviewed + at.planted,
        "planted before reviewed": at.planted + at.reviewed,
        "one more file": larger.getvalue(),
        "one byte more": at.reviewed + b"\n",
        "one byte less": at.reviewed[:-1],
        "large": at.planted + bytes(20_000_000),
        "empty": b"",
        "another format": packed.getvalue(),
        "code": b"import planted\n",
    }
    for module in ("planted:app", "os:system", "flwr_fbo.site.reviewed_apps:main"):
        contents[f"entry point {module}"] = at.bundle("planted", module)
    for name, content in contents.items():
        one = replace(truth, name=f"bundle: {name}", content=content)
        yield one
        name = f"{one.name}, its SHA-256"
        yield replace(one, name=name, digest=_digest(content))


def _other_lies(at: Site, truth: Lie) -> Iterator[Lie]:
    hollow = replace(truth, content=at.hollow, digest=_digest(at.hollow))
    yield replace(hollow, name="a reviewed entry point that is not there")
    up = f"1.0.0.{hollow.digest[:8]}/../../../planted/"
    yield replace(hollow, name="the same, with a path", version=up)
    of_other = replace(truth, digest=hollow.digest, run_digest=truth.digest)
    yield replace(of_other, name="two SHA-256")
    yield replace(truth, name="the run's SHA-256", run_digest=_digest(at.planted))
    verifications = {
        "valid_license": "True",
        "key": '{"signature": "", "signed_at": 0}',
    }
    yield replace(truth, name="verifications", verifications=verifications)
    config: UserConfig = {"word": "/planted", "components.clientapp": "planted:app"}
    yield replace(truth, name="run config", run_config=config, override_config=config)
    yield replace(truth, name="run id", run_id=2**63)
    yield replace(truth, name="message type", message_type="query.planted")
    for kind in TaskType:
        if kind != TaskType.CLIENT_APP:
            yield replace(truth, name=f"task: {kind}", task_type=kind)


def _load_what_the_server_names(unpack: Callable[[bytes], Any]) -> None:
    names = vars(run_clientapp)
    install = names["install_from_fab"]

    def install_checked(content: bytes, **options: Any) -> None:
        unpack(content)
        install(content, **options)

    names["install_from_fab"] = install_checked
    _compat._run_script("flwr-clientapp", sys.argv[1:])


def _load_before() -> None:
    vars(reviewed_apps)["run_client_app"] = _load_what_the_server_names


def _compare_nothing() -> None:
    vars(reviewed_apps)["require_reviewed"] = lambda *_: None


def _import_from_the_current_folder() -> None:
    sys.path.insert(0, os.getcwd())


# "as before" is what `flwr-fbo superexec` once did.
FAULTS = {
    "as before": _load_before,
    "without the list": _compare_nothing,
    "without -P": _import_from_the_current_folder,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Try all lies, or those that are named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    names = parser.parse_args(arguments).names
    wrong = failed = 0
    with site() as at:
        chosen = [lie for lie in lies(at) if not names or lie.name in names]
        for lie in (honest(at), *chosen, honest(at)):
            outcome = at.answer(lie)
            is_honest = lie.name == "honest"
            wrong += outcome.is_violation
            failed += is_honest and outcome.ran != {"reviewed"}
            ran = " ".join(sorted(outcome.ran)) or "-"
            print(f"{lie.name[:48]:48} {ran:8} {outcome.end[:90]!r}", flush=True)
    print(f"{wrong} of {len(chosen)} ran unreviewed code")
    if failed:
        print("The honest message did not run the reviewed app.")
    sys.exit(wrong + failed > 0)


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1].startswith("--fault="):
        FAULTS[sys.argv.pop(1).partition("=")[2]]()
        reviewed_apps.main()
    else:
        main()

"""Start and stop the processes of a federation; each is ended by its process id."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loopback.keys import make_certificates, make_key_pair

CONNECTION = "loopback"
_PROXY = Path(__file__).parents[1] / "proxy"
_SECONDS_TO_START, _SECONDS_TO_END, _SECONDS_TO_STOP = 60.0, 60.0, 20.0
_SECONDS_TO_BE_LET_IN = 180.0
_IS_IN = "SuperNode ID:"  # what a SuperNode writes then


class Federation:
    """A SuperLink with TLS and authentication, and its SuperNodes, on 127.0.0.1.

    What lies in its folder is used again: keys, the SuperLink's database, logs.

    Parameters
    ----------
    folder : Path
        Created where it is not there.

    Raises
    ------
    RuntimeError
        If processes of another run with this folder are there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.keys = self.folder / "keys"
        self._flower_home = self.folder / "flower"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ports: dict[str, int] = {}
        self._log_starts: dict[str, int] = {}
        (self.folder / "logs").mkdir(parents=True, exist_ok=True)
        self._refuse_company()
        if not (self.keys / "server.key").exists():
            make_certificates(self.keys)

    def start_superlink(self) -> None:
        """Start it, and wait until it answers."""
        port = self.port("superlink")
        self._start(
            "superlink",
            [
                _command("flower-superlink"),
                *("--host", "127.0.0.1", "--port", str(port)),
                *("--ssl-ca-certfile", str(self.keys / "ca.crt")),
                *("--ssl-certfile", str(self.keys / "server.pem")),
                *("--ssl-keyfile", str(self.keys / "server.key")),
                "--enable-supernode-auth",
                "--disable-runtime-dependency-installation",
                *("--database", str(self.folder / "superlink.db")),
            ],
        )
        self._write_connection()
        self._await_answer("superlink")

    def register(self, site: str) -> None:
        """Make a site's key pair and give the SuperLink the public half, once."""
        folder = self.keys / site
        registered = folder / "registered"
        if registered.exists():
            return
        if not (folder / "node_key").exists():
            make_key_pair(folder)
        self.flwr("supernode", "register", str(folder / "node_key.pub"), CONNECTION)
        registered.touch()

    def start_proxy(self) -> None:
        """Start nginx with ``proxy/``; SuperNodes that start then go through it."""
        folder = self.folder / "proxy"
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("ca.crt", "server.pem", "server.key"):
            shutil.copy(self.keys / name, folder)
        for path in _PROXY.iterdir():
            text = path.read_text().replace(":9443", f":{self.port('proxy')}")
            text = text.replace(":9091", f":{self.port('superlink')}")
            (folder / path.name).write_text(text)
        self._start("proxy", ["nginx", "-p", str(folder), "-c", "nginx.conf"])
        self._await_answer("proxy")

    def start_supernode(
        self,
        site: str,
        node_config: Mapping[str, str | int],
        trusted: Path | None = None,
    ) -> None:
        """Start a site's SuperNode with the key that lies in its folder.

        With a list of trusted apps it runs these alone, by an executor of its own.
        """
        fleet = "proxy" if "proxy" in self.processes else "superlink"
        values = (
            f"{key}={value}" if isinstance(value, int) else f'{key}="{value}"'
            for key, value in node_config.items()
        )
        self._start(
            site,
            [
                _command("flower-supernode"),
                *("--superlink", f"127.0.0.1:{self.port(fleet)}"),
                *("--root-certificates", str(self.keys / "ca.crt")),
                "--auth-supernode-private-key",
                str(self.keys / site / "node_key"),
                *("--host", "127.0.0.1", "--port", str(self.port(site))),
                *("--isolation", "subprocess" if trusted is None else "process"),
                *("--node-config", " ".join(values)),
            ],
        )
        if trusted is not None:
            address = "--runtime-api-address", f"127.0.0.1:{self.port(site)}"
            executor = _command("flwr-fbo"), "superexec", str(trusted), "--"
            self._start(f"{site}-executor", [*executor, "--insecure", *address])

    def await_supernode(self, site: str, node_config: Mapping[str, str | int]) -> None:
        """Return once the SuperLink has let it in; start it again whenever it ends.

        After a crash that is needed: a key's node is taken to be there until two of its
        heartbeats have failed, and until then another one with that key is refused.

        Raises
        ------
        RuntimeError
            If it is not let in within some minutes, with what it has written.
        """
        deadline = time.monotonic() + _SECONDS_TO_BE_LET_IN
        while _IS_IN not in self._log_since_start(site):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{site} is not let in:\n{self.log(site)}")
            if self.processes[site].poll() is not None:
                self.start_supernode(site, node_config)
            time.sleep(1.0)

    def flwr(self, *arguments: str) -> str:
        """Run a command of Flower's; return what it printed.

        Raises
        ------
        RuntimeError
            If it fails, with what it printed.
        """
        done = subprocess.run(
            [_command("flwr"), *arguments],
            env=self.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            text = f"flwr {' '.join(arguments)} failed"
            raise RuntimeError(f"{text}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def run(self, app: Path, run_config: str) -> str:
        """Run an app, and print its log; return how this run ended.

        That is ``"finished:completed"`` if all went well.

        Raises
        ------
        RuntimeError
            If the run does not begin, or the SuperLink does not answer, with what
            ``flwr`` printed.
        """
        begin = ("run", str(app), CONNECTION, "--run-config", run_config)
        number = str(self._flwr_json(*begin)["run-id"])
        subprocess.run(
            [_command("flwr"), "log", number, CONNECTION, "--stream"],
            env=self.environment(),
            check=False,  # the run's status is what counts
        )
        # The stream of a run's log may end before the run does.
        deadline = time.monotonic() + _SECONDS_TO_END
        while True:
            answer = self._flwr_json("list", CONNECTION, "--run-id", number)
            [run] = answer["runs"]
            status = str(run["status"])
            if status.startswith("finished") or time.monotonic() > deadline:
                return status
            time.sleep(1.0)

    def _flwr_json(self, *arguments: str) -> dict[str, Any]:
        """Run a command of Flower's that prints JSON, errors too; return it."""
        printed = self.flwr(*arguments, "--format", "json")
        try:
            answer: dict[str, Any] = json.loads(printed)
        except ValueError:
            answer = {"success": False}
        if not answer["success"]:
            raise RuntimeError(f"flwr {' '.join(arguments)} failed:\n{printed}")
        return answer

    def environment(self) -> dict[str, str]:
        """Return the environment of every process."""
        binaries = str(Path(sys.executable).parent)
        return {
            **os.environ,
            "PATH": binaries + os.pathsep + os.environ.get("PATH", os.defpath),
            "FLWR_HOME": str(self._flower_home),
            # What is installed is used, and nothing is sent to anybody.
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
        }

    def log(self, name: str) -> str:
        """Return what processes of that name have written so far."""
        return self._log_path(name).read_text(errors="replace")

    def _log_since_start(self, name: str) -> str:
        return self.log(name)[self._log_starts[name] :]

    def stop(self, name: str) -> None:
        """End a process, which ends what it has started, some seconds later."""
        process = self.processes.pop(name)
        process.terminate()
        try:
            process.wait(_SECONDS_TO_STOP)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def __enter__(self) -> Federation:
        return self

    def __exit__(self, *_: object) -> None:
        for name in reversed(list(self.processes)):
            self.stop(name)
        deadline = time.monotonic() + _SECONDS_TO_STOP
        while self._company() and time.monotonic() < deadline:
            time.sleep(0.1)

    def _refuse_company(self) -> None:
        numbers = " ".join(map(str, self._company()))
        if numbers:
            raise RuntimeError(
                f"Another run with {self.folder} is there, or was killed and has left "
                f"processes behind. To end them: kill {numbers}"
            )

    def _company(self) -> list[int]:
        """Return the processes with this folder, where Linux can tell."""
        marker = f"FLWR_HOME={self._flower_home}".encode()
        every = Path("/proc").glob("[0-9]*/environ")
        found = [p.parent.name for p in every if marker in _read(p).split(b"\0")]
        return sorted(map(int, found))

    def _start(self, name: str, command: Sequence[str]) -> None:
        self._log_path(name).touch()
        self._log_starts[name] = len(self.log(name))
        with self._log_path(name).open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                env=self.environment(),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for us: we stop it
            )

    def _await_answer(self, name: str) -> None:
        """Return once a server answers over TLS with a certificate of ours."""
        context = ssl.create_default_context(cafile=str(self.keys / "ca.crt"))
        url = f"https://127.0.0.1:{self.port(name)}/health"
        deadline = time.monotonic() + _SECONDS_TO_START
        while True:
            try:
                urllib.request.urlopen(url, timeout=2.0, context=context).close()
                return
            except urllib.error.HTTPError:
                return  # the proxy, which passes this on to nobody
            except OSError as error:
                ended = self.processes[name].poll() is not None
                if ended or time.monotonic() > deadline:
                    text = f"The {name} does not answer at {url}: {error}."
                    raise RuntimeError(f"{text}\n{self.log(name)}") from error
            time.sleep(0.2)

    def _write_connection(self) -> None:
        """Tell ``flwr`` where the SuperLink is."""
        path = self._flower_home / "config.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(
            f'[superlink]\ndefault = "{CONNECTION}"\n\n'
            f"[superlink.{CONNECTION}]\n"
            f'address = "127.0.0.1:{self.port("superlink")}"\n'
            f'root-certificates = "{self.keys / "ca.crt"}"\n'
        )

    def port(self, name: str) -> int:
        """Return a port that was free when it was first asked for."""
        if name not in self._ports:
            with socket.create_server(("127.0.0.1", 0)) as free:
                self._ports[name] = free.getsockname()[1]
        return self._ports[name]

    def _log_path(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""  # it has ended, or is somebody else's


def _command(name: str) -> str:
    """Return the path of a command of the environment that runs this."""
    return str(Path(sys.executable).parent / name)

"""The images and services of a compose file, without Docker: for root, on Linux.

What Docker would do is done by namespaces. An image is an overlay on the files of this
machine, in which the ``RUN`` lines of its Dockerfile run as they are written. It starts
with an environment that has this one's packages, but not `flwr_fbo`. A service is a
process with mounts, process ids and a network of its own, and bridges are the compose
file's networks: nothing else reaches them.

What is here and not as in Docker: versions of base images, ``ports``, ``logging``.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

# Where a container finds the packages of this Python, which may be in a private folder.
_PACKAGES = "/opt/packages"
# What a container does not get of the environment of the tests.
_OURS = ("FLWR_", "PYTHON", "VIRTUAL_ENV", "COVERAGE")
_KEYS = """build cap_drop command configs depends_on healthcheck image logging networks
ports read_only restart secrets security_opt tmpfs volumes"""
_HARDENED = "--no-new-privs --bounding-set=-all --inh-caps=-all"


def why_not() -> str:
    """Return why there can be no containers here; nothing if there can."""
    missing = [
        name
        for name in ("unshare", "nsenter", "setpriv", "chroot", "ip", "curl", "nginx")
        if shutil.which(name) is None
    ]
    if missing or os.geteuid() != 0:
        return f"needs root, and {', '.join(missing) or 'namespaces'}"
    trial = "ip link add name bridge0 type bridge && mount -t tmpfs none /mnt"
    trial += " && cd /mnt && mkdir u w m && mount -t overlay o "
    trial += "-o lowerdir=/,upperdir=u,workdir=w m"
    done = subprocess.run(["unshare", "-nm", "sh", "-c", trial], capture_output=True)
    return "" if done.returncode == 0 else f"no namespaces: {done.stderr.decode()}"


@dataclass
class Image:
    """What a stage of a Dockerfile makes.

    Attributes
    ----------
    upper : Path
        The files that it adds to those of this machine.
    environment : dict of str
    user : str
    entrypoint : list of str
    """

    upper: Path
    environment: dict[str, str] = field(default_factory=dict)
    user: str = "root"
    entrypoint: list[str] = field(default_factory=list)

    @property
    def user_id(self) -> int:
        """Its user's number."""
        users = (self.upper / "etc/passwd").read_text().splitlines()
        numbers = {one.split(":")[0]: int(one.split(":")[2]) for one in users}
        return numbers[self.user] if self.user in numbers else int(self.user)


def instructions(dockerfile: Path) -> Iterator[tuple[str, str]]:
    """Yield the instructions of a Dockerfile and what they say."""
    lines = dockerfile.read_text().replace("\\\n", " ").splitlines()
    for line in lines:
        if line.strip() and not line.startswith("#"):
            word, _, rest = line.partition(" ")
            yield word, rest.strip()


def build(
    context: Path, target: str, arguments: Mapping[str, str], folder: Path
) -> Image:
    """Return the image of a stage of the context's Dockerfile."""
    image, known, is_wanted = Image(folder / "upper"), dict(arguments), False
    for word, rest in instructions(context / "Dockerfile"):
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            is_wanted = name == target
            if is_wanted:
                _begin(image, base)
        elif not is_wanted:
            continue
        elif word == "ARG":
            name, _, default = rest.partition("=")
            known.setdefault(name, default)
        elif word == "COPY":
            *patterns, to = rest.split()
            for pattern in patterns:
                _copy(context, pattern, image.upper / to.lstrip("/"))
        elif word == "RUN":
            _run(image, rest, known)
        elif word == "ENV":
            image.environment |= dict(p.split("=", 1) for p in shlex.split(rest))
        elif word == "USER":
            image.user = re.sub(r"\$(\w+)", lambda m: known[m[1]], rest)
        elif word == "ENTRYPOINT":
            image.entrypoint = json.loads(rest)
        else:
            raise ValueError(f"{word} of a Dockerfile is not known here")
    return image


def _copy(context: Path, pattern: str, to: Path) -> None:
    sources = list(context.glob(pattern))
    assert sources, f"{pattern} is not in {context}"
    to.mkdir(parents=True, exist_ok=True)
    for source in sources:
        if source.is_dir():
            shutil.copytree(source, to, dirs_exist_ok=True)
        else:
            shutil.copy(source, to)


def _begin(image: Image, base: str) -> None:
    """Begin an image: with an environment where its base is Python's."""
    for name in ("tmp", "etc", _PACKAGES[1:]):
        (image.upper / name).mkdir(parents=True, exist_ok=True)
    shutil.copy("/etc/passwd", image.upper / "etc")
    image.environment["PATH"] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/bin"
    if not base.startswith("python:"):
        return
    prefix = Path(sys.base_prefix)  # which may be in a private folder, too
    _run(image, f"chmod o+x {' '.join(map(str, prefix.parents))}", {})
    _run(image, f"{prefix}/bin/python{sys.version_info[0]} -m venv /opt/python", {})
    image.environment["PATH"] = f"/opt/python/bin:{image.environment['PATH']}"
    [site] = (image.upper / "opt/python/lib").glob("python*/site-packages")
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        is_ours = "flwr_fbo" in path.name or path.suffix == ".pth"
        if not (is_ours or (site / path.name).exists()):
            (site / path.name).symlink_to(f"{_PACKAGES}/{path.name}")
    for path in Path(sysconfig.get_path("scripts")).iterdir():
        shebang = f"#!{path.parent}/".encode()
        new = image.upper / "opt/python/bin" / path.name
        if path.is_file() and not new.exists() and path.name != "flwr-fbo":
            content = path.read_bytes()
            if content.startswith(shebang):
                new.write_bytes(content.replace(shebang, b"#!/opt/python/bin/", 1))
                new.chmod(0o755)


def _run(image: Image, script: str, known: Mapping[str, str]) -> None:
    """Run a line of a Dockerfile as root, in the image's files."""
    root, work = image.upper.with_name("root"), image.upper.with_name("work")
    root.mkdir(exist_ok=True)
    work.mkdir(exist_ok=True)
    mounts = [
        *_files(image.upper, work, root),
        f"mount --bind {image.upper}/tmp {root}/tmp",
        f"exec chroot {root} sh -c {shlex.quote(script)}",
    ]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-ec", "\n".join(mounts)],
        env={**_environment(image), **known, "PIP_NO_INDEX": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"RUN {script}\n{done.stdout}"


def _files(upper: Path, work: Path, root: Path) -> list[str]:
    """Return how files are mounted above those of this machine."""
    options = f"lowerdir=/,upperdir={upper},workdir={work}"
    return [
        f"mount -t overlay o -o {options} {root}",
        f"mount --rbind /dev {root}/dev",
        f"mount -t proc proc {root}/proc",
        f"mount --bind {sysconfig.get_path('purelib')} {root}{_PACKAGES}",
    ]


def _environment(image: Image) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_OURS)}
    return {**kept, "HOME": "/nonexistent", **image.environment}


@dataclass
class Container:
    """A service's process, and what it needs to be entered.

    Attributes
    ----------
    process : Popen
        The outer process; the service's own is 1 in its namespace.
    inner : int
        The service's process as seen from outside.
    root : Path
    """

    process: subprocess.Popen[bytes]
    inner: int
    root: Path


class Compose:
    """The services of a compose file.

    Parameters
    ----------
    file : Path
    variables : mapping of str
        What ``${NAME:-default}`` stands for.
    folder : Path
        For images, volumes and logs.
    """

    def __init__(
        self, file: Path, variables: Mapping[str, str], folder: Path | None = None
    ) -> None:
        text = re.sub(
            r"\$\{(\w+):-(\w*)\}",
            lambda match: variables.get(match[1], match[2]),
            file.read_text(),
        )
        self.context = file.parent
        self.values: dict[str, Any] = yaml.safe_load(text)
        self.services: dict[str, dict[str, Any]] = self.values["services"]
        for name, service in self.services.items():
            unknown = service.keys() - set(_KEYS.split())
            assert not unknown, f"{name}: {unknown} is not known here"
        self.folder = folder or Path()
        self.containers: dict[str, Container] = {}
        self.starts: dict[str, int] = {}
        self._images: dict[tuple[str, ...], Image] = {}
        self._num_links = 0

    @cached_property
    def _switch(self) -> subprocess.Popen[bytes]:
        """A process in whose network the bridges are."""
        process = subprocess.Popen(
            ["unshare", "--net", "--kill-child", "--fork", "sleep", "infinity"]
        )
        inner = _child(process)
        for number, _ in enumerate(self.values["networks"]):
            for command in (
                f"ip link add name bridge{number} type bridge",
                f"ip link set bridge{number} up",
            ):
                _call(f"nsenter --net --target {inner} {command}")
        return process

    def addresses(self, service: str) -> dict[str, str]:
        """Return the service's address in each of its networks."""
        found = {}
        number = list(self.services).index(service) + 10
        for index, (name, network) in enumerate(self.values["networks"].items()):
            if name not in self._networks(service):
                continue
            options = self._networks(service)[name]
            settings = network.get("ipam", {"config": []})
            given = [one["subnet"] for one in settings["config"]]
            [subnet] = given or [f"172.30.{index + 101}.0/24"]
            free = subnet.replace(".0/24", f".{number}")
            found[name] = (options or {}).get("ipv4_address", free)
        return found

    def _networks(self, service: str) -> dict[str, Any]:
        networks = self.services[service].get("networks", {})
        is_list = isinstance(networks, list)
        return dict.fromkeys(networks) if is_list else networks

    def image(self, service: str) -> Image:
        """Return a service's image; services that are built alike share it."""
        how = self.services[service]["build"]
        key = (how["context"], how["target"], *sorted(how["args"].items()))
        if key not in self._images:
            folder = self.folder / "images" / how["target"]
            folder.mkdir(parents=True)
            context = (self.context / how["context"]).resolve()
            self._images[key] = build(context, how["target"], how["args"], folder)
        return self._images[key]

    def up(self, *services: str) -> None:
        """Start services and what they depend on; wait until all are healthy."""
        for name in services or self.services:
            needed = self.services[name].get("depends_on", {})
            self.up(*needed) if needed else None
            if name not in self.containers:
                self.start(name)
        for name in services or self.services:
            self.await_healthy(name)

    def start(self, name: str) -> None:
        """Start a service, also one that was killed."""
        service, image = self.services[name], self.image(name)
        folder = self.folder / "containers" / f"{name}-{self.starts.get(name, 0)}"
        self.starts[name] = self.starts.get(name, 0) + 1
        root, upper, work = (folder / one for one in ("root", "upper", "work"))
        for path in (root, work):
            path.mkdir(parents=True)
        _call(f"cp --archive {image.upper} {upper}")
        mounts = _files(upper, work, root)
        for source, target, option in self._mounted(name, folder):
            make = "mkdir -p" if source.is_dir() else "touch"
            mounts += [
                f"mkdir -p {Path(f'{root}{target}').parent}",
                f"{make} {root}{target}",
                f"mount --bind {source} {root}{target}",
                *([f"mount -o remount,bind,ro {root}{target}"] if option else []),
            ]
        mounts += [f"mount -t tmpfs t {root}{one}" for one in service["tmpfs"]]
        if service["read_only"]:
            mounts.append(f"mount -o remount,ro {root}")
        command = [*image.entrypoint, *service.get("command", ())]
        as_user = self._as_user(name, root)
        mounts += ["read go", f"exec {as_user} {shlex.join(command)}"]
        with self.log_path(name).open("ab") as log:
            self.log_path(name).chmod(0o666)  # a service opens it again
            process = subprocess.Popen(
                [
                    *("unshare", "--mount", "--net", "--pid", "--fork"),
                    *("sh", "-ec", "\n".join(mounts)),
                ],
                env=_environment(image),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.containers[name] = Container(process, _child(process), root)
        self._link(name)
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.close()

    def _as_user(self, name: str, root: Path) -> str:
        number = self.image(name).user_id
        user = f"--reuid={number} --regid={number} --clear-groups {_HARDENED}"
        return f"chroot {root} setpriv {user}"

    def _mounted(self, name: str, folder: Path) -> Iterator[tuple[Path, str, str]]:
        """Yield what is mounted: from where, to where, and whether read-only."""
        service, image = self.services[name], self.image(name)
        hosts = folder / "hosts"
        hosts.write_text(f"127.0.0.1 localhost\n{self._hosts(name)}")
        yield hosts, "/etc/hosts", "ro"
        for volume in service.get("volumes", ()):
            source, target, *options = volume.split(":")
            if source.startswith("."):
                path = (self.context / source).resolve()
                yield path, target, "".join(options)
                continue
            assert source in self.values["volumes"]
            path = self.folder / "volumes" / source
            if not path.exists():  # it begins as the image's folder
                about = (image.upper / target.lstrip("/")).stat()
                path.mkdir(parents=True)
                path.chmod(about.st_mode & 0o777)
                os.chown(path, about.st_uid, about.st_gid)
            yield path, target, ""
        for kind, default in (("secrets", "/run/secrets/"), ("configs", "/")):
            for one in service.get(kind, ()):
                is_text = isinstance(one, str)
                source = one if is_text else one["source"]
                target = f"{default}{one}" if is_text else one["target"]
                value = self.values[kind][source]
                if "content" in value:
                    path = folder / source
                    path.write_text(value["content"])
                else:
                    path = (self.context / value["file"]).resolve()
                assert path.is_file(), f"{source}: there is no {path}"
                yield path, target, "ro"

    def _hosts(self, name: str) -> str:
        """Return the names that a service can look up: those in its networks."""
        lines = []
        for other in self.services:
            theirs = self._networks(other)
            for network, address in self.addresses(other).items():
                if network in self._networks(name):
                    aliases = (theirs[network] or {}).get("aliases", [])
                    lines.append(" ".join([address, other, *aliases]))
        return "".join(f"{line}\n" for line in lines)

    def _link(self, name: str) -> None:
        """Connect a service with its networks."""
        inner = self.containers[name].inner
        inside = f"nsenter --net --target {inner}"
        switch = f"nsenter --net --target {_child(self._switch)}"
        _call(f"{inside} ip link set lo up")
        for network, address in self.addresses(name).items():
            number = list(self.values["networks"]).index(network)
            self._num_links += 1
            link, own = f"link{self._num_links}", f"net{number}"
            peer = f"type veth peer name {own} netns {inner}"
            _call(f"{switch} ip link add name {link} {peer}")
            _call(f"{switch} ip link set {link} master bridge{number} up")
            _call(f"{inside} ip addr add {address}/24 dev {own}")
            _call(f"{inside} ip link set {own} up")

    def run(self, name: str, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in a service, as ``docker compose exec``."""
        one = self.containers[name]
        enter = f"nsenter --mount --net --pid --target {one.inner}"
        return subprocess.run(
            [*f"{enter} {self._as_user(name, one.root)}".split(), *command],
            env=_environment(self.image(name)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    def is_healthy(self, name: str) -> bool:
        """Return whether a service's check succeeds."""
        kind, *command = self.services[name]["healthcheck"]["test"]
        assert kind == "CMD"
        is_running = self.containers[name].process.poll() is None
        return is_running and self.run(name, *command).returncode == 0

    def await_healthy(self, name: str, seconds: float = 90.0) -> None:
        """Wait; start it again whenever it ends, as its restart policy says."""
        deadline = time.monotonic() + seconds
        while not self.is_healthy(name):
            assert time.monotonic() < deadline, f"{name}: {self.log(name)}"
            if self.containers[name].process.poll() is not None:
                assert self.services[name]["restart"] == "unless-stopped"
                self.start(name)
            time.sleep(1.0)

    def log_path(self, name: str) -> Path:
        """Return the file that has what a service has printed."""
        return self.folder / f"{name}.log"

    def log(self, name: str) -> str:
        """Return what a service has printed."""
        return self.log_path(name).read_text(errors="replace")

    def kill(self, name: str) -> None:
        """End a service at once."""
        one = self.containers[name]
        if one.process.poll() is None:
            os.kill(one.inner, signal.SIGKILL)  # and with it all in its namespace
        one.process.wait()

    def down(self) -> None:
        """End all services, and their networks."""
        for name in self.containers:
            self.kill(name)
        if "_switch" in vars(self):
            self._switch.kill()
            self._switch.wait()


def _child(process: subprocess.Popen[bytes]) -> int:
    """Return the only child of a process, once there is one."""
    path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while not (found := path.read_text().split()):
        assert process.poll() is None, process.args
        time.sleep(0.01)
    return int(found[0])


def _call(command: str | Sequence[str]) -> None:
    words = command.split() if isinstance(command, str) else list(command)
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{shlex.join(words)}: {done.stderr}"


def named(values: Mapping[str, Any]) -> dict[str, set[str]]:
    """Return what services name of each top-level section."""
    found: dict[str, set[str]] = {}
    for kind in ("secrets", "configs", "volumes", "networks"):
        every = chain(*(s.get(kind, ()) for s in values["services"].values()))
        names = {one if isinstance(one, str) else one["source"] for one in every}
        names = {one.split(":")[0] for one in names}
        found[kind] = {name for name in names if not name.startswith(".")}
    return found

"""Dockerfile, compose file and systemd units of the deployment example.

Docker is not needed: see tests/support/containers.py. The commands are those of the
page.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.containers import Compose, instructions, named, why_not
from tests.support.deployment_page import commands_under
from tests.support.documents import Command, assert_output
from tests.support.documents_not_run import parse_flwr_fbo

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "deployment"
USER = 23456  # who owns the keys, and is nobody here
RECORD = "/var/lib/flower/record"


def test_the_compose_file_names_what_there_is() -> None:
    compose = Compose(EXAMPLE / "compose.yaml", {})
    for kind, names in named(compose.values).items():
        assert names == compose.values[kind].keys(), kind
    stages = {
        rest.partition(" AS ")[2]
        for word, rest in instructions(EXAMPLE / "Dockerfile")
        if word == "FROM"
    }
    assert {s["build"]["target"] for s in compose.services.values()} == stages
    written = r"(?:out|-f|trust \S+) by-hand/\S+"
    made = {path.split()[-1] for path in re.findall(written, _page())}
    made |= {f"{path}.pub" for path in made}
    for kind in ("secrets", "configs"):
        for name, value in compose.values[kind].items():
            assert "content" in value or value["file"] in made, name


def test_every_container_is_hardened_restarted_and_checked() -> None:
    compose = Compose(EXAMPLE / "compose.yaml", {})
    assert len(compose.services) == 4
    for name, service in compose.services.items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["restart"] == "unless-stopped"
        assert service["healthcheck"]["test"][0] == "CMD"
        assert "max-size" in service["logging"]["options"]
    # Sites share no network with the SuperLink, which has no way out.
    networks = {name: set(s["networks"]) for name, s in compose.services.items()}
    assert networks.pop("proxy") == {"control", "fleet"}
    assert networks.pop("superlink") == {"control"}
    assert set.union(*networks.values()) == {"fleet"}
    assert compose.values["networks"]["control"]["internal"]
    volumes = [s["volumes"][0] for n, s in compose.services.items() if n != "proxy"]
    assert len(set(volumes)) == 3
    users = [r for w, r in instructions(EXAMPLE / "Dockerfile") if w == "USER"]
    assert len(users) == 2
    assert not {"root", "0"} & set(users)


UNITS = ("supernode.service", "superexec.service")


def _unit(name: str) -> configparser.RawConfigParser:
    unit = configparser.RawConfigParser(strict=False, comment_prefixes=("#",))
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string((EXAMPLE / name).read_text().replace("\\\n", " "))
    return unit


def test_the_units_of_a_site() -> None:
    """A user of its own, who can write to one folder; their commands are the CLIs'."""
    node, executor = map(_unit, UNITS)
    service = node["Service"]
    assert service["User"] not in ("root", "")
    assert service["UMask"] == "0077"
    assert service["ProtectSystem"] == "strict"
    assert service["ReadWritePaths"] == f"/var/lib/{service['StateDirectory']}"
    assert service["Restart"] == "always"
    # The executor differs in what it starts, and in nothing else.
    starts = ("ExecStartPre", "ExecStart")
    kept = {key: value for key, value in service.items() if key not in starts}
    hardened = {k: v for k, v in executor["Service"].items() if k not in starts}
    assert hardened == kept
    assert node["Unit"]["Requires"] == "superexec.service"
    assert executor["Unit"]["Requires"] == executor["Unit"]["After"] == UNITS[0]

    check = shlex.split(service["ExecStartPre"])
    assert Path(check[0]).name == "flwr-fbo"
    parse_flwr_fbo(["flwr-fbo", *check[1:]])
    command, *arguments = shlex.split(service["ExecStart"])
    assert Path(command).name == "flower-supernode"
    typed = re.findall(r"flower-supernode (?:.*\\\n)*.*", _page())
    options = {word for word in arguments if word.startswith("--")}
    assert options <= {word for line in typed for word in line.split()}
    assert arguments[arguments.index("--node-config") + 1] == check[-1]
    assert arguments[arguments.index("--isolation") + 1] == "process"
    command, verb, trusted, *rest = shlex.split(executor["Service"]["ExecStart"])
    assert Path(command).name == "flwr-fbo"
    parse_flwr_fbo(["flwr-fbo", verb, trusted, *rest])
    by_hand = f"flwr-fbo superexec by-hand/{Path(trusted).name} {' '.join(rest)}\n"
    assert by_hand in _page()
    install = (EXAMPLE / UNITS[0]).read_text().partition("[Unit]")[0]
    assert f"flwr-fbo trust BUNDLE.fab {trusted}\n" in install
    assert f"install -m 644 {' '.join(UNITS)} " in install


def test_systemd_takes_the_units(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    for name in UNITS:  # what they start is not installed here
        text = (EXAMPLE / name).read_text()
        text = re.sub("=/opt/flwr-fbo/bin/[a-z-]+", "=/bin/true", text)
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", *(str(tmp_path / name) for name in UNITS)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for name in UNITS:
        assert name not in done.stderr, done.stderr


STAND_IN = """#!/bin/sh
trap "echo $(basename $0) stopped >> calls; exit" TERM
echo "$(basename $0) $@" >> calls
while [ ! -e end-$(basename $0) ]; do sleep .02; done
"""


@pytest.mark.parametrize("ends", ["flower-supernode", "flwr-fbo", "docker stop"])
def test_a_site_in_a_container_ends_with_either_process(
    ends: str, tmp_path: Path
) -> None:
    for name in ("flower-supernode", "flwr-fbo"):
        (tmp_path / name).write_text(STAND_IN)
        (tmp_path / name).chmod(0o700)
    site = subprocess.Popen(
        ["bash", str(EXAMPLE / "site.sh"), "--superlink=there"],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        start_new_session=True,
    )
    calls = tmp_path / "calls"
    try:
        while not (calls.exists() and calls.read_text().count("\n") == 2):
            time.sleep(0.02)
        if ends == "docker stop":
            site.terminate()
        else:
            (tmp_path / f"end-{ends}").touch()
        site.wait(10)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(site.pid, signal.SIGKILL)
    lines = calls.read_text().splitlines()
    assert "flower-supernode --isolation=process --superlink=there" in lines
    assert any(line.startswith("flwr-fbo superexec /run/secrets/") for line in lines)
    if ends == "docker stop":
        assert {"flower-supernode stopped", "flwr-fbo stopped"} <= set(lines)


@pytest.fixture
def compose(tmp_path: Path) -> Iterator[Compose]:
    """The services of a copy of the example, with the wheel beside it."""
    reason = why_not()
    if find_spec("build") is None or find_spec("hatchling") is None:
        reason = "needs build and hatchling, of the extra dev"
    if reason:
        if "FLWR_FBO_REQUIRE_CONTAINERS" in os.environ:
            pytest.fail(f"FLWR_FBO_REQUIRE_CONTAINERS is set, but: {reason}")
        pytest.skip(reason)
    ignored = shutil.ignore_patterns("__pycache__", "federation", "by-hand", "*.whl")
    folder = Path(shutil.copytree(EXAMPLE, tmp_path / "deployment", ignore=ignored))
    command = ("-m", "build", "--no-isolation", "--wheel", "--outdir", str(folder))
    subprocess.run(
        [sys.executable, *command, str(ROOT)], check=True, capture_output=True
    )
    made = Compose(folder / "compose.yaml", {"FBO_UID": str(USER)}, tmp_path)
    yield made
    made.down()


@pytest.mark.slow
def test_the_containers_run_a_study_as_the_page_says(compose: Compose) -> None:
    for command in _commands():
        _type(command, compose)
    listed = compose.run("superlink", "flwr", "list", "hospitals", "--format", "json")
    assert json.loads(listed.stdout)["runs"][0]["status"] == "finished:completed"
    _check_users_and_files(compose)
    _check_networks(compose)
    _check_what_is_not_reviewed(compose)
    _check_restarts(compose)


def _type(command: Command, compose: Compose) -> None:
    """Run a command of the page; ``docker compose`` is played."""
    words = command.words
    if words[:2] != ["docker", "compose"]:
        if words[0] not in ("make", "cp", "echo"):  # the wheel is there
            path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
            subprocess.run(
                ["bash", "-c", command.line],
                cwd=compose.context,
                env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
                check=True,
                capture_output=True,
            )
            for file in (compose.context / "by-hand").iterdir():  # as whoever typed it
                os.chown(file, USER, USER)
        return
    verb, *rest = words[2:]
    if verb == "up":
        compose.up(*(word for word in rest if not word.startswith("--")))
    else:
        assert verb == "exec", command
        done = compose.run(*rest)
        assert done.returncode == 0, f"{command.line}\n{done.stdout}"
        assert_output(done.stdout, command.output, command.line)
        if rest[1:3] == ["flwr", "run"]:
            assert "Recommended for all sites: " in done.stdout, done.stdout


def _check_users_and_files(compose: Compose) -> None:
    for name, one in compose.containers.items():
        status = Path(f"/proc/{one.inner}/status").read_text()
        assert f"Uid:\t{USER}\t{USER}\t{USER}\t{USER}" in status, name
        assert re.search(r"CapEff:\t0+\n", status), name
        assert compose.run(name, "sh", "-c", "echo x > /etc/x").returncode != 0
    for site in range(2):
        folder = compose.folder / "volumes" / f"site-{site}" / "fbo"
        [journal] = folder.glob(f"*-agent-{site}.sqlite")
        assert journal.stat().st_mode & 0o77 == 0
        assert journal.stat().st_uid == USER
    database = compose.folder / "volumes" / "superlink" / "superlink.db"
    assert database.stat().st_mode & 0o77 == 0
    assert (database.parent / "superlink.log").stat().st_size > 0
    ledger = compose.run("superlink", "flwr-fbo", "ledger", "show", RECORD)
    assert "epsilon " in ledger.stdout, ledger.stdout
    with sqlite3.connect(database.parent / "record" / "server.sqlite") as record:
        assert record.execute("select count(*) from ledger").fetchone()[0] > 0


def _check_networks(compose: Compose) -> None:
    """A site reaches the fleet through the proxy; the SuperLink it does not."""
    address = compose.addresses("superlink")["control"]
    reach = "import socket; socket.create_connection(({!r}, {}), timeout=3)"
    for host, port, is_reached in (
        ("superlink.example", 9443, True),
        (address, 9091, False),
        ("superlink", 9091, False),
    ):
        done = compose.run("site-0", "python", "-c", reach.format(host, port))
        assert (done.returncode == 0) == is_reached, f"{host}\n{done.stdout}"
    url = "https://superlink.example:9443/v1/control/list-runs"
    curl = ("curl", "--silent", "--cacert", "/run/secrets/ca.crt", "-o", "/dev/null")
    done = compose.run("site-0", *curl, "-w", "%{http_code}", "-d", "", url)
    assert done.stdout == "403"


def _check_restarts(compose: Compose) -> None:
    """Whatever is killed comes back, with its volume, and a study goes on."""
    for name in compose.services:
        compose.kill(name)
    compose.up()
    assert all(number >= 2 for number in compose.starts.values())
    [run] = [c for c in _commands() if c.words[2:6:3] == ["exec", "run"]]
    done = compose.run(*run.words[3:])
    assert "is complete: its result is returned without any message" in done.stdout


def _check_what_is_not_reviewed(compose: Compose) -> None:
    (compose.context / "by-hand" / "trusted-apps").write_text("")
    config = 'num-agents=2 patience=30 new=true record="/var/lib/flower/another"'
    run = ("flwr", "run", "/srv/app", "hospitals", "--stream", "--run-config", config)
    printed = compose.run("superlink", *run).stdout
    said = "This site has not reviewed this app: flwr-fbo/hospitals"
    assert said in printed, printed
    assert "Recommended for all sites: " not in printed


def _page() -> str:
    return (EXAMPLE / "README.md").read_text()


def _commands() -> list[Command]:
    """Return the page's commands that containers need, in order."""
    needed = r"mkdir -m 700 by-hand|openssl|ssh-keygen -t .*by-hand/site-[01]$|"
    needed += "flwr build|flwr-fbo trust"
    page = EXAMPLE / "README.md"
    by_hand = commands_under(page, containers=False)
    chosen = [c for c in by_hand if re.match(needed, c.line)]
    assert len(chosen) == 1 + 2 + 2 + 2
    return [*chosen, *commands_under(page, containers=True)]

"""Fetching data sets from a server of our own, which also does what servers do."""

import hashlib
import json
import lzma
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
from typer.testing import CliRunner

from flwr_fbo.cli import app
from flwr_fbo.lab.datasets import download, har
from flwr_fbo.lab.datasets.base import (
    DataError,
    Dataset,
    as_is,
    data_folder,
    decompressed,
    from_zip_in_zip,
)
from flwr_fbo.lab.datasets.catalogue import DATASETS
from flwr_fbo.lab.datasets.download import fetch

CONTENT = np.random.default_rng(0).bytes(300_000)


class Server(ThreadingHTTPServer):
    """Serves ``content`` at every path but those below, and counts requests.

    ``/cut`` ends the connection half-way, ``/hold`` sends half and goes on when
    ``release`` is set, ``/silent`` waits for that before it answers, ``/moved`` leads
    to ``/there`` and ``/round`` to itself; ``/404`` and the like get that answer.
    """

    daemon_threads = True

    def __init__(self, content: bytes) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = content
        self.requests = 0
        self.half_sent, self.release = threading.Event(), threading.Event()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{path}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients that leave are what is tested."""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.requests += 1
        path = self.path.strip("/")
        if path == "silent":
            self.server.release.wait(30)
        if path.isdigit():
            self.send_error(int(path))
        elif path in ("moved", "round"):
            self.send_response(302)
            self.send_header("Location", "/there" if path == "moved" else "/round")
            self.end_headers()
        else:
            self._send(path)

    def _send(self, path: str) -> None:
        content = self.server.content
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        half = len(content) // 2
        self.wfile.write(content[:half])
        if path == "cut":
            return
        if path == "hold":
            self.server.half_sent.set()
            self.server.release.wait(30)
        self.wfile.write(content[half:])

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(CONTENT) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.release.set()
        running.shutdown()
        thread.join()


def _dataset(server: Server, path: str = "there", **changes: Any) -> Dataset:
    dataset = Dataset(
        name="tiny",
        summary="Random bytes.",
        url=server.url(path),
        sha256=hashlib.sha256(server.content).hexdigest(),
        size=len(server.content),
        unpack=as_is,
        unpacked=len(server.content),
        target="tiny/data.bin",
        licence="None.",
        citation="None.",
    )
    return replace(dataset, **changes)


def _silent(text: str) -> None:
    pass


def _files(folder: Path) -> set[str]:
    """Return all that is there and no folder, the empty lock apart."""
    files = {p for p in folder.rglob("*") if not p.is_dir()}
    locks = {p for p in files if p.name == ".lock" and not p.stat().st_size}
    assert not [p for p in folder.rglob(".part") if p.is_dir()]
    return {str(p.relative_to(folder)) for p in files - locks}


def _refusal(dataset: Dataset, folder: Path) -> str:
    with pytest.raises(DataError) as error:
        fetch(dataset, folder, _silent)
    text = str(error.value)
    assert len(text.splitlines()) == 1
    assert "tiny" in text
    return text


# What goes well


def test_a_file_is_fetched_once(server: Server, tmp_path: Path) -> None:
    dataset, folder = _dataset(server), tmp_path / "new" / "folder"
    assert fetch(dataset, folder, _silent)
    assert (folder / "tiny/data.bin").read_bytes() == CONTENT
    assert _files(folder) == {"tiny/data.bin"}
    assert not fetch(dataset, folder, _silent)
    assert server.requests == 1


def test_the_file_gets_the_permissions_of_any_new_file(
    server: Server, tmp_path: Path
) -> None:
    fetch(_dataset(server), tmp_path, _silent)
    (tmp_path / "other").touch()
    modes = {(tmp_path / p).stat().st_mode for p in ("tiny/data.bin", "other")}
    assert len(modes) == 1


def test_what_is_there_is_not_touched_even_where_nothing_can_be_written(
    server: Server, tmp_path: Path
) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny/data.bin").write_bytes(b"mine")
    assert not fetch(_dataset(server), tmp_path, _silent)
    assert {p.name for p in (tmp_path / "tiny").iterdir()} == {"data.bin"}  # no lock
    assert (tmp_path / "tiny/data.bin").read_bytes() == b"mine"
    assert server.requests == 0


def test_a_server_may_send_elsewhere(server: Server, tmp_path: Path) -> None:
    assert fetch(_dataset(server, "moved"), tmp_path, _silent)
    assert (tmp_path / "tiny/data.bin").read_bytes() == CONTENT


def test_compressed_files_are_decompressed(server: Server, tmp_path: Path) -> None:
    for make in (lzma.FORMAT_XZ, lzma.FORMAT_ALONE):
        server.content = lzma.compress(b"data " * 100_000, make)
        dataset = _dataset(server, unpack=decompressed, unpacked=500_000)
        assert fetch(dataset, tmp_path / str(make), _silent)
        target = tmp_path / str(make) / "tiny/data.bin"
        assert target.read_bytes() == b"data " * 100_000
        assert _files(tmp_path / str(make)) == {"tiny/data.bin"}


def _zip(files: dict[str, bytes]) -> bytes:
    archive = BytesIO()
    with ZipFile(archive, "w") as writer:
        for name, content in files.items():
            writer.writestr(name, content)
    return archive.getvalue()


def _zip_dataset(server: Server, files: dict[str, bytes]) -> Dataset:
    server.content = _zip({"in ner.zip": _zip(files), "note": b"outer"})
    members = ("a.txt", "sub/b.txt")
    return _dataset(
        server,
        unpack=from_zip_in_zip("in ner.zip", "Top Folder", members),
        target="tiny/Top Folder",
        members=members,
    )


def test_of_an_archive_the_known_files_are_taken_and_no_others(
    server: Server, tmp_path: Path
) -> None:
    folder = tmp_path / "deep" / "folder"
    evil = {"../evil": b"", "/evil": b"", "Top Folder/../../../evil": b"", "c": b""}
    files = {"Top Folder/a.txt": b"a", "Top Folder/sub/b.txt": CONTENT}
    dataset = _zip_dataset(server, {**evil, **files})
    assert fetch(dataset, folder, _silent)
    assert _files(tmp_path) == {
        "deep/folder/tiny/Top Folder/a.txt",
        "deep/folder/tiny/Top Folder/sub/b.txt",
    }
    assert (folder / "tiny/Top Folder/sub/b.txt").read_bytes() == CONTENT
    assert not fetch(dataset, folder, _silent)


def test_two_at_once_take_turns(server: Server, tmp_path: Path) -> None:
    dataset = _dataset(server, "hold")
    fetched: list[bool] = []
    waiting = threading.Event()

    def second_says(text: str) -> None:
        if "waiting" in text:
            waiting.set()

    def run(say: Any) -> None:
        fetched.append(fetch(dataset, tmp_path, say))

    first = threading.Thread(target=run, args=(_silent,))
    second = threading.Thread(target=run, args=(second_says,))
    first.start()
    assert server.half_sent.wait(30)
    second.start()
    assert waiting.wait(30)
    server.release.set()
    first.join(30)
    second.join(30)
    assert sorted(fetched) == [False, True]
    assert server.requests == 1
    assert (tmp_path / "tiny/data.bin").read_bytes() == CONTENT
    assert _files(tmp_path) == {"tiny/data.bin"}


def test_it_is_told_how_much_has_come(server: Server, tmp_path: Path) -> None:
    sizes: list[int] = []
    fetch(_dataset(server), tmp_path, _silent, sizes.append)
    assert sum(sizes) == len(CONTENT)


# What goes wrong


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("cut", "the connection was cut"),
        ("404", "the server answered 404"),
        ("round", "the server answered 302"),
        ("silent", "no answer within 0.3 s"),
        ("hold", "there is no connection, or the server fell silent"),
    ],
)
def test_after_a_fault_nothing_is_left_and_the_next_call_works(
    path: str,
    reason: str,
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(download, "TIMEOUT", 0.3)
    text = _refusal(_dataset(server, path), tmp_path)
    assert reason in text
    assert server.url(path) in text
    assert _files(tmp_path) == set()
    assert fetch(_dataset(server), tmp_path, _silent)
    assert _files(tmp_path) == {"tiny/data.bin"}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"<html>", "what came is another file (its SHA-256 differs)"),
        (CONTENT[:-1], "what came is another file (its SHA-256 differs)"),
        (CONTENT + b"\n", f"more came than the known {len(CONTENT):,} bytes"),
    ],
)
def test_other_bytes_are_refused(
    content: bytes, reason: str, server: Server, tmp_path: Path
) -> None:
    dataset = _dataset(server)
    server.content = content
    assert reason in _refusal(dataset, tmp_path)
    assert _files(tmp_path) == set()
    server.content = CONTENT
    assert fetch(dataset, tmp_path, _silent)


def test_without_a_connection(server: Server, tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{unused.getsockname()[1]}/"
        text = _refusal(_dataset(server, url=closed), tmp_path)
    assert "there is no connection" in text
    assert _files(tmp_path) == set()


def test_without_space_nothing_is_fetched(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", ["total", "used", "free"])
    needed = 2 * len(CONTENT)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(9**9, 0, needed - 1))
    text = _refusal(_dataset(server), tmp_path)
    assert "needs 1 MB of space" in text
    assert str(tmp_path / "tiny") in text
    assert server.requests == 0
    assert _files(tmp_path) == set()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(9**9, 0, needed))
    assert fetch(_dataset(server), tmp_path, _silent)


@pytest.mark.parametrize("limit", [1000, 400_000])
def test_where_the_disk_takes_no_more(
    limit: int, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is fetched (at 1000 bytes), and while it is unpacked."""
    whole = CONTENT + bytes(2_000_000)
    server.content = lzma.compress(whole)
    assert 1000 < len(server.content) < 400_000
    dataset = _dataset(server, unpack=decompressed, unpacked=len(whole))
    # Python would leave the first bytes of a module's, for all other tests.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        text = _refusal(dataset, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert f"tiny cannot be stored in {tmp_path / 'tiny'}: File too large" in text
    assert _files(tmp_path) == set()
    assert fetch(dataset, tmp_path, _silent)
    assert (tmp_path / "tiny/data.bin").read_bytes() == whole


def test_where_nothing_can_be_written(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    text = _refusal(_dataset(server), tmp_path / "file" / "folder")
    assert "cannot be stored" in text
    assert "Not a directory" in text
    (tmp_path / "tiny").touch()
    assert "File exists" in _refusal(_dataset(server), tmp_path)
    assert server.requests == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_without_permission(server: Server, tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir(mode=0o500)
    assert "Permission denied" in _refusal(_dataset(server), tmp_path)
    assert server.requests == 0


def test_a_folder_that_lacks_files_is_not_written_over(
    server: Server, tmp_path: Path
) -> None:
    dataset = _zip_dataset(server, {"Top Folder/a.txt": b"a"})
    target = tmp_path / "tiny/Top Folder"
    target.mkdir(parents=True)
    (target / "a.txt").write_bytes(b"mine")
    text = _refusal(dataset, tmp_path)
    assert f"{target} is there, but not complete. Remove it first." in text
    assert server.requests == 0
    assert _files(tmp_path) == {"tiny/Top Folder/a.txt"}


def test_an_archive_without_a_known_file_is_refused(
    server: Server, tmp_path: Path
) -> None:
    dataset = _zip_dataset(server, {"Top Folder/a.txt": b"a"})
    text = _refusal(dataset, tmp_path)
    assert "cannot be unpacked" in text
    assert "Top Folder/sub/b.txt" in text
    assert _files(tmp_path) == set()


@pytest.mark.parametrize(
    "unpack", [decompressed, from_zip_in_zip("a", "b", ("c",))], ids=["lzma", "zip"]
)
def test_what_cannot_be_unpacked_is_refused(
    unpack: Any, server: Server, tmp_path: Path
) -> None:
    for content in (CONTENT, lzma.compress(CONTENT)[:-1], _zip({"a": b"rubbish"})):
        server.content = content
        text = _refusal(_dataset(server, unpack=unpack), tmp_path)
        assert "what came cannot be unpacked" in text
        assert _files(tmp_path) == set()


def test_an_interrupt_leaves_nothing(server: Server, tmp_path: Path) -> None:
    def interrupted(fetched: Path, to: Path) -> None:
        to.write_bytes(fetched.read_bytes()[:1000])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(_dataset(server, unpack=interrupted), tmp_path, _silent)
    assert _files(tmp_path) == set()


def test_a_killed_process_leaves_nothing_that_is_taken_for_data(
    server: Server, tmp_path: Path
) -> None:
    dataset = _dataset(server, "hold")
    values = {f: getattr(dataset, f) for f in ("url", "sha256", "size", "target")}
    code = f"""
from pathlib import Path
from flwr_fbo.lab.datasets.base import Dataset
from flwr_fbo.lab.datasets.download import fetch
from flwr_fbo.lab.datasets.base import as_is
fetch(Dataset("tiny", "", unpack=as_is, unpacked=1, licence="", citation="",
              **{values!r}), Path({str(tmp_path)!r}), print)
"""
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        assert server.half_sent.wait(60)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert list(tmp_path.glob("tiny/.part/*"))  # it was in the middle
    assert not (tmp_path / "tiny/data.bin").exists()
    assert dataset.found(tmp_path) is None
    assert fetch(_dataset(server), tmp_path, _silent)
    assert _files(tmp_path) == {"tiny/data.bin"}
    assert (tmp_path / "tiny/data.bin").read_bytes() == CONTENT


# The catalogue and the commands


def test_har_is_unpacked_to_where_its_loader_looks(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With UCI's layout: an archive in an archive, and a second folder in it."""
    subject, y = (a.ravel() for a in np.mgrid[1:31, 1:7].repeat(2, axis=2))
    parts = {"train": slice(None, 240), "test": slice(240, None)}
    files = {"UCI HAR Dataset/README.txt": b"-", "__MACOSX/UCI HAR Dataset/._x": b"-"}
    for part, rows in parts.items():
        for name, column in (("X", subject / 30), ("y", y), ("subject", subject)):
            text = "\n".join(f" {value:15.7e}" for value in column[rows].tolist())
            files[f"UCI HAR Dataset/{part}/{name}_{part}.txt"] = f"{text}\n".encode()
    server.content = _zip({"UCI HAR Dataset.zip": _zip(files), "names": b""})
    mine = _dataset(server)
    dataset = replace(
        DATASETS["har"], url=mine.url, sha256=mine.sha256, size=mine.size, unpacked=1
    )
    assert fetch(dataset, tmp_path, _silent)
    monkeypatch.setenv("FLWR_FBO_DATA", str(tmp_path))
    monkeypatch.setattr(har, "_ROWS", {"train": 240, "test": 120})
    monkeypatch.setattr(har, "_NUM_FEATURES", 1)
    assert har.partition(29).X_train.tolist() == [[1.0]] * 6
    assert _files(tmp_path) == {f"{dataset.target}/{m}" for m in dataset.members}


def _invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["data", *arguments], env={"COLUMNS": "80"})


def _error(result: Any) -> str:
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    line = str(result.stderr).splitlines()[-1]
    assert line.startswith("Error: ")
    return line


@pytest.mark.parametrize("name", ["HAR", "", "../har"])
def test_a_bad_name_is_refused(name: str) -> None:
    line = _error(_invoke("download", name))
    assert (
        f"name={name!r} is not allowed: one of ['emnist', 'har', 'landmine', " in line
    )


def test_the_command_fetches_and_says_where(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLWR_FBO_DATA", str(tmp_path))
    monkeypatch.setitem(DATASETS, "tiny", _dataset(server))
    result = _invoke("download", "tiny")
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{tmp_path / 'tiny/data.bin'} is there.\n"
    # No bar where there is no terminal.
    assert result.stderr.strip() == f"Fetching 0.3 MB from {server.url('there')}"
    result = _invoke("download", "tiny")
    assert result.output.strip() == f"{tmp_path / 'tiny/data.bin'} is there already."
    monkeypatch.setitem(DATASETS, "tiny", _dataset(server, "404", target="tiny/b"))
    assert "the server answered 404" in _error(_invoke("download", "tiny"))


def test_without_the_variable_it_goes_to_the_cache_folder(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FLWR_FBO_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setitem(DATASETS, "tiny", _dataset(server))
    assert _invoke("download", "tiny").exit_code == 0
    assert data_folder().is_relative_to(tmp_path)
    assert (data_folder() / "tiny/data.bin").read_bytes() == CONTENT


def _put(folder: Path, *paths: str) -> None:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).touch()


def test_the_list_says_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLWR_FBO_DATA", str(tmp_path))

    def found() -> dict[str, str | None]:
        content = json.loads(_invoke("list", "--json").stdout)
        assert content["folder"] == str(tmp_path)
        return {d["name"]: d["found"] for d in content["datasets"]}

    names = ("landmine", "har", "emnist", "magic")
    assert found() == dict.fromkeys(names)
    text = _invoke("list").output
    assert "no: flwr-fbo data download har" in text
    accepted = {name: DATASETS[name].accepted[-1:] for name in names}
    stand_ins = [path for paths in accepted.values() for path in paths]
    assert len(stand_ins) == 2
    _put(tmp_path, *stand_ins)
    assert found() == {n: paths[0] if paths else None for n, paths in accepted.items()}
    for path in stand_ins:
        assert f"{path}, accepted in place of" in _invoke("list").output
    _put(tmp_path, "landmine/LandmineData.mat", "emnist/emnist_all.sqlite")
    _put(tmp_path, "magic/magic04.data")
    members = [f"har/UCI HAR Dataset/{m}" for m in DATASETS["har"].members]
    _put(tmp_path, *members[1:])
    assert found()["har"] is None  # as the loader, which does not look past it
    assert "no: har/UCI HAR Dataset lacks files; remove it" in _invoke("list").output
    _put(tmp_path, members[0])
    assert found() == {name: d.target for name, d in DATASETS.items()}
    assert "yes: har/UCI HAR Dataset" in _invoke("list").output

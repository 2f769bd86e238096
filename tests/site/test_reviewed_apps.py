"""The list of apps that a site has reviewed, and what is not on it."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import time
import warnings
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flwr_fbo import _compat
from flwr_fbo._common.errors import RefusedError
from flwr_fbo.cli import app
from flwr_fbo.site.reviewed_apps import (
    require_reviewed,
    trust,
    trusted_digests,
    unpack,
)

PROJECT = """
[project]
name = "hospitals"
version = "1.0.0"
[tool.flwr.app]
publisher = "us"
"""


def bundle(
    project: str = PROJECT, code: str = "", more: Sequence[str | zipfile.ZipInfo] = ()
) -> bytes:
    file = io.BytesIO()
    members = (("pyproject.toml", project), ("app/client.py", code))
    with zipfile.ZipFile(file, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that it has already
        for name, text in (*members, *((name, "x = 1") for name in more)):
            if isinstance(name, str):
                name = zipfile.ZipInfo(name)  # of a date that is fixed
            archive.writestr(name, text)
    return file.getvalue()


def run(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["trust", *map(str, arguments)])
    return result.exit_code, result.output


def test_a_bundle_is_trusted_by_its_digest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, path = tmp_path / "apps", tmp_path / "hospitals.fab"
    path.write_bytes(bundle())
    digest = hashlib.sha256(bundle()).hexdigest()
    assert run(path) == (0, f"us/hospitals 1.0.0\nSHA-256: {digest}\n")
    assert not file.exists()
    assert run(path, file)[1].endswith(f"Added to {file}.\n")
    assert run(path, file)[1].endswith(f"Already in {file}.\n")
    assert file.read_text() == f"{digest}  us/hospitals 1.0.0\n"
    require_reviewed(bundle(), file)
    changed = bundle(code="import os")
    with pytest.raises(RefusedError) as error:
        require_reviewed(changed, file)
    text = f"us/hospitals 1.0.0, SHA-256 {hashlib.sha256(changed).hexdigest()}"
    assert text in error.value.public
    assert str(file) not in error.value.public
    assert f"flwr-fbo trust BUNDLE.fab {file}" in caplog.text
    path.write_bytes(changed)
    file.write_text(file.read_text().rstrip())  # as an editor may leave it
    assert run(path, file)[0] == 0
    require_reviewed(changed, file)
    require_reviewed(bundle(), file)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"rubbish" * 999,
        bundle("x = " + "[" * 100_000),
        bundle("\x1b[31m = 1"),
        bundle(PROJECT.replace("1.0.0", "1" * 10_000)),
        bundle(PROJECT.replace("1.0.0", "1" * 1000)),
        bundle("[project]\n"),
        bundle(f"{'a.' * 400_000}a = 1"),  # an hour, if it were read
    ],
)
def test_a_file_of_a_stranger_is_named_in_a_short_line(
    content: bytes, tmp_path: Path
) -> None:
    (tmp_path / "apps").write_text("")
    began = time.process_time()
    with pytest.raises(RefusedError) as error:
        require_reviewed(content, tmp_path / "apps")
    assert time.process_time() - began < 1
    assert len(str(error.value)) < 300
    assert str(error.value).isprintable()


def _special(path: str, kind: int) -> zipfile.ZipInfo:
    member = zipfile.ZipInfo(path)
    member.external_attr = (kind | 0o644) << 16
    return member


# Bundles that show a reviewer one thing, and may be another when they are unpacked.
ODD: dict[str, bytes] = {
    "above": bundle(more=["../planted.py"]),
    "above, inside": bundle(more=["app/../../planted.py"]),
    "absolute": bundle(more=["/tmp/planted.py"]),
    "here": bundle(more=["app/./client.py"]),
    "two slashes": bundle(more=["app//client.py"]),
    "a folder": bundle(more=["app/more/"]),
    "backslashes": bundle(more=["..\\planted.py"]),
    "twice": bundle(more=["app/client.py"]),
    "twice, upper case": bundle(more=["app/CLIENT.py"]),
    "an escape character": bundle(more=["app/\x1b[2J.py"]),
    "a NUL": bundle(more=["app/more.pyX.txt"]).replace(b"more.pyX", b"more.py\0"),
    "a link": bundle(more=[_special("link", stat.S_IFLNK)]),
    "a pipe": bundle(more=[_special("pipe", stat.S_IFIFO)]),
    "bytecode": bundle(more=["app/__pycache__/client.cpython-311.pyc"]),
    "a library": bundle(more=["app/client.abi3.so"]),
    "a path as version": bundle(PROJECT.replace("1.0.0", "1.0.0/../..")),
    "a path as name": bundle(PROJECT.replace("hospitals", "hospitals/..")),
    "a number as version": bundle(PROJECT.replace('"1.0.0"', "1.0")),
}


@pytest.mark.parametrize("case", ODD)
def test_a_bundle_that_hides_something_is_not_trusted(
    case: str, tmp_path: Path
) -> None:
    path, file = tmp_path / "odd.fab", tmp_path / "apps"
    path.write_bytes(ODD[case])
    code, text = run(path, file)
    assert code == 1
    assert "an app bundle (.fab)" in " ".join(text.split())
    assert not file.exists()
    # Nor if somebody has written its digest to the list.
    file.write_text(f"{hashlib.sha256(ODD[case]).hexdigest()}\n")
    with pytest.raises(RefusedError, match="cannot unpack"):
        unpack(ODD[case], file, tmp_path / "new")
    assert {path.name for path in tmp_path.iterdir()} == {"odd.fab", "apps"}


def test_what_was_reviewed_is_unpacked_to_a_new_folder(tmp_path: Path) -> None:
    file, content = tmp_path / "apps", bundle(code="x = 1\n")
    digest = hashlib.sha256(content).hexdigest()
    file.write_text(f"{digest}\n")
    folder, found = unpack(content, file, tmp_path / "new")
    assert found == ("us/hospitals", "1.0.0", digest)
    files = {path for path in folder.rglob("*") if path.is_file()}
    assert files == {folder / "pyproject.toml", folder / "app" / "client.py"}
    assert (folder / "app" / "client.py").read_text() == "x = 1\n"
    (tmp_path / "file").touch()
    with pytest.raises(RefusedError, match="cannot unpack") as error:
        unpack(content, file, tmp_path / "file")
    assert str(tmp_path) not in str(error.value)


def test_what_is_not_a_bundle_is_not_trusted(tmp_path: Path) -> None:
    path = tmp_path / "a.fab"
    path.write_bytes(b"rubbish")
    code, text = run(path, tmp_path / "apps")
    assert code == 1
    assert "an app bundle (.fab)" in " ".join(text.split())
    assert run(tmp_path / "none.fab")[0] == 1
    assert not (tmp_path / "apps").exists()


def test_one_bundle_at_a_time(tmp_path: Path) -> None:
    """A shell makes several of ``*.fab``: the second one is not the list."""
    paths = [tmp_path / name for name in ("a.fab", "b.fab")]
    for path in paths:
        path.write_bytes(bundle())
    code, text = run(*paths)
    assert code == 1
    assert "a list, after one bundle" in " ".join(text.split())
    assert run(*paths, tmp_path / "apps")[0] == 2
    assert [path.read_bytes() for path in paths] == [bundle()] * 2
    assert not (tmp_path / "apps").exists()


def _open_to(mode: int) -> Callable[[Path], None]:
    def prepare(file: Path) -> None:
        file.write_text("")
        file.chmod(mode)

    return prepare


PREPARE: dict[str, Callable[[Path], Any]] = {
    "missing": lambda file: None,
    "another line": lambda file: file.write_text("0" * 64 + "\nhospitals\n"),
    "of others": _open_to(0o666),
    "of a group": _open_to(0o664),
    "no text": lambda file: file.write_bytes(b"\xff\xff"),
}


@pytest.mark.parametrize("case", PREPARE)
def test_without_a_list_that_can_be_used_nothing_runs(
    case: str, tmp_path: Path
) -> None:
    file = tmp_path / "apps"
    PREPARE[case](file)
    with pytest.raises(RefusedError, match=str(file)):
        trusted_digests(file)
    with pytest.raises(RefusedError, match="cannot be used"):
        require_reviewed(bundle(), file)
    result = CliRunner().invoke(app, ["superexec", str(file), "--", "--insecure"])
    assert result.exit_code == 1
    assert str(file) in result.output


def test_a_list_that_others_can_replace_is_not_used(tmp_path: Path) -> None:
    """Nor is one begun where others could."""
    file = tmp_path / "apps"
    assert trust(bundle(), file)
    tmp_path.chmod(0o777)
    for attempt in (
        lambda: trusted_digests(file),
        lambda: trust(bundle(), file),
        lambda: trust(bundle(), tmp_path / "new"),
    ):
        with pytest.raises(RefusedError, match=f": chmod go-w {tmp_path}"):
            attempt()
    tmp_path.chmod(0o755)
    assert trusted_digests(file)


def test_a_list_of_another_user_is_not_used(
    tmp_path: Path, belongs: Callable[[Path, int], None]
) -> None:
    """But for root's: root may write every list."""
    file = tmp_path / "apps"
    file.write_text("")
    belongs(file, os.geteuid() + 1)
    with pytest.raises(RefusedError, match=f"belongs to user {os.geteuid() + 1}"):
        trusted_digests(file)
    belongs(file, 0)
    assert trusted_digests(file) == set()


REPLACED = ("install_from_fab", "get_project_dir", "get_load_client_app_fn")


@pytest.mark.parametrize("hidden", REPLACED)
def test_another_flower_runs_nothing(
    hidden: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the names that the check stands in front of are not there."""
    from flwr.supernode.runtime import run_clientapp

    monkeypatch.delattr(run_clientapp, hidden)
    monkeypatch.setattr(_compat, "_run_script", lambda *_: pytest.fail("it has run"))
    with pytest.raises(KeyError, match=hidden):
        _compat.run_client_app(lambda content: pytest.fail("it has been unpacked"))


@pytest.mark.parametrize("num_bundles", [0, 2])
@pytest.mark.parametrize("name", ["get_project_dir", "get_load_client_app_fn"])
def test_an_app_is_loaded_after_one_check(
    name: str, num_bundles: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flwr.supernode.runtime import run_clientapp

    called: list[str] = []

    def another_order(*_: Any) -> None:
        for _bundle in range(num_bundles):
            vars(run_clientapp)["install_from_fab"](b"")
        vars(run_clientapp)[name]("us/hospitals", "1.0.0", "0" * 64)

    for replaced in REPLACED:
        monkeypatch.setattr(run_clientapp, replaced, lambda *_, **__: called.append(""))
    monkeypatch.setattr(_compat, "_run_script", another_order)
    with pytest.raises(RuntimeError, match="loads an app without a check"):
        _compat.run_client_app(lambda content: (Path(), ("us/hospitals", "1.0.0", "")))
    assert not called

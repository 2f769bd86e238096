"""The list of apps that a site has reviewed, and what is not on it."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.supercore.constant import TASK_TYPE_TO_COMMAND
from typer.testing import CliRunner

from flwr_fbo import _compat
from flwr_fbo._common.errors import RefusedError
from flwr_fbo.cli import app
from flwr_fbo.cli.superexec_command import write_launchers
from flwr_fbo.clients.reviewed_apps import (
    require_reviewed,
    trusted_digests,
)

PROJECT = """
[project]
name = "hospitals"
version = "1.0.0"
[tool.flwr.app]
publisher = "us"
"""


def bundle(project: str = PROJECT, code: str = "") -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in (("pyproject.toml", project), ("app/client.py", code)):
            archive.writestr(zipfile.ZipInfo(name), text)  # of a date that is fixed
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
        bundle("[project]\n"),
    ],
)
def test_a_file_of_a_stranger_is_named_in_a_short_line(
    content: bytes, tmp_path: Path
) -> None:
    (tmp_path / "apps").write_text("")
    with pytest.raises(RefusedError) as error:
        require_reviewed(content, tmp_path / "apps")
    assert len(str(error.value)) < 300
    assert str(error.value).isprintable()


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


def test_a_list_of_another_user_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for root's: root may write every list."""
    file = tmp_path / "apps"
    file.write_text("")
    about = os.stat_result((0o100644, 1, 1, 1, 77, 77, 0, 0, 0, 0))
    monkeypatch.setattr(Path, "stat", lambda path, **_: about)
    with pytest.raises(RefusedError, match="others may write it"):
        trusted_digests(file)
    monkeypatch.setattr(os, "geteuid", lambda: 77)
    assert trusted_digests(file) == set()


@pytest.mark.parametrize("hidden", ["install_from_fab", "get_load_client_app_fn"])
def test_another_flower_runs_nothing(
    hidden: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the names that the check stands in front of are not there."""
    from flwr.supernode.runtime import run_clientapp

    monkeypatch.delattr(run_clientapp, hidden)
    monkeypatch.setattr(_compat, "_run_script", lambda *_: pytest.fail("it has run"))
    with pytest.raises(KeyError, match=hidden):
        _compat.run_client_app(lambda content: None)


def test_no_app_is_loaded_that_was_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.supernode.runtime import run_clientapp

    seen: list[bytes] = []

    def another_order(*_: Any) -> None:
        run_clientapp.get_load_client_app_fn("", None, True)  # type: ignore[attr-defined]

    for name in ("install_from_fab", "get_load_client_app_fn"):
        monkeypatch.setattr(run_clientapp, name, lambda *_, **__: seen.append(b""))
    monkeypatch.setattr(_compat, "_run_script", another_order)
    with pytest.raises(RuntimeError, match="loads an app without a check"):
        _compat.run_client_app(seen.append)
    assert not seen


def test_other_kinds_of_tasks_are_refused(tmp_path: Path) -> None:
    """Such as an agent app, which would bring code of its own."""
    write_launchers(tmp_path, tmp_path / "apps")
    names = {path.name for path in tmp_path.iterdir()}
    assert set(TASK_TYPE_TO_COMMAND.values()) <= names
    for name in names - {"flwr-clientapp"}:
        done = subprocess.run(
            [str(tmp_path / name), "--token", "1"],
            capture_output=True,
            text=True,
            check=False,
            env={"PATH": str(tmp_path)},
        )
        assert done.returncode == 1
        assert done.stderr == f"This site runs no {name}: only client apps.\n"
    assert "reviewed_apps" in (tmp_path / "flwr-clientapp").read_text()

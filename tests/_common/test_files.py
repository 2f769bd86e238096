"""Files that others can change are not used: one function decides for all of them."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from flwr_fbo._common.files import make_folder, why_untrusted


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a site's folder, with a file in it that is good."""
    made = tmp_path / "above" / "site"
    make_folder(made)
    (made / "file").touch(0o600)
    return made


def test_what_we_make_is_trusted_under_any_umask(tmp_path: Path) -> None:
    for umask in (0o000, 0o002, 0o022, 0o077):
        made, before = tmp_path / f"{umask:o}" / "above" / "site", os.umask(umask)
        try:
            make_folder(made)
            make_folder(made)  # there already
        finally:
            os.umask(before)
        for one in (made, made.parent, made.parent.parent):
            assert one.stat().st_mode & 0o777 == 0o700
        assert not why_untrusted(made)
        assert not why_untrusted(made / "file" / "not" / "there")


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o770, 0o702, 0o2775, 0o2770])
def test_a_folder_that_others_may_write_is_not_used(folder: Path, mode: int) -> None:
    """Nor what is in it; and the command that is named mends it."""
    for one in (folder, folder.parent):
        one.chmod(mode)
        for path in (folder, folder / "file", folder / "new", folder / "new" / "er"):
            fault = why_untrusted(path)
            assert fault.startswith(f"{path} is not used, as others may write ")
            assert str(one) in fault
            command = fault.rpartition(": ")[2]
            assert command == f"chmod go-w {one}"
        subprocess.run(shlex.split(command), check=True)
        assert not why_untrusted(folder / "file")


def test_all_folders_to_be_mended_are_named_at_once(folder: Path) -> None:
    for one in (folder, folder.parent, folder / "file"):
        one.chmod(0o775)
    fault = why_untrusted(folder / "file")
    assert fault.endswith(f"chmod go-w {folder.parent} {folder} {folder / 'file'}")


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o711, 0o500, 0o2755])
def test_a_folder_that_others_may_only_read_is_used(folder: Path, mode: int) -> None:
    folder.chmod(mode)
    assert not why_untrusted(folder)
    assert not why_untrusted(folder / "file", is_secret=True, in_own_folder=True)


@pytest.mark.parametrize("mode", [0o666, 0o660, 0o602, 0o620])
def test_a_file_that_others_may_write_is_not_used(folder: Path, mode: int) -> None:
    file = folder / "file"
    file.chmod(mode)
    fault = why_untrusted(file)
    assert fault.endswith(f"may write it. {LOOK}: chmod go-w {file}")
    fault = why_untrusted(file, is_secret=True)
    assert fault.endswith(f"may write it. {LOOK}: chmod 600 {file}")
    subprocess.run(shlex.split(fault.rpartition(": ")[2]), check=True)
    assert not why_untrusted(file, is_secret=True)


LOOK = "Look whether its content is right, then"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o610, 0o601])
def test_a_secret_that_others_may_read_is_not_used(folder: Path, mode: int) -> None:
    file = folder / "file"
    file.chmod(mode)
    assert not why_untrusted(file)
    fault = why_untrusted(file, is_secret=True)
    assert fault.endswith(f"may read it. {LOOK}: chmod 600 {file}")


def test_a_folder_of_all_may_be_above_but_is_nobodys_own(folder: Path) -> None:
    """As /tmp is: there nobody can replace the files of others."""
    above = folder.parent
    above.chmod(0o1777)
    (above / "file").touch(0o600)
    assert not why_untrusted(folder)
    assert not why_untrusted(folder / "file", in_own_folder=True)
    assert not why_untrusted(above / "file")
    for path, options in ((above, {}), (above / "file", {"in_own_folder": True})):
        fault = why_untrusted(path, **options)
        assert fault.startswith(f"{path} is not used, as all users may write ")
        assert fault.endswith(f": mkdir -m 700 {above / 'fbo'}")


def test_what_belongs_to_another_user_is_not_used(
    folder: Path, belongs: Callable[[Path, int], None]
) -> None:
    me = os.geteuid()
    for one in (folder / "file", folder, folder.parent):
        before = one.lstat().st_uid
        belongs(one, 0)
        assert not why_untrusted(folder / "file")  # root may do anything anyway
        belongs(one, me + 1)
        fault = why_untrusted(folder / "file")
        assert f"belongs to user {me + 1}, and this process to user {me}. Run" in fault
        assert fault.endswith(f": chown {me} {one}")
        belongs(one, before)
    belongs(folder, me + 1)
    assert why_untrusted(folder).endswith(f": chown -R {me} {folder}")


def test_a_secret_of_root_is_made_ours(
    folder: Path, belongs: Callable[[Path, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 77)
    for one in (folder, *folder.parents, folder / "file"):
        belongs(one, 0)
    (folder / "file").chmod(0o640)
    fault = why_untrusted(folder / "file", is_secret=True)
    assert fault.endswith(f"chown 77 {folder / 'file'} && chmod 600 {folder / 'file'}")


def test_a_link_leads_where_its_own_folder_lets_others_lead_it(
    folder: Path, tmp_path: Path, belongs: Callable[[Path, int], None]
) -> None:
    others = tmp_path / "others"
    others.mkdir(mode=0o700)
    for name, target in (("absolute", folder), ("relative", Path("../above/site"))):
        (others / name).symlink_to(target)
    (others / "twice").symlink_to("absolute/")
    (others / "file").symlink_to(folder / "file")
    links = [others / name for name in ("absolute", "relative", "twice")]
    paths = [*links, *(link / "file" for link in links), others / "file"]
    assert not any(map(why_untrusted, paths))
    # Where the link is.
    others.chmod(0o777)
    for path in paths:
        assert why_untrusted(path).endswith(f"chmod go-w {others}")
    others.chmod(0o1777)
    assert not any(map(why_untrusted, paths))
    belongs(others / "absolute", os.geteuid() + 1)
    for path in (others / "absolute", others / "twice", others / "absolute" / "file"):
        fault = why_untrusted(path)
        assert fault.endswith(f"chown -h {os.geteuid()} {others / 'absolute'}")
    assert not why_untrusted(others / "relative")
    # Where it ends.
    folder.chmod(0o777)
    for path in (others / "relative", others / "file", others / "relative" / "file"):
        assert why_untrusted(path).endswith(f"chmod go-w {folder}")


def test_a_way_back_is_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    assert not why_untrusted(tmp_path / "link" / ".." / "site" / "file")
    folder.parent.chmod(0o777)
    assert why_untrusted(tmp_path / "link" / "..")
    assert why_untrusted(tmp_path / "link" / ".." / "site" / "file")


def test_a_relative_path_is_looked_at_from_the_root(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert not why_untrusted(Path("file"))
    folder.parent.chmod(0o777)
    assert why_untrusted(Path("file")).endswith(f"chmod go-w {folder.parent}")


def test_links_in_a_circle_are_named(folder: Path) -> None:
    (folder / "a").symlink_to("b")
    (folder / "b").symlink_to("a")
    assert "cannot be used: " in why_untrusted(folder / "a")


def test_the_machines_own_folders_are_trusted() -> None:
    """All users' temporary folder is above the folders of tests and simulations."""
    assert not why_untrusted(Path("/tmp/flwr-fbo-not-there"))
    assert why_untrusted(Path("/tmp"))

"""A site that runs only the apps that it has reviewed, by the SHA-256 of their bundles.

Flower runs the app that a server sends. ``flwr-fbo superexec`` takes the place of
Flower's own executor at a SuperNode with ``--isolation process``, and starts this
module for each message, in place of ``flwr-clientapp``. It compares the bundle with a
list, a text file with a line for each bundle, before anything of it is unpacked.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import stat
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Sequence
from importlib.machinery import BYTECODE_SUFFIXES, EXTENSION_SUFFIXES
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from flwr_fbo._common.errors import RefusedError
from flwr_fbo._common.files import why_untrusted
from flwr_fbo._compat import run_client_app

_log = logging.getLogger("flwr.fbo")

_DIGEST = re.compile(r"[0-9a-f]{64}")
# Limits on a bundle that is not reviewed. The time to read TOML can grow with the
# square of its length: 8 kB take about 0.2 s at most.
_LONGEST_PROJECT, _LONGEST_NAME = 2**13, 100
# Python prefers these to the source that a reviewer reads.
_COMPILED = (*BYTECODE_SUFFIXES, *EXTENSION_SUFFIXES)


class Identity(NamedTuple):
    """Id, version and SHA-256 of an app bundle (FAB): Flower names an app by these."""

    fab_id: str
    version: str
    digest: str


def identity(content: bytes, longest: int = -1) -> Identity:
    """Return the identity of an app bundle, by its own content.

    At most ``longest`` bytes of its ``pyproject.toml`` are read.

    Raises
    ------
    ValueError
        If it is not a bundle as ``flwr build`` writes it.
    """
    try:
        with zipfile.ZipFile(BytesIO(content)) as archive:
            _require_plain_files(archive.infolist())
            with archive.open("pyproject.toml") as file:
                values = tomllib.loads(file.read(longest).decode())
        project = values["project"]
        publisher = values["tool"]["flwr"]["app"]["publisher"]
        words = publisher, project["name"], project["version"]
    except Exception as error:  # a stranger's file can fail in any way
        raise ValueError(f"{type(error).__name__}: {error}") from None
    for word in words:
        if not isinstance(word, str) or not word.isprintable() or {*"/\\"} & {*word}:
            raise ValueError("publisher, name or version cannot be part of a file name")
    return Identity(f"{words[0]}/{words[1]}", words[2], digest_of(content))


def _require_plain_files(members: Sequence[zipfile.ZipInfo]) -> None:
    """Raise ValueError if a ZIP file could hide something from a reviewer.

    Its members are files with relative paths, each path once, and not compiled code.
    """
    paths = set()
    for member in members:
        path = member.orig_filename
        steps = path.split("/")
        is_relative = not {"", ".", ".."} & {*steps} and "\\" not in path
        kind = stat.S_IFMT(member.external_attr >> 16)
        if not (
            is_relative
            and path.isprintable()
            and path == member.filename
            and path.casefold() not in paths
            and kind in (0, stat.S_IFREG)
            and not path.endswith(_COMPILED)
        ):
            text = "is compiled, stands there twice, or is not a file with a plain path"
            raise ValueError(f"the member {path[:_LONGEST_NAME]!r} {text}")
        paths.add(path.casefold())


def digest_of(content: bytes) -> str:
    """Return the SHA-256 of a whole file, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def _require_trusted(path: Path) -> None:
    """Raise `RefusedError` if others can change a file, or a folder above it."""
    fault = why_untrusted(path)
    if fault:
        raise RefusedError(fault)


def trusted_digests(file: Path) -> set[str]:
    """Return the digests in a list of reviewed apps.

    Raises
    ------
    RefusedError
        If the file is missing, has another line, or others may change it.
    """
    _require_trusted(file)
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RefusedError(f"{file} cannot be read: {error}.") from None
    digests = set()
    for line in filter(str.strip, lines):
        digest = line.split()[0]
        if not _DIGEST.fullmatch(digest):
            text = f"{file} is not used: {line!r} does not begin with a SHA-256."
            raise RefusedError(text)
        digests.add(digest)
    return digests


def trust(content: bytes, file: Path) -> bool:
    """Add a bundle to a list of reviewed apps; return whether it was not there.

    Raises
    ------
    ValueError
        If it is not a bundle as ``flwr build`` writes it.
    RefusedError
        If there is a list that cannot be used, or others could change it.
    OSError
        If it cannot be written.
    """
    _require_trusted(file)
    found = identity(content)
    digest = found.digest
    if file.exists() and digest in trusted_digests(file):
        return False
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    with open(os.open(file, flags, 0o644), "a") as lines:
        if file.read_bytes()[-1:] not in (b"", b"\n"):  # an editor's last line
            lines.write("\n")
        lines.write(f"{digest}  {found.fab_id} {found.version}\n")
    return True


def require_reviewed(content: bytes, file: Path) -> None:
    """Raise `RefusedError` unless a bundle is in a list of reviewed apps."""
    try:
        trusted = trusted_digests(file)
    except RefusedError as error:
        _log.error("No app is run: %s", error)
        raise RefusedError.told(
            "This site's list of reviewed apps cannot be used."
        ) from None
    digest = digest_of(content)
    if digest in trusted:
        return
    try:
        found = identity(content, _LONGEST_PROJECT)
        name = f"{found.fab_id} {found.version}"[:_LONGEST_NAME]
    except ValueError:
        name = "without a name"
    text = (
        f"This site has not reviewed this app: {name}, SHA-256 {digest}. Nothing of it "
        "was run."
    )
    _log.error("%s To trust it: flwr-fbo trust BUNDLE.fab %s", text, file)
    raise RefusedError.told(text)


def unpack(content: bytes, file: Path, folder: Path) -> tuple[Path, Identity]:
    """Write the files of a reviewed bundle to a new folder; return both.

    Raises
    ------
    RefusedError
        If the bundle is not in the list ``file``, or cannot be unpacked.
    """
    require_reviewed(content, file)
    try:
        found = identity(content)
        _require_trusted(folder)
        with zipfile.ZipFile(BytesIO(content)) as archive:
            archive.extractall(folder)
    except Exception:  # as above, a TMPDIR of others, or the disk is full
        _log.exception("A reviewed app is not run: it cannot be unpacked.")
        raise RefusedError.told("This site cannot unpack this app.") from None
    return folder, found


def main() -> None:
    """Answer one message with the app that comes with it, if that was reviewed."""
    file = Path(sys.argv.pop(1))
    # Only this user can write there, and nothing is there yet.
    with tempfile.TemporaryDirectory(prefix="flwr-fbo-app-") as folder:
        os.environ["FLWR_HOME"] = folder
        run_client_app(lambda content: unpack(content, file, Path(folder, "app")))


if __name__ == "__main__":
    main()

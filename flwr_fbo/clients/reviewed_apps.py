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
from io import BytesIO
from pathlib import Path

from flwr_fbo._common.errors import RefusedError
from flwr_fbo._common.text import printable
from flwr_fbo._compat import run_client_app

_log = logging.getLogger("flwr.fbo")

_DIGEST = re.compile(r"[0-9a-f]{64}")
# Of a bundle that is not reviewed little is read, and little is told.
_LONGEST_PROJECT, _LONGEST_NAME = 2**20, 100


def bundle_name(content: bytes) -> str:
    """Return what an app bundle (FAB) is called; empty if a file is not a bundle.

    Publisher, name and version, as the bundle itself says: anybody can write them.
    """
    try:
        with (
            zipfile.ZipFile(BytesIO(content)) as archive,
            archive.open("pyproject.toml") as file,
        ):
            values = tomllib.loads(file.read(_LONGEST_PROJECT).decode())
        project = values["project"]
        publisher = values["tool"]["flwr"]["app"]["publisher"]
        name = f"{publisher}/{project['name']} {project['version']}"
    except Exception:  # a stranger's file can fail in any way
        return ""
    return " ".join(printable(name[:_LONGEST_NAME]).split())


def digest_of(content: bytes) -> str:
    """Return the SHA-256 of a whole file, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def trusted_digests(file: Path) -> set[str]:
    """Return the digests in a list of reviewed apps.

    Raises
    ------
    RefusedError
        If the file is missing, has another line, or others may write it.
    """
    try:
        about, lines = file.stat(), file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RefusedError(f"{file} cannot be read: {error}.") from None
    is_own = about.st_uid in (0, os.geteuid())
    if not is_own or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise RefusedError(f"{file} is not used: others may write it.")
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
    RefusedError
        If there is a list that cannot be used.
    OSError
        If it cannot be written.
    """
    digest = digest_of(content)
    if file.exists() and digest in trusted_digests(file):
        return False
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    with open(os.open(file, flags, 0o644), "a") as lines:
        if file.read_bytes()[-1:] not in (b"", b"\n"):  # an editor's last line
            lines.write("\n")
        lines.write(f"{digest}  {bundle_name(content)}\n")
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
    text = (
        f"This site has not reviewed this app: {bundle_name(content) or 'not a bundle'}"
        f", SHA-256 {digest}. Nothing of it was run."
    )
    _log.error("%s To trust it: flwr-fbo trust BUNDLE.fab %s", text, file)
    raise RefusedError.told(text)


def main() -> None:
    """Answer one message with the app that comes with it, if that was reviewed."""
    file = Path(sys.argv.pop(1))
    # Flower takes what is unpacked already, by eight digits of its digest: not here.
    with tempfile.TemporaryDirectory(prefix="flwr-fbo-app-") as folder:
        os.environ["FLWR_HOME"] = folder
        run_client_app(lambda content: require_reviewed(content, file))


if __name__ == "__main__":
    main()

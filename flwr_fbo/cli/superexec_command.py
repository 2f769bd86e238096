"""``flwr-fbo superexec FILE -- ...``: Flower's SuperExec, for reviewed apps only."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from importlib.metadata import distribution
from pathlib import Path

from flwr_fbo._compat import run_superexec
from flwr_fbo.cli.output import plain_errors
from flwr_fbo.clients.reviewed_apps import trusted_digests


def superexec(file: Path, arguments: list[str]) -> None:
    """Run the messages of a SuperNode with reviewed apps only.

    In place of `flower-superexec`, whose ARGUMENTS follow `--`, beside
    `flower-supernode --isolation process`. FILE is the list that `flwr-fbo trust` has
    written. A bundle whose SHA-256 is not in it is refused before anything of it is
    unpacked: the log says so, and the server gets an error. FILE is read for each
    message. Only client apps are run: a SuperNode that is asked for another kind of
    task does nothing.

    Flower has no public interface between the arrival of a bundle and its use, so the
    comparison stands in front of two functions of `flwr-clientapp`. If a version of
    Flower does not have them, no app runs.

    Examples
    --------
    $ flwr-fbo superexec apps -- --insecure --runtime-api-address 127.0.0.1:9094
    """
    with plain_errors():
        trusted_digests(file)
    with tempfile.TemporaryDirectory(prefix="flwr-fbo-superexec-") as folder:
        write_launchers(Path(folder), file.absolute())
        os.environ["PATH"] = folder  # all that SuperExec finds
        run_superexec(arguments)


def write_launchers(folder: Path, file: Path) -> None:
    """Write what SuperExec starts: for a message of a client app, and other tasks."""
    restored = f"PATH={shlex.quote(os.environ.get('PATH', os.defpath))}; export PATH"
    module = (sys.executable, "-P", "-m", "flwr_fbo.clients.reviewed_apps", str(file))
    launch = f'{restored}\nexec {shlex.join(module)} "$@"'
    for script in distribution("flwr").entry_points:
        refusal = f'echo "This site runs no {script.name}: only client apps." >&2'
        is_ours = script.name == "flwr-clientapp"
        path = folder / script.name
        path.write_text(f"#!/bin/sh\n{launch if is_ours else refusal + '; exit 1'}\n")
        path.chmod(0o700)

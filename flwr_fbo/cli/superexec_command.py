"""``flwr-fbo superexec FILE -- ...``: Flower's SuperExec, for reviewed apps only."""

from __future__ import annotations

import fcntl
import os
import shlex
import sys
import tempfile
from importlib.metadata import distribution
from pathlib import Path

from flwr_fbo._common.validation import require
from flwr_fbo._compat import run_superexec
from flwr_fbo.cli.output import plain_errors
from flwr_fbo.site.reviewed_apps import trusted_digests

# Options of Flower's that are passed on. Its others run apps in other places, or
# install what nobody has reviewed.
_OPTIONS = {
    "--help",
    "--version",
    "--insecure",
    "--root-certificates",
    "--runtime-api-address",
    "--superexec-auth-secret-file",
    "--health-server-address",
    "--parent-pid",
}


def superexec(file: Path, arguments: list[str]) -> None:
    """Run the messages of a SuperNode with reviewed apps only.

    In place of `flower-superexec`, whose ARGUMENTS follow `--`, beside
    `flower-supernode --isolation process`. FILE is the list that `flwr-fbo trust` has
    written. A bundle whose SHA-256 is not in it is refused before anything of it is
    unpacked: the log says so, and the server gets an error. FILE is read for each
    message. A bundle in FILE is unpacked to a new folder of this user, and its app is
    loaded from there. If id, version or SHA-256 that the server gives differ from the
    bundle's, no app runs. Only client apps are run: a SuperNode that is asked for
    another kind of task does nothing.

    ARGUMENTS are those about addresses, certificates and secrets. Options that install
    an app's dependencies, or run it in another place, are refused: nothing would be
    compared there.

    Flower has no public interface between the arrival of a bundle and its use, so three
    functions of `flwr-clientapp` are replaced. If a version of Flower does not have
    them, no app runs.

    Examples
    --------
    $ flwr-fbo superexec apps -- --insecure --runtime-api-address 127.0.0.1:9094
    """
    with plain_errors(ValueError):
        trusted_digests(file)
        for argument in arguments:
            is_passed_on = argument.partition("=")[0] in _OPTIONS
            allowed = f"one of {', '.join(sorted(_OPTIONS))}"
            require(argument[:1] != "-" or is_passed_on, "OPTION", argument, allowed)
    with tempfile.TemporaryDirectory(prefix="flwr-fbo-superexec-") as folder:
        # Else systemd-tmpfiles may take it away when it is old, and another user may
        # make one of that name.
        fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_EX)
        write_launchers(Path(folder), file.absolute())
        os.environ["PATH"] = folder  # all that SuperExec finds
        run_superexec(arguments)


def write_launchers(folder: Path, file: Path) -> None:
    """Write what SuperExec starts: for a message of a client app, and other tasks."""
    restored = f"PATH={shlex.quote(os.environ.get('PATH', os.defpath))}; export PATH"
    module = (sys.executable, "-P", "-m", "flwr_fbo.site.reviewed_apps", str(file))
    launch = f'{restored}\nexec {shlex.join(module)} "$@"'
    for script in distribution("flwr").entry_points:
        refusal = f'echo "This site runs no {script.name}: only client apps." >&2'
        is_ours = script.name == "flwr-clientapp"
        path = folder / script.name
        path.write_text(f"#!/bin/sh\n{launch if is_ours else refusal + '; exit 1'}\n")
        path.chmod(0o700)

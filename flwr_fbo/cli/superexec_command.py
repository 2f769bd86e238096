"""``flwr-fbo superexec FILE -- ...``: Flower's SuperExec, for reviewed apps only."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from flwr_fbo._compat import run_superexec
from flwr_fbo.cli.output import plain_errors
from flwr_fbo.clients.reviewed_apps import TrustedAppsError, trusted_digests


def superexec(
    file: Annotated[
        Path, typer.Argument(help="The list that `flwr-fbo trust` has written.")
    ],
    arguments: Annotated[
        list[str], typer.Argument(help="Those of `flower-superexec`, after `--`.")
    ],
) -> None:
    """Run the messages of a SuperNode with reviewed apps only.

    In place of `flower-superexec`, beside `flower-supernode --isolation process`. A
    bundle whose SHA-256 is not in FILE is refused before anything of it is unpacked:
    the log says so, and the server gets an error. FILE is read for each message.
    Only client apps are run: a SuperNode that is asked for another kind of task does
    nothing.

    Examples
    --------
    $ flwr-fbo superexec apps -- --insecure --runtime-api-address 127.0.0.1:9094
    """
    with plain_errors(TrustedAppsError):
        trusted_digests(file)
    with tempfile.TemporaryDirectory(prefix="flwr-fbo-superexec-") as folder:
        _write_launcher(Path(folder) / "flwr-clientapp", file.absolute())
        # All that SuperExec finds: a command of another kind of task is not there.
        os.environ["PATH"] = folder
        run_superexec(arguments)


def _write_launcher(path: Path, file: Path) -> None:
    """Write what SuperExec starts for each message."""
    restored = f"PATH={shlex.quote(os.environ.get('PATH', os.defpath))}; export PATH"
    module = (sys.executable, "-P", "-m", "flwr_fbo.clients.reviewed_apps", str(file))
    path.write_text(f'#!/bin/sh\n{restored}\nexec {shlex.join(module)} "$@"\n')
    path.chmod(0o700)

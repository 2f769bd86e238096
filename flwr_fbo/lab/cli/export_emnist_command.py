"""``flwr-fbo data export-emnist``: digits as tensorflow-federated itself loads them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from flwr_fbo.cli.output import check_output, ends_like_ctrl_c, plain_errors
from flwr_fbo.lab.datasets.base import data_folder
from flwr_fbo.lab.datasets.emnist import ArrayWriters

SCRIPT = Path(__file__).parents[1] / "datasets" / "_emnist_tff.py"

# Of TFF's file, unpacked, and of a writer's images before they are compressed.
_BYTES, _BYTES_A_WRITER = 4_708_990_976, 120 * 28 * 28 * 4
# Where load_data(cache_dir) looks for the file before it fetches it.
_NAME = "emnist_all.sqlite"


class ExportError(RuntimeError):
    """The export cannot be begun, or failed."""


def export_emnist(
    writers: Annotated[
        int,
        typer.Option(min=1, max=3383, help="Number of writers, in order of their ids."),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False, help="File to write; emnist/emnist_digits.npz by default."
        ),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help=f"TFF's {_NAME}, if you have it; otherwise TFF downloads it.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Export digits of federated EMNIST with tensorflow-federated itself (2.5 GB).

    It runs in a separate environment, which uv installs. Optional: flwr-fbo also reads
    TFF's file directly.

    Examples
    --------
    $ flwr-fbo data export-emnist --writers 100
    """
    output = output or data_folder() / "emnist" / "emnist_digits.npz"
    with (
        plain_errors(ValueError, ExportError),
        ends_like_ctrl_c(signal.SIGTERM, signal.SIGHUP),
    ):
        output.parent.mkdir(parents=True, exist_ok=True)
        check_output("output", output, replace=False)
        uv = _find_uv()
        # In the folder of the output: so it can be written there, and then moved.
        with tempfile.TemporaryDirectory(prefix=".export-", dir=output.parent) as name:
            folder = Path(name)
            _require_space(folder, source, writers)
            if not yes:
                typer.echo(_announcement(folder, source))
                typer.confirm("Go on?", abort=True)
            if source is not None:
                (folder / _NAME).symlink_to(source.absolute())
            result = folder / "result.npz"
            try:
                _run_tff(uv, folder, writers, result)
            except KeyboardInterrupt:
                typer.echo(f"Stopped. {output} was not written.", err=True)
                raise typer.Exit(130) from None
            found = len(ArrayWriters(result))
            if found != writers:
                raise ExportError(
                    f"Only {found} of {writers} writers have both splits."
                )
            result.replace(output)
    typer.echo(f"{output}: {writers} writers")


def _find_uv() -> str:
    try:
        from uv import find_uv_bin

        return str(find_uv_bin())
    except (ImportError, FileNotFoundError) as error:
        raise ExportError(
            "uv is missing, which flwr brings: pip install uv."
        ) from error


def _require_space(folder: Path, source: Path | None, writers: int) -> None:
    needed = writers * _BYTES_A_WRITER + (_BYTES if source is None else 0)
    free = shutil.disk_usage(folder).free
    if free < needed:
        figures = f"{needed / 1e9:.1f} GB are needed, {free / 1e9:.1f} GB are free"
        raise ExportError(f"{folder.parent} is too full: {figures}.")


def _announcement(folder: Path, source: Path | None) -> str:
    text = (
        "tensorflow-federated will be installed into uv's cache, 2.5 GB, unless it is "
        "there already, and run: a minute."
    )
    if source is None:
        text += (
            f" It fetches {_NAME} (170 MB) and unpacks it in {folder.parent} (4.7 GB, "
            "removed at the end)."
        )
    return text


def _run_tff(uv: str, folder: Path, writers: int, result: Path) -> None:
    """Run the script, and leave none of its processes behind, however this ends."""
    log = folder / "log"
    # Nothing of this environment, nor of the script's own folder, is to be imported.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    environment |= {"PYTHONSAFEPATH": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [uv, "run", "--script", SCRIPT, folder, str(writers), result],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            env=environment,
            start_new_session=True,
        )
    try:
        with Console(stderr=True).status("") as status:
            while process.poll() is None:
                status.update(Text(_last_line(log)))
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.2)
    finally:
        # The whole group: TFF's worker outlives the process that started it.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode:
        raise ExportError(f"tensorflow-federated failed: {_last_line(log)}")


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return next((line for line in reversed(lines) if line.strip()), "it said nothing.")

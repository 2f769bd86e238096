"""What all commands share: errors in a line, consoles, CSV, and numbers in JSON."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from shutil import get_terminal_size
from typing import Any, TextIO

import click
import typer
from rich import box
from rich.console import Console
from rich.text import Text

from flwr_fbo._common.conversion import finite
from flwr_fbo._common.errors import PublicError
from flwr_fbo._common.text import printable
from flwr_fbo._common.validation import require


@contextmanager
def plain_errors(*more: type[Exception]) -> Iterator[None]:
    """Turn what the user or the machine got wrong into one line, and exit with 1.

    ``more`` are errors that are the user's in this block, and bugs elsewhere.
    """
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without "±"
    try:
        yield
    except Exception as error:
        reason = _reason(error, more)
        if not reason:
            raise
    else:
        return
    typer.echo(f"Error: {reason}", err=True)
    raise typer.Exit(1)


def _reason(error: Exception, more: tuple[type[Exception], ...]) -> str:
    """Return what is said of an error; nothing if it is a bug, or no error."""
    # Imported now: a command that ends well would wait for them.
    from joblib.externals.loky.process_executor import TerminatedWorkerError
    from sqlalchemy.exc import SQLAlchemyError

    if isinstance(error, TerminatedWorkerError):
        return "a worker process was killed, or ran out of memory."
    if isinstance(error, BrokenPipeError):  # who reads has seen enough
        return ""
    if isinstance(error, OSError):
        where = f": {error.filename}" if error.filename else ""
        text = error.strerror or str(error) or type(error).__name__
        return f"{text}{where}."
    if isinstance(error, (PublicError, SQLAlchemyError, *more)):
        # Names to choose from, a line each.
        text = str(error).strip() or type(error).__name__
        lines = [_with_option(text.splitlines()[0]), *getattr(error, "known", ())]
        return "\n  ".join(map(printable, lines))
    return ""


def _with_option(text: str) -> str:
    """Return an error that begins with a field, with the option that gave the field.

    An option's parameter has the name of the field that it sets.
    """
    field, _, rest = text.partition("=")
    context = click.get_current_context(silent=True)
    for one in context.command.params if context is not None else ():
        if isinstance(one, click.Option) and one.name == field:
            missing = "None is not allowed: "
            if rest.startswith(missing):  # nobody has typed a None
                wanted = rest.removeprefix(missing).removeprefix("given")
                return f"{one.opts[0]} must be given: {wanted.lstrip(' ,:')}"
            return f"{one.opts[0]}={rest}"
    return text


def check_output(field: str, file: Path, *, replace: bool = True) -> None:
    """Raise ValueError unless a file may be written; see `require` for ``field``.

    Its folder must exist; with ``replace=False`` the file must not.
    """
    require(file.parent.is_dir(), field, str(file), "a file in a folder that exists")
    require(replace or not file.exists(), field, str(file), "a new file")


@contextmanager
def ends_like_ctrl_c(*numbers: signal.Signals) -> Iterator[None]:
    """Raise KeyboardInterrupt at these signals too, but for those that are ignored."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in numbers}
    caught = [n for n, handler in before.items() if handler is not signal.SIG_IGN]
    for number in caught:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in caught:
            signal.signal(number, before[number])


# A rule below the headings, in characters that any file and terminal has.
RULED = box.Box(str(box.SIMPLE_HEAD).replace("\u2500", "-"), ascii=True)


class TextConsole(Console):
    """A console that prints names as they are: no markup, and nothing invisible."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return the text to print, of every string and every cell of a table."""
        return super().render_str(printable(text), **options)


def wide_console() -> TextConsole:
    """Return one for a table that a program may read: as wide as COLUMNS says.

    Where nobody says so, and there is no terminal, wide enough to cut nothing off.
    """
    console = TextConsole()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 160
    return console


def columns_of(stream: TextIO) -> int | None:
    """Return how wide a stream is: as COLUMNS says, or its terminal; None elsewhere."""
    if os.environ.get("COLUMNS", "").isdecimal():
        return int(os.environ["COLUMNS"])
    return get_terminal_size().columns if stream.isatty() else None


def wrapped(text: str, columns: int | None) -> str:
    """Return a text in lines of so many columns, the later ones indented.

    A line that begins with two spaces stays whole: it is there to be copied.
    """
    if columns is None or text.startswith("  ") or len(text) <= columns:
        return text
    lines = textwrap.wrap(
        text,
        columns,
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines)


def echo(text: str) -> None:
    """Print a line that is for reading: as wide as the terminal."""
    typer.echo(wrapped(text, columns_of(sys.stdout)))


def json_of(values: Any) -> str:
    """Return values as JSON: null in place of infinity and NaN, which JSON lacks."""
    return json.dumps(finite(values), indent=2, allow_nan=False)


def csv_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows with the same keys as CSV; None becomes an empty cell."""
    text = io.StringIO()
    headings = list(rows[0]) if rows else []
    writer = csv.DictWriter(text, headings, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        bools = {n: str(v).lower() for n, v in row.items() if isinstance(v, bool)}
        writer.writerow({**row, **bools})
    return text.getvalue()

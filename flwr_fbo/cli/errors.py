"""What a command says where something is refused, and how it is stopped."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper

import typer

from flwr_fbo._common.errors import DataError
from flwr_fbo._common.text import printable
from flwr_fbo.journal.journal_file import JournalError


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
        return f"{error.strerror}{where}."
    if isinstance(error, (JournalError, DataError, SQLAlchemyError, *more)):
        # Names to choose from, a line each.
        lines = [str(error).splitlines()[0], *getattr(error, "known", ())]
        return "\n  ".join(map(printable, lines))
    return ""


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

"""What a command says where something is refused: one line, no traceback."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper

import typer
from joblib.externals.loky.process_executor import TerminatedWorkerError
from sqlalchemy.exc import SQLAlchemyError

from flwr_fbo.datasets.base import DataError
from flwr_fbo.journal import JournalError


@contextmanager
def plain_errors(*more: type[Exception]) -> Iterator[None]:
    """Turn what the user or the machine got wrong into one line, and exit with 1.

    ``more`` are errors that are the user's in this block, and bugs elsewhere.
    """
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without "±"
    refused: tuple[type[Exception], ...]
    refused = (JournalError, DataError, SQLAlchemyError, *more)
    try:
        yield
    except TerminatedWorkerError:
        reason = "a worker process was killed, or ran out of memory."
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        reason = f"{error.strerror}{where}."
    except refused as error:
        reason = str(error).splitlines()[0]
    else:
        return
    typer.echo(f"Error: {reason}", err=True)
    raise typer.Exit(1)

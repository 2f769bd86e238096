"""A process of its own, killed at some instant, or before some statement of SQLite.

``FLWR_FBO_NUM_KILLS`` is the number of kills of each test: `tests/adversaries/kills.py`
sets it to 100.
"""

import multiprocessing
import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from typing import Any
from unittest.mock import patch

NUM_KILLS = int(os.environ.get("FLWR_FBO_NUM_KILLS", 25))


def killed_after(
    seconds: float | None, target: Callable[..., None], *arguments: Any
) -> bool:
    """Run ``target`` for so long at most; return whether it was killed.

    Anything else that ends it before its time is an error.
    """
    context = multiprocessing.get_context("fork")
    process = context.Process(target=target, args=arguments)
    process.start()
    process.join(seconds)
    process.kill()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


class _Dying(sqlite3.Connection):
    """A connection whose process is killed after so many statements of all of them."""

    executed = 0
    most: int | None = None

    def execute(self, *arguments: Any) -> Any:
        if _Dying.executed == _Dying.most:
            os.kill(os.getpid(), signal.SIGKILL)
        _Dying.executed += 1
        return super().execute(*arguments)


@contextmanager
def dying_after(most: int | None) -> Iterator[None]:
    """Kill this process once it has made so many statements of SQLite; None: never."""
    _Dying.executed, _Dying.most = 0, most
    connect = partial(sqlite3.connect, factory=_Dying)
    with patch.object(sqlite3, "connect", connect):
        yield


def _dying(
    most: int | None,
    told: Connection,
    target: Callable[..., None],
    arguments: tuple[Any, ...],
) -> None:
    with dying_after(most):
        target(*arguments)
    told.send(_Dying.executed)


def killed_in(
    most: int | None, target: Callable[..., None], *arguments: Any
) -> int | None:
    """Run ``target``, and kill it before it has made more than so many statements.

    However slow the machine is, the kill is within its work: before, between or after
    what it writes to journals and ledgers. Return None if it was killed, else how many
    statements it has made.
    """
    heard, told = multiprocessing.Pipe(duplex=False)
    with heard, told:
        if killed_after(None, _dying, most, told, target, arguments):
            return None
        executed: int = heard.recv()
        return executed

"""What a server says while it waits for a round's replies: who has answered so far."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from threading import Event, Thread
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid
from rich.console import Console

_log = logging.getLogger("flwr.fbo")

# Seconds between two lines of a log, in the first minute; later a twelfth of the time
# that has passed, so that a round of a night does not fill the log.
_PAUSE, _PART = 5.0, 1 / 12
_REDRAW = 0.5


class Waiting:
    """Tells how many have answered, from when it is made until it is closed.

    On a terminal in one line that moves; else in lines of the log, the first one after
    five seconds.

    Parameters
    ----------
    grid : Grid
        Whose replies are counted as they are pulled.
    what : str
        What is waited for, such as ``"round 3 of 41"``.
    num_asked : int
        Messages that were sent.
    """

    def __init__(self, grid: Grid, what: str, num_asked: int) -> None:
        self._grid, self._what, self._num_asked = grid, what, num_asked
        self._num_answered = 0
        self._began = time.monotonic()
        self._is_over = Event()
        self._pull = grid.pull_messages
        grid.pull_messages = self._counted  # type: ignore[method-assign]
        self._thread = Thread(target=self._tell, name="waiting", daemon=True)
        self._thread.start()

    @property
    def seconds(self) -> float:
        """How long it has been waiting."""
        return time.monotonic() - self._began

    def close(self) -> None:
        """Stop telling."""
        self._is_over.set()
        self._thread.join()
        self._grid.pull_messages = self._pull  # type: ignore[method-assign]

    def _counted(self, *args: Any, **options: Any) -> Iterable[Message]:
        replies = list(self._pull(*args, **options))
        self._num_answered += len(replies)
        return replies

    def _line(self) -> str:
        return (
            f"{self._what}: {self._num_answered} of {self._num_asked} agents have "
            f"answered, {self.seconds:.0f} s"
        )

    def _tell(self) -> None:
        console = Console(stderr=True)
        if not console.is_terminal:
            while not self._is_over.wait(max(_PAUSE, _PART * self.seconds)):
                _log.info("%s", self._line())
            return
        with console.status(self._line()) as status:
            while not self._is_over.wait(_REDRAW):
                status.update(self._line())


def duration(seconds: float) -> str:
    """Return about how long that is, for a person."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"

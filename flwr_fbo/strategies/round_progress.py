"""What a server says while it waits for a round's replies: who has answered so far."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from threading import Event, Thread
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid
from rich.console import Console

from flwr_fbo._common.text import agents_text

_log = logging.getLogger("flwr.fbo")

# Seconds before the first line of a log, and between two lines; later a twelfth of the
# time that has passed, so that a round of a night does not fill the log.
_FIRST_PAUSE, _PAUSE, _PART = 5.0, 60.0, 1 / 12
_REDRAW = 0.5


class Waiting:
    """Tells how many have answered and who is awaited, until it is closed.

    On a terminal in one line that moves; else in lines of the log: the first one after
    five seconds, and then one a minute at most.

    Parameters
    ----------
    grid : Grid
        Whose replies are counted as they are pulled.
    what : str
        What is waited for, such as ``"round 3 of 41"``.
    asked : sequence of (Message, int)
        What is sent, each with the slot of its agent.
    """

    def __init__(
        self, grid: Grid, what: str, asked: Sequence[tuple[Message, int]]
    ) -> None:
        self._grid, self._what, self._asked = grid, what, asked
        self._answered: set[str] = set()  # ids of messages
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
        self._answered |= {reply.metadata.reply_to_message_id for reply in replies}
        return replies

    def _line(self) -> str:
        # Messages have ids once they are sent.
        awaited = sorted(
            slot
            for message, slot in self._asked
            if message.metadata.message_id not in self._answered
        )
        num_asked = len(self._asked)
        line = (
            f"{self._what}: {num_asked - len(awaited)} of {num_asked} agents have "
            f"answered, {self.seconds:.0f} s"
        )
        return f"{line}; awaited: {agents_text(awaited)}" if awaited else line

    def _tell(self) -> None:
        console = Console(stderr=True)
        if not console.is_terminal:
            pause = _FIRST_PAUSE
            while not self._is_over.wait(pause):
                _log.info("%s", self._line())
                pause = max(_PAUSE, _PART * self.seconds)
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

"""What a server says of its rounds: who has answered so far, how it went, time left."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import Event, Thread
from typing import Any, Self

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid
from flwr.serverapp.exception import AggregationError
from rich.console import Console

from flwr_fbo._common.text import agents_text
from flwr_fbo.study.callbacks import Round

_log = logging.getLogger("flwr.fbo")

# Seconds before the first line of a log, and between two lines; later a twelfth of the
# time that has passed, so that a round of a night does not fill the log.
_FIRST_PAUSE, _PAUSE, _PART = 5.0, 60.0, 1 / 12
_REDRAW = 0.5
# Seconds between two pulls, if the grid does not say: a tenth of those that have
# passed, so that short exchanges of secure sums do not wait; at most as in Flower's.
_LEAST_PULL_PAUSE, _PULL_PAUSE, _PULL_PART = 0.25, 3.0, 1 / 10


class Waiting:
    """Tells how many have answered and who is awaited, within a ``with`` statement.

    On a terminal in one line that moves; else in lines of the log: the first one after
    five seconds, and then one a minute at most.

    Parameters
    ----------
    name : str
        Name of what is waited for, such as ``"round 3 of 41"``.
    asked : sequence of (Message, int)
        Messages that are sent, each with the slot of its agent.
    """

    def __init__(self, name: str, asked: Sequence[tuple[Message, int]]) -> None:
        self._name, self._asked = name, asked
        self._answered: set[str] = set()  # ids of messages
        self._began = time.monotonic()
        self._is_over = Event()
        self._thread = Thread(target=self._tell, name="waiting", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    @property
    def seconds(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._began

    def note(self, replies: Iterable[Message]) -> None:
        """Take note of replies that have come."""
        self._answered |= {reply.metadata.reply_to_message_id for reply in replies}

    def line(self) -> str:
        """Return what is told now."""
        # Messages have ids once they are sent.
        awaited = sorted(
            slot
            for message, slot in self._asked
            if message.metadata.message_id not in self._answered
        )
        num_asked = len(self._asked)
        line = (
            f"{self._name}: {num_asked - len(awaited)} of {num_asked} agents have "
            f"answered, {self.seconds:.0f} s"
        )
        return f"{line}; awaited: {agents_text(awaited)}" if awaited else line

    def _tell(self) -> None:
        console = Console(stderr=True)
        if not console.is_terminal:
            pause = _FIRST_PAUSE
            while not self._is_over.wait(pause):
                _log.info("%s", self.line())
                pause = max(_PAUSE, _PART * self.seconds)
            return
        with console.status(self.line()) as status:
            while not self._is_over.wait(_REDRAW):
                status.update(self.line())


@Grid.register
class ToldGrid:
    """A grid that tells, while replies to a named send are awaited, who has answered.

    The grid that it stands before is not changed. Replies are counted as they come
    where that grid sends with one of Flower's own loops: the same loop is played here,
    by its ``push_messages`` and ``pull_messages``. A grid with a loop of its own sends
    by that, and its replies are counted when all are there.

    Parameters
    ----------
    grid : Grid
        Grid that sends.
    slots : callable
        Returns the slot of each node, by node id.

    Attributes
    ----------
    send_name : str
        Name of the next send, such as ``"round 3 of 41"``; nothing is told of a send
        without one. It is empty again after the send.
    seconds : float
        Seconds that the last named send took.
    """

    def __init__(self, grid: Grid, slots: Callable[[], Mapping[int, int]]) -> None:
        self._grid, self._slots = grid, slots
        self.send_name, self.seconds = "", 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages, and return their replies."""
        asked = list(messages)
        name, self.send_name = self.send_name, ""
        if not name:
            return self._grid.send_and_receive(asked, timeout=timeout)
        slots = self._slots()
        by_slot = [(message, slots[message.metadata.dst_node_id]) for message in asked]
        with Waiting(name, by_slot) as waiting:
            try:
                return self._awaited(asked, timeout, waiting)
            finally:
                self.seconds = waiting.seconds

    def _awaited(
        self, messages: list[Message], timeout: float | None, waiting: Waiting
    ) -> list[Message]:
        """Send messages; return their replies, which are counted as they come."""
        if not self._grid.send_and_receive.__module__.startswith("flwr."):
            replies = list(self._grid.send_and_receive(messages, timeout=timeout))
            waiting.note(replies)
            return replies
        awaited = set(self._grid.push_messages(messages))
        end = time.monotonic() + (timeout or 0.0)
        replies = []
        while timeout is None or time.monotonic() < end:
            new = list(self._grid.pull_messages(awaited))
            waiting.note(new)
            replies += new
            awaited -= {reply.metadata.reply_to_message_id for reply in new}
            if not awaited:
                break
            part = max(_LEAST_PULL_PAUSE, _PULL_PART * waiting.seconds)
            pause = min(part, _PULL_PAUSE)
            time.sleep(getattr(self._grid, "pull_interval", pause))
        return replies


class RoundLog:
    """Log of a study's rounds: how each one went, and how long the others will take.

    Parameters
    ----------
    study_id : str
        Name of the study.
    num_rounds : int
        Number of rounds of the whole study.
    max_empty_rounds : int
        Number of rounds in a row, >= 1, without any result after which it raises.
    """

    def __init__(self, study_id: str, num_rounds: int, max_empty_rounds: int) -> None:
        self._study_id, self._num_rounds = study_id, num_rounds
        self._max_empty_rounds = max_empty_rounds
        self._seconds: list[float] = []  # that each round of this run has taken
        self._num_empty = 0  # rounds in a row without a result

    def name_of(self, number: int) -> str:
        """Return how the log names a round."""
        return f"round {number} of {self._num_rounds} of study {self._study_id}"

    def end_round(
        self,
        finished: Round,
        seconds: float,
        num_exchanges: int,
        *,
        failures: Sequence[str],
        late: Sequence[int],
        absent: Sequence[int],
    ) -> None:
        """Log how a round went.

        Parameters
        ----------
        finished : Round
            Counts of the round.
        seconds : float
            Seconds that its replies took.
        num_exchanges : int
            Number of exchanges, >= 0, that secure sums still take, besides rounds.
        failures : sequence of str
            A line for each reply that is of no use: whose it is, and why.
        late, absent : sequence of int
            Slots of agents that did not answer in time, or were not there to be asked.

        Raises
        ------
        AggregationError
            If it is the last empty round that is allowed.
        """
        self._seconds.append(seconds)
        number, num_answered = finished.server_round, finished.answered
        counts = finished.failed, finished.late, finished.absent
        num_agents = num_answered + sum(counts)
        num_left = self._num_rounds - number + num_exchanges
        _log.info(
            "%s: %d of %d agents answered in %s (%d failed, %d late, %d absent), about "
            "%s left",
            self.name_of(number),
            num_answered,
            num_agents,
            duration(seconds),
            *counts,
            duration(num_left * float(np.mean(self._seconds))),
        )
        lines = sorted(failures)
        lines += [f"agent {slot}: no reply in time" for slot in sorted(late)]
        if absent:
            lines.append(f"absent: {agents_text(sorted(absent))}")
        for line in lines:
            _log.warning("\t> %s", line)
        self._num_empty = 0 if num_answered else self._num_empty + 1
        if self._num_empty < self._max_empty_rounds:
            return
        first_failure = min(failures, default="").removesuffix(".")
        failure = f" First failure: {first_failure}." if failures else ""
        empty = self._num_empty
        rounds = f" (after {empty} such rounds)" if empty > 1 else ""
        raise AggregationError(
            f"Round {number}: none of {num_agents} agents gave a result ({counts[0]} "
            f"failed, {counts[1]} late, {counts[2]} absent){rounds}.{failure}"
        )


def duration(seconds: float) -> str:
    """Return about how long that is, for a person."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"

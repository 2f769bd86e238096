"""Sends of several threads of one `main`, as one: a thread a client, as they have it.

A `Server` of `flwr.server` asks each client in a thread of its own. All of them
together are one round.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Condition, Event, Lock, current_thread

from flwr.app import Message

from flwr_fbo._compat import frame_of

# Seconds without another send after which those that came are all, where it cannot be
# seen how many threads are at work; and where it can, but some do something else.
_QUIET, _PATIENCE = 0.05, 60.0
_POOLS = "concurrent.futures"

Send = Callable[[list[Message], float | None], list[Message]]


@dataclass(eq=False)
class _Call:
    """The send of one thread."""

    messages: list[Message]
    timeout: float | None
    replies: list[Message] = field(default_factory=list)
    error: BaseException | None = None
    is_done: Event = field(default_factory=Event)


class GatheredSends:
    """Joins what threads of a pool send at the same time, and hands out the replies.

    Parameters
    ----------
    send : callable
        Function from messages of one type, and a timeout, to their replies.

    Attributes
    ----------
    error : BaseException or None
        Error that the first send of such a thread has raised. Flower counts it as a
        client that has failed, and goes on.
    """

    def __init__(self, send: Send) -> None:
        self.error: BaseException | None = None
        self._send = send
        self._owner = current_thread()
        self._is_sending = Lock()
        self._changed = Condition()
        self._waiting: list[_Call] = []

    @property
    def is_own_thread(self) -> bool:
        """Whether this is the thread of `main` itself."""
        return current_thread() is self._owner

    def send(self, messages: list[Message], timeout: float | None) -> list[Message]:
        """Return the replies to some messages."""
        if self.is_own_thread:
            return self._send(messages, timeout)
        call = _Call(messages, timeout)
        with self._changed:
            self._waiting.append(call)
            is_first = len(self._waiting) == 1
            self._changed.notify_all()
        if is_first:
            with self._is_sending:
                self._send_all(self._gathered())
        call.is_done.wait()
        if call.error is not None:
            self.error = self.error or call.error
            raise call.error
        return call.replies

    def _gathered(self) -> list[_Call]:
        """Return what all threads send that are at work."""
        last = time.monotonic()
        with self._changed:
            while True:
                num, at_work = len(self._waiting), self._num_at_work()
                if at_work is not None and num >= at_work:
                    break
                limit = _QUIET if at_work is None else _PATIENCE
                if time.monotonic() - last > limit:
                    break
                self._changed.wait(_QUIET / 10)
                if len(self._waiting) > num:
                    last = time.monotonic()
            calls, self._waiting = self._waiting, []
        return calls

    def _num_at_work(self) -> float | None:
        """Return how many threads of a pool `main` waits for; None: it is not known.

        By what its frames show: it hands out work, or waits for futures.
        """
        assert self._owner.ident is not None
        frame = frame_of(self._owner.ident)
        while frame is not None:
            if str(frame.f_globals.get("__name__", "")).startswith(_POOLS):
                if frame.f_code.co_name == "submit":
                    return math.inf
                futures = frame.f_locals.get("fs")
                if isinstance(futures, list | set | frozenset):
                    found = [item for item in futures if isinstance(item, Future)]
                    return sum(future.running() for future in found)
            frame = frame.f_back
        return None

    def _send_all(self, calls: list[_Call]) -> None:
        """Send what was gathered, in one send of each type."""
        by_type: dict[str, list[_Call]] = {}
        for call in calls:
            kind = call.messages[0].metadata.message_type
            by_type.setdefault(kind, []).append(call)
        for joined in by_type.values():
            timeouts = [c.timeout for c in joined if c.timeout is not None]
            # A client that may take as long as it likes must not be cut off by another.
            timeout = max(timeouts) if len(timeouts) == len(joined) else None
            asked = [message for call in joined for message in call.messages]
            # Threads come in any order; what follows from a send must not.
            asked.sort(key=lambda message: message.metadata.dst_node_id)
            try:
                replies = self._send(asked, timeout)
            except BaseException as error:  # whatever it is: each thread has to end
                for call in joined:
                    call.error = error
            else:
                for call in joined:
                    call.replies = [r for r in replies if _answers(r, call.messages)]
        for call in calls:
            call.is_done.set()


def _answers(reply: Message, messages: list[Message]) -> bool:
    """Return whether a reply is to one of some messages."""
    if reply.metadata.reply_to_message_id:  # of an error the node may be wrong
        ids = {message.metadata.message_id for message in messages}
        return reply.metadata.reply_to_message_id in ids
    nodes = {message.metadata.dst_node_id for message in messages}
    return reply.metadata.src_node_id in nodes

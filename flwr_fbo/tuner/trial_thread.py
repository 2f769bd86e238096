"""A trial: the user's `main` in a thread that runs only while it is its turn."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Event, Thread
from typing import NoReturn

from flwr.app import Message, MessageType

from flwr_fbo.tuner.turn_state import TurnState

# What a trial's thread is called, with its number.
THREAD_NAME = "trial-"

# Sends of a `main` that is to end that are refused before it is left alone.
_MOST_REFUSALS = 5

_log = logging.getLogger("flwr.fbo")


class TrialEnd(BaseException):
    """Ends the `main` of a trial that did not survive; few apps catch such a thing."""


@dataclass(frozen=True)
class Send:
    """What a trial waits for the replies to.

    Attributes
    ----------
    messages : list of Message
        At least one, all of one type.
    timeout : float or None
        In seconds.
    """

    messages: list[Message]
    timeout: float | None

    @property
    def message_type(self) -> str:
        """The type of all messages."""
        return self.messages[0].metadata.message_type

    @property
    def is_evaluate(self) -> bool:
        """Whether clients evaluate, rather than train."""
        return self.message_type.startswith(MessageType.EVALUATE)


class TrialThread:
    """One trial. Its thread and the tuner's run in turn, never at once.

    A trial that waits keeps its model in memory.

    Parameters
    ----------
    number : int
        From 0.
    run : callable
        Called once, in the thread, with a function from `Send` to replies.
    state : TurnState
        That of the process in its turns.

    Attributes
    ----------
    pending : Send or None
        What it waits for; None before it begins, and once it has ended.
    error : Exception, SystemExit or None
        What ended it, unless it came to its end.
    num_sends, num_train, num_evaluate : int
        Sends that were answered: all, and by kind.
    """

    def __init__(
        self,
        number: int,
        run: Callable[[Callable[[Send], list[Message]]], None],
        state: TurnState,
    ) -> None:
        self.number = number
        self.pending: Send | None = None
        self.error: Exception | SystemExit | None = None
        self.num_sends = self.num_train = self.num_evaluate = 0
        self._was_evaluate = False
        self._run = run
        self._state = state
        self._is_ending = False
        self._num_refused = 0
        self._thread = Thread(
            target=self._work, name=f"{THREAD_NAME}{number}", daemon=True
        )
        self._requests: SimpleQueue[Send | None] = SimpleQueue()
        self._replies: SimpleQueue[list[Message]] = SimpleQueue()

    def begin(self) -> None:
        """Run until it first waits, unless it has begun."""
        if self._thread.ident is None:
            self._turn(self._thread.start)

    def answer(self, replies: list[Message]) -> None:
        """Hand over the replies it waits for, and run until it waits again."""
        assert self.pending is not None
        self._was_evaluate = self.pending.is_evaluate
        self.num_sends += 1
        self.num_evaluate += self._was_evaluate
        self.num_train += not self._was_evaluate
        self._turn(lambda: self._replies.put(replies))

    def end(self) -> None:
        """Have its `main` end, if it has not; one that will not is stopped for ever."""
        self._is_ending = True
        if self.pending is not None:
            self._turn(lambda: self._replies.put([]))

    @property
    def has_ended(self) -> bool:
        """Whether its `main` has come to an end."""
        return self._thread.ident is not None and self.pending is None

    @property
    def failure(self) -> Exception | SystemExit | None:
        """Why there is nothing to compare it by: its error, or no evaluation."""
        if self.error is not None or self.num_evaluate > 0:
            return self.error
        return ValueError(
            f"main asks no client to evaluate in {self.num_train} rounds: without "
            "federated evaluation there is nothing to compare trials by (FedAvg: "
            "fraction_evaluate > 0)."
        )

    def has_reached(self, rounds: int) -> bool:
        """Return whether it was evaluated after so many rounds, or has ended.

        One that trains on after so many rounds, and has never been evaluated, is not
        waited for.
        """
        if self.pending is None:
            return self.has_ended
        trains_on = self.num_evaluate == 0 and not self.pending.is_evaluate
        return self.num_train >= rounds and (self._was_evaluate or trains_on)

    def _turn(self, wake: Callable[[], None]) -> None:
        """Let the thread run, with its own state, until it waits or ends."""
        with self._state.in_place():
            wake()
            self.pending = self._requests.get()

    def _work(self) -> None:
        try:
            self._run(self._send)
        except TrialEnd:
            pass
        except (Exception, SystemExit) as error:
            self.error = error
        finally:
            self._requests.put(None)

    def _send(self, send: Send) -> list[Message]:
        """Wait for replies, in the thread."""
        if not self._is_ending:
            self._requests.put(send)
            replies = self._replies.get()
        if self._is_ending:
            self._refuse()
        return replies

    def _refuse(self) -> NoReturn:
        """End `main`, in the thread; stop here if it catches that again and again."""
        self._num_refused += 1
        if self._num_refused < _MOST_REFUSALS:
            raise TrialEnd
        _log.warning(
            "main catches all exceptions, also the one that ends trial %d: its thread "
            "is stopped, and keeps its memory until the process ends. Does it have a "
            "bare except, or one of BaseException?",
            self.number,
        )
        self._requests.put(None)
        while True:
            Event().wait()

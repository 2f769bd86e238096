"""A trial: the user's `main` in a thread that runs only while it is its turn."""

from __future__ import annotations

import logging
import math
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Thread, current_thread
from typing import Any, NoReturn

import numpy as np
from flwr.app import Message, MessageType

from flwr_fbo._compat import clients_waited_for
from flwr_fbo.tuner.trials.parked_arrays import ParkedArrays

# What a trial's thread is called, with its number.
THREAD_NAME = "trial-"
# That of the trial which is trained to its end, as the app's own training.
CHOSEN_TRIAL = "chosen trial"

# Sends of a `main` that is to end that are refused before it is left alone.
_MOST_REFUSALS = 5
_MT19937_WORDS = 8
# Seconds after which a thread that does not send is looked at.
_SECONDS_A_LOOK = 2.0

_log = logging.getLogger("flwr.fbo")

# Takes messages and a timeout in seconds; returns the replies.
Send = Callable[[list[Message], float | None], list[Message]]


class TrialEnd(BaseException):
    """Ends the `main` of a trial that did not survive; few apps catch such a thing."""


class EvaluationFailedError(RuntimeError):
    """A trial has no score: all clients that answered failed to evaluate it."""


class TrialThread:
    """One trial. Its thread and the tuner's run in turn, never at once.

    A trial that waits keeps the variables of its `main` in memory; the arrays of its
    messages can be put away. In its turns the process has the trial's own random states
    and working directory.

    The random states are drawn from those of the process, which move on. Two trials
    with the same states would train with the same noise; where that noise protects the
    clients, the difference of the two models would have none.

    Parameters
    ----------
    number : int
        Number of the trial, from 0.
    run : callable
        Called once, in the thread, with a function from messages to replies.
    folder : Path or None
        The working directory that it begins with, which is made anew. None: it has none
        of its own, and works where the process does.
    parked : ParkedArrays
        Arrays of all trials that are on disk.
    clients_score : bool
        Whether a trial is scored by clients that evaluate it; else by the server.
    most_clients : int, optional
        All clients that there will ever be; None: others may come.

    Attributes
    ----------
    pending : list of Message
        Messages whose replies it waits for, all of one type; empty before it begins,
        and once it has ended.
    num_bytes : int
        Size of the arrays in these messages.
    timeout : float or None
        Seconds that it waits; None: as long as it takes.
    is_held : bool
        Whether it waits for the next rung: see `hold`.
    returned : Any
        Value that its `main` has returned.
    error : Exception, SystemExit or None
        Error that ended it, unless it came to its end.
    num_sends, num_train : int
        Sends that were answered, and rounds of training that are complete.
    num_scores : int
        Number of scores after training: by an answered evaluation at the
        clients, or by the server.
    server_score : float
        The last score of the server; NaN before there is one.
    last_error : str
        Error that clients gave in place of their scores, if all failed to evaluate it
        last.
    """

    def __init__(
        self,
        number: int,
        run: Callable[[Send], Any],
        folder: Path | None,
        parked: ParkedArrays,
        clients_score: bool = True,
        most_clients: int | None = None,
    ) -> None:
        self.number = number
        self.pending: list[Message] = []
        self.num_bytes = 0
        self.timeout: float | None = None
        self.is_held = False
        self.returned: Any = None
        self.error: Exception | SystemExit | None = None
        self.num_sends = self.num_train = self.num_scores = 0
        self.server_score = math.nan
        self.last_error = ""
        # Whether clients were asked to train, whatever came of it.
        self._was_trained = False
        # Whether it was scored since it was trained last.
        self._is_scored = False
        # Type and group of the send that was answered last: a round may have several.
        self._last_round = ("", "")
        self._clients_score = clients_score
        self._most_clients = most_clients
        self._run = run
        self._random_states = _drawn_states()
        self._folder = self._first_folder = folder
        if folder is not None:
            if folder.exists():
                shutil.rmtree(folder)
            folder.mkdir(parents=True)
        self._parked = parked
        self._is_ending = False
        self._num_refused = 0
        self._thread = Thread(
            target=self._work, name=f"{THREAD_NAME}{number}", daemon=True
        )
        # None in place of messages: it is held.
        self._requests: SimpleQueue[tuple[list[Message] | None, float | None]] = (
            SimpleQueue()
        )
        self._replies: SimpleQueue[list[Message]] = SimpleQueue()

    def begin(self) -> None:
        """Run until it first waits for replies, unless it has begun; go on if held."""
        if self._thread.ident is None:
            self._turn(self._thread.start)
        elif self.is_held:
            self._turn(lambda: self._replies.put([]))

    def hold(self, rounds: int) -> None:
        """Wait, in the thread, if it was scored after so many rounds.

        For the next rung: who trains it then is not known before.
        """
        if current_thread() is not self._thread:
            return
        is_done = self.num_train >= rounds and self._is_scored
        if not is_done and not self._is_ending:
            return
        if not self._is_ending:
            self._requests.put((None, None))
            self._replies.get()
        if self._is_ending:
            self._refuse()

    def skip(self) -> None:
        """Have an evaluation answered by nobody, and run until it waits again."""
        self._turn(lambda: self._replies.put([]))

    def come_forward(self) -> None:
        """Become the app's own training, and no more one of many trials.

        It logs as such, has all its arrays, and works where the process does, with the
        files that it has written.
        """
        self._thread.name = CHOSEN_TRIAL
        self._parked.bring_back(self.number)
        if self._folder is None:
            return
        assert self._first_folder is not None
        shutil.copytree(self._first_folder, Path.cwd(), dirs_exist_ok=True)
        self._folder = None

    def answer(self, replies: list[Message]) -> None:
        """Hand over the replies it waits for, and run until it waits again."""
        self.num_sends += 1
        self._last_round = self.pending_type, self.pending[0].metadata.group_id
        if self.pending_type.startswith(MessageType.TRAIN):
            self._was_trained, self._is_scored = True, False
        elif self.waits_for_evaluate and self._clients_score:
            self._is_scored = True
            self.num_scores += 1
        self._turn(lambda: self._replies.put(replies))

    def note_round(self) -> None:
        """Count a round of training that is complete, in the thread."""
        self._was_trained, self._is_scored = True, False
        self.num_train += 1

    @property
    def goes_on(self) -> bool:
        """Whether it waits for more of the round that was answered last.

        Servers of `flwr.server` may ask a few clients at a time. They name the round in
        the group of a message; strategies of the Message API do not.
        """
        if not self.pending:
            return False
        group = self.pending[0].metadata.group_id
        return group != "" and (self.pending_type, group) == self._last_round

    def note_score(self, score: float) -> None:
        """Note a score of the server; one from before any training is none."""
        if self.num_train > 0:
            self.server_score = score
            self._is_scored = True
            self.num_scores += 1

    def end(self) -> None:
        """Have its `main` end, if it has not; one that will not is stopped for ever."""
        self._is_ending = True
        if self.pending or self.is_held:
            self._turn(lambda: self._replies.put([]))

    @property
    def pending_type(self) -> str:
        """The type of the messages whose replies it waits for."""
        return self.pending[0].metadata.message_type

    @property
    def waits_for_evaluate(self) -> bool:
        """Whether it waits for clients to evaluate."""
        return bool(self.pending) and is_evaluation(self.pending)

    @property
    def has_ended(self) -> bool:
        """Whether its `main` has come to an end."""
        has_begun = self._thread.ident is not None
        return has_begun and not self.pending and not self.is_held

    @property
    def failure(self) -> Exception | SystemExit | None:
        """The reason why it has no score: its error, or that nobody scores it."""
        if self.error is None and self._was_trained and self.num_train == 0:
            return RuntimeError(
                "Flower's secure aggregation halted in every round: too few clients "
                "answered in one of its stages"
            )
        if self.error is None and self.last_error:
            return EvaluationFailedError(f"no client can evaluate: {self.last_error}")
        if self.error is not None or self.num_scores > 0:
            return self.error
        if not self._clients_score:
            return ValueError(
                f"there is no score of the server in {self.num_train} rounds: give the "
                "strategy an evaluate_fn that has the metric; a loop of the app's own "
                "calls server_score(grid, evaluate_fn)."
            )
        return ValueError(
            f"the server asks no client to evaluate in {self.num_train} rounds: "
            "without federated evaluation there is nothing to compare trials by "
            "(FedAvg: "
            'fraction_evaluate > 0), unless the server scores them: score="server".'
        )

    def has_reached(self, rounds: int) -> bool:
        """Return whether it was scored after so many rounds, or has ended.

        One that trains on after so many rounds, and has never been scored, is not
        waited for.
        """
        if self.is_held:
            return self.num_train >= rounds
        if not self.pending:
            return self.has_ended
        if self.goes_on:
            return False
        trains_on = self.num_scores == 0 and not self.waits_for_evaluate
        return self.num_train >= rounds and (self._is_scored or trains_on)

    def put_away(self) -> None:
        """Put the arrays of its messages on disk, as it will wait for a while."""
        self._parked.put_away(self.number)

    def prepare(self) -> None:
        """Have those arrays in memory that are sent next, and no others."""
        self._parked.bring_back(self.number)
        self._parked.put_away(self.number, but=self.pending)

    def _turn(self, wake: Callable[[], None]) -> None:
        """Let the thread run, with its own state, until it waits or ends."""
        self._parked.bring_back(self.number)
        states = random_states()
        folder = None if self._folder is None else Path.cwd()
        restore_random_states(self._random_states)
        _go_to(self._folder)
        try:
            wake()
            pending, self.timeout = self._next_request()
        finally:  # what has become of its state is kept, and the process has its own
            self._random_states = random_states()
            if self._folder is not None:
                with suppress(FileNotFoundError):  # a trial may have removed its own
                    self._folder = Path.cwd()
            restore_random_states(states)
            _go_to(folder)
        self.pending, self.is_held = pending or [], pending is None
        self.num_bytes = self._parked.note(self.number, self.pending)

    def _next_request(self) -> tuple[list[Message] | None, float | None]:
        """Return what it waits for next, once it does."""
        while True:
            with suppress(Empty):
                return self._requests.get(timeout=_SECONDS_A_LOOK)
            # A server of `flwr.server` waits a day for clients, and cannot be woken.
            num = clients_waited_for(self._thread.ident or 0)
            if self._most_clients is not None and (num or 0) > self._most_clients:
                self.error = RuntimeError(
                    f"the server waits for {num} clients, and {self._most_clients} are "
                    "all that there are: min_available_clients and its like"
                )
                return [], None

    def _work(self) -> None:
        try:
            self.returned = self._run(self._send)
        except TrialEnd:
            pass
        except (Exception, SystemExit) as error:
            if not self._is_ending:  # a strategy may fail without its last replies
                self.error = error
        finally:
            self._requests.put(([], None))

    def _send(self, messages: list[Message], timeout: float | None) -> list[Message]:
        """Wait for replies, in the thread."""
        if not self._is_ending:
            self._requests.put((messages, timeout))
            replies = self._replies.get()
        if self._is_ending:
            self._refuse()
        return replies

    def _refuse(self) -> NoReturn:
        """End `main`, in the thread; stop here if it catches that again and again.

        Not in a thread of a pool: the process would wait for that for ever.
        """
        if current_thread() is not self._thread:
            raise TrialEnd
        self._num_refused += 1
        if self._num_refused < _MOST_REFUSALS:
            raise TrialEnd
        _log.warning(
            "The server catches all exceptions, also the one that ends trial %d: its "
            "thread is stopped, and keeps its memory until the process ends. Does it "
            "have a bare except, or one of BaseException?",
            self.number,
        )
        self._requests.put(([], None))
        while True:
            Event().wait()


def is_evaluation(messages: Sequence[Message]) -> bool:
    """Return whether clients are to evaluate: of messages of one type."""
    return messages[0].metadata.message_type.startswith(MessageType.EVALUATE)


def for_others(messages: Sequence[Message], nodes: Iterable[int]) -> list[Message]:
    """Return what all are sent alike for other nodes; nothing where it differs."""
    first, asked = messages[0], {m.metadata.dst_node_id for m in messages}
    for message in messages:  # `flwr.server` makes a content for each client
        is_same = message.content is first.content or message.content == first.content
        if not is_same:
            return []
    metadata = first.metadata
    return [
        Message(first.content, node, metadata.message_type, ttl=metadata.ttl)
        for node in nodes
        if node not in asked
    ]


def random_states() -> tuple[Any, ...]:
    """Return the states of Python's, NumPy's and, once imported, PyTorch's generators.

    The last two are PyTorch's: None where it is not imported, or CUDA is not in use.
    """
    numpy = np.random.get_state()  # noqa: NPY002 (the user's code draws there)
    torch = sys.modules.get("torch")
    on_gpu = torch is not None and torch.cuda.is_initialized()
    return (
        random.getstate(),
        numpy,
        torch and torch.get_rng_state(),
        torch.cuda.get_rng_state_all() if torch and on_gpu else None,
    )


def restore_random_states(states: tuple[Any, ...]) -> None:
    """Make them the states of the process."""
    python, numpy, cpu, gpu = states
    random.setstate(python)
    np.random.set_state(numpy)  # noqa: NPY002
    torch = sys.modules.get("torch")
    if torch and cpu is not None:
        torch.set_rng_state(cpu)
    if torch and gpu is not None:
        torch.cuda.set_rng_state_all(gpu)


def _drawn_states() -> tuple[Any, ...]:
    """Return states that are drawn from those of the process."""
    python = random.getrandbits(128)
    numpy = np.random.randint(0, 2**32, _MT19937_WORDS, np.uint32)  # noqa: NPY002
    torch = sys.modules.get("torch")
    seed = int(torch.randint(2**62, ()).item()) if torch else 0
    before = random_states()
    random.seed(python)
    np.random.seed(numpy)  # noqa: NPY002
    if torch:
        torch.manual_seed(seed)  # CUDA's generators too
    drawn = random_states()
    restore_random_states(before)
    return drawn


def _go_to(folder: Path | None) -> None:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)  # a trial may have removed its own
        os.chdir(folder)

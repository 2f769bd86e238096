"""The Grids that the user's `main` gets: of a trial, and of the training after it."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, NoReturn, ParamSpec, TypeVar

import numpy as np
from flwr.app import Array, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from flwr_fbo._common.validation import require
from flwr_fbo._compat import (
    RunNotRunningException,
    SecureAggregationStage,
    asked_sample_size,
    secure_aggregation_stage,
)
from flwr_fbo.tuner.envelope import HEADER, SettingsHeader, header_record
from flwr_fbo.tuner.trial_thread import Send

_KNOWN_TYPES = (
    "train or evaluate: of others it is not known what is private (a strategy of "
    "flwr.server asks for parameters unless it has initial_parameters)"
)

# What a user's ServerApp has as its main.
Main = Callable[[Grid, Context], Any]
# From a Grid and the number of a round of training to the nodes that a trial has then,
# and how many of them train at least.
Share = Callable[[Grid, int], tuple[Sequence[int], int]]

_log = logging.getLogger("flwr.fbo")

P = ParamSpec("P")
R = TypeVar("R")


# Sends of type train in which clients train; and a round of them begins with these.
_TRAINING = None, SecureAggregationStage.COLLECT_MASKED_VECTORS
_FIRST = None, SecureAggregationStage.SETUP


class TrainingFailedError(RuntimeError):
    """A trial has no model to compare: its training diverged, or no client trained."""


@Grid.register
class TrialGrid:
    """The Grid of one trial, whose sends are shared with other trials.

    Everything else is left to the Grid that it stands for. It ends a trial whose
    training fails: the model is no longer finite, or all clients that answered reported
    an error. Flower's strategies would go on with the model of the round before, or
    with NaN.

    Parameters
    ----------
    grid : Grid
    send : callable
        From messages and a timeout to the replies.
    is_hidden : bool
        Whether the clients' metrics stay at the clients.
    note : callable
        Gets the metrics of each evaluation by the server.
    share : callable, optional
        Says which nodes `main` sees, and how many of them train in a round at least:
        only so many models are aggregated. None: it sees all.
    sample_seed : int, optional
        Of the nodes that Flower's strategies draw. Trials with the same one train with
        the same clients in the same rounds, and so differ less by chance. Their other
        random numbers are their own.
    """

    def __init__(
        self,
        grid: Grid,
        send: Send,
        is_hidden: bool,
        note: Callable[[Any], None],
        share: Share | None = None,
        sample_seed: int | None = None,
    ) -> None:
        self.note = note
        self._sample_seed = sample_seed
        self._num_sends = 0
        self._grid = grid
        self._send = send
        self._is_hidden = is_hidden
        # Rounds of training so far, and each node's arrays while none were sent since.
        # Some strategies take them out of the replies.
        self._round = 0
        self._trained: dict[int, list[tuple[str, Array]]] = {}
        # The replies of the last round of training.
        self._replies: list[Message] = []
        # Arrays that may hold NaN or inf from the start, as a mask does, are not in it.
        self._finite_arrays: set[str] = set()
        # Whether the clients' models are masked, so that NaN cannot be seen in them.
        self._is_masked = False
        self._is_closed = False
        self._share = share
        # The nodes that `main` was given last, and how many of them train.
        self._seen: set[int] = set()
        self._min_clients = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def close(self) -> None:
        """Tell threads that `main` has left behind that its run is over."""
        self._is_closed = True

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the nodes that may train the trial in the next round.

        Raises
        ------
        RunNotRunningException
            After `close`. It ends the thread that watches nodes in Flower's
            `DefaultWorkflow`, which would go on if an exception ended the workflow.
        """
        if self._is_closed:
            raise RunNotRunningException
        nodes: Iterable[int]
        if self._share is None:
            nodes = self._grid.get_node_ids()
        else:
            nodes, self._min_clients = self._share(self._grid, self._round + 1)
            self._seen = set(nodes)
        size = asked_sample_size()
        if self._sample_seed is None or size is None:
            return nodes
        return _ordered(list(nodes), size, f"{self._sample_seed} {self._num_sends}")

    def push_messages(self, messages: Iterable[Message]) -> NoReturn:
        """Refuse: replies that are pulled one by one cannot be shared.

        Raises
        ------
        NotImplementedError
            Always.
        """
        raise NotImplementedError(
            "A trial of FederationTuner needs grid.send_and_receive, as Flower's "
            "strategies use it; main uses push_messages."
        )

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Return the replies, once the trial's turn has come.

        Raises
        ------
        ValueError
            If the messages are of several types, or of one that is neither ``train``
            nor ``evaluate``; or if the strategy has made a model of NaN from finite
            ones while metrics stay at the clients.
        TrainingFailedError
            If training diverged, or all clients that answered failed to train.
        """
        self._num_sends += 1
        asked = list(messages)
        if not asked:
            return []
        kinds = {message.metadata.message_type for message in asked}
        require(len(kinds) == 1, "message_type", sorted(kinds), "one a send")
        kind = kinds.pop()
        is_known = kind.split(".")[0] in (MessageType.TRAIN, MessageType.EVALUATE)
        require(is_known, "message_type", kind, _KNOWN_TYPES)
        finite, others = _by_finiteness(_arrays_of(asked[0]))
        if not self._finite_arrays.isdisjoint(others):
            self._raise_diverged()
        self._finite_arrays |= finite
        self._trained = {}
        is_train = kind.startswith(MessageType.TRAIN)
        if is_train and self._share is not None:
            self._check_nodes({message.metadata.dst_node_id for message in asked})
        stage = secure_aggregation_stage(asked[0].content)
        if is_train:
            self._round += stage in _FIRST
            self._is_masked = stage is not None
            # Flower's strategies have used them, and keep them until they get others:
            # a trial that waits would hold the models of all clients.
            for reply in self._replies:
                if reply.has_content():
                    reply.content = RecordDict()
        replies = self._send(asked, timeout)
        if is_train:
            self._replies = replies
            self._trained = {
                reply.metadata.src_node_id: _arrays_of(reply)
                for reply in replies
                if reply.has_content()
            }
            if 0 < len(self._trained) < self._min_clients:
                # A mean of fewer models shows more of each to all who evaluate it.
                replies = [reply for reply in replies if reply.has_error()]
                self._replies, self._trained = replies, {}
                _log.warning(
                    "fewer than min_clients=%d clients could train in round %d: the "
                    "model stays as it was",
                    self._min_clients,
                    self._round,
                )
                return replies
            # A protocol that fails halts the round: the model is what it was.
            if replies and not self._trained and stage in (*_FIRST, *_TRAINING):
                raise TrainingFailedError(
                    f"no client could train in round {self._round}: "
                    f"{replies[-1].error.reason}"
                )
        return replies

    def _check_nodes(self, asked: set[int]) -> None:
        """Raise RuntimeError if `main` does not keep to its share of the clients."""
        if not asked <= self._seen:
            raise RuntimeError(
                f"main asks clients in round {self._round + 1} that are not its share: "
                "grid.get_node_ids() returns it, anew in each round, as Flower's "
                "strategies call it. Halving needs no shares."
            )
        if len(asked) < self._min_clients:
            raise RuntimeError(
                f"main asks {len(asked)} clients in round {self._round + 1}, and "
                f"min_clients={self._min_clients}."
            )

    def check_error(self, error: Exception) -> None:
        """Raise `TrainingFailedError` if clients' models of NaN explain an error."""
        is_known = isinstance(error, TrainingFailedError)
        if not is_known and self._diverged_nodes():
            raise TrainingFailedError(self._diverged()) from error

    def _raise_diverged(self) -> NoReturn:
        is_known = self._is_masked or self._diverged_nodes()
        if self._is_hidden and not is_known:
            allowed = (
                "finite, as the clients' models are. Either training diverged in round "
                f"{self._round} at the server, or the strategy uses metrics that stay "
                "at the clients, as QFedAvg their training loss"
            )
            require(False, "model", math.nan, allowed)
        raise TrainingFailedError(self._diverged())

    def _diverged(self) -> str:
        """Return in which round training diverged, and where."""
        nodes = self._diverged_nodes()
        models = "masked" if self._is_masked else "finite"
        where = f"at the server; the clients' models are {models}"
        if nodes:
            where = f"at {len(nodes)} of {len(self._trained)} clients"
        if 0 < len(nodes) < len(self._trained):
            where += f", nodes {nodes}"
        return f"training diverged in round {self._round} {where}"

    def _diverged_nodes(self) -> list[int]:
        """Return the nodes whose models of the last round are not finite."""
        return [
            node
            for node, arrays in self._trained.items()
            if not self._finite_arrays.isdisjoint(_by_finiteness(arrays)[1])
        ]


def server_score(grid: Grid, evaluate_fn: Callable[P, R]) -> Callable[P, R]:
    """Return an ``evaluate_fn`` whose metrics score a trial of `FederationTuner`.

    With ``FederationTuner(..., score="server")`` the last of them is a trial's score.
    Outside of trials it is ``evaluate_fn`` as it is.

    Examples
    --------
    >>> from flwr.app import MetricRecord
    >>> from flwr_fbo import InProcessGrid, server_score
    >>> def global_evaluate(server_round, arrays):
    ...     return MetricRecord({"accuracy": 0.9})  # your own, on the server's data
    >>> def main(grid, context):
    ...     evaluate_fn = server_score(grid, global_evaluate)
    ...     ...  # FedAvg().start(grid, arrays, num_rounds, evaluate_fn=evaluate_fn)

    Parameters
    ----------
    grid : Grid
        That `main` gets.
    evaluate_fn : callable
        Returns metrics, or None; its parameters are as Flower's strategies give them.
    """
    if not isinstance(grid, TrialGrid):
        return evaluate_fn
    note = grid.note

    @wraps(evaluate_fn)
    def noted(*args: P.args, **kwargs: P.kwargs) -> R:
        metrics = evaluate_fn(*args, **kwargs)
        note(metrics)
        return metrics

    return noted


def _ordered(nodes: list[int], sample_size: int, seed: str) -> list[int]:
    """Return nodes in such an order that the next sample is the one of a seed.

    `random.sample` draws places by the state of the process's generator, which is not
    touched: whatever else the app draws is as it would have been.
    """
    if sample_size > len(nodes):
        return nodes
    state = random.getstate()
    places = random.sample(range(len(nodes)), sample_size)
    random.setstate(state)
    sample = random.Random(seed).sample(sorted(nodes), sample_size)
    at = dict(zip(places, sample, strict=True))
    others = iter(sorted(set(nodes) - set(sample)))
    return [at[place] if place in at else next(others) for place in range(len(nodes))]


def _arrays_of(message: Message) -> list[tuple[str, Array]]:
    """Return the arrays of a message, with their names."""
    records = message.content.array_records.values()
    return [named for record in records for named in record.items()]


def _by_finiteness(arrays: Iterable[tuple[str, Array]]) -> tuple[set[str], set[str]]:
    """Return the names of the arrays that are finite, and of those that are not."""
    finite: set[str] = set()
    others: set[str] = set()
    for name, array in arrays:
        try:
            values = array.numpy()
        except Exception:  # of many kinds: a client may send anything
            continue
        is_number = values.dtype.kind in "fc"
        is_finite = not is_number or bool(np.isfinite(values).all())
        (finite if is_finite else others).add(name)
    return finite, others


@Grid.register
class TunedGrid:
    """A Grid whose messages tell the clients which settings were chosen.

    Parameters
    ----------
    grid : Grid
    settings : mapping
    is_hidden : bool
        Whether the clients' metrics stay at the clients.
    attempt : str
        Names the run of the tuner whose trial goes on; empty: none does.
    trial : int
        Its number.
    """

    def __init__(
        self,
        grid: Grid,
        settings: Mapping[str, Any],
        is_hidden: bool,
        attempt: str = "",
        trial: int = 0,
    ) -> None:
        self._grid = grid
        self._header = SettingsHeader(dict(settings), is_hidden, attempt, trial)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages."""
        return self._grid.push_messages(self._told(messages))

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages, and return their replies."""
        return self._grid.send_and_receive(self._told(messages), timeout=timeout)

    def _told(self, messages: Iterable[Message]) -> list[Message]:
        told = list(messages)
        record = header_record(self._header)
        for message in told:
            message.content = RecordDict({HEADER: record, **message.content})
        return told

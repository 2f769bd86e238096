"""The Grids that the user's `main` gets: of a trial, and of the training after it."""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, NoReturn, ParamSpec, TypeVar

import numpy as np
from flwr.app import Array, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from flwr_fbo._common.errors import PublicError
from flwr_fbo._common.validation import require
from flwr_fbo._compat import (
    GET_PARAMETERS,
    RunNotRunningException,
    SecureAggregationStage,
    Training,
    asked_sample_size,
    running_training,
    secure_aggregation_stage,
)
from flwr_fbo.tuner.envelope import HEADER, SettingsHeader, header_record
from flwr_fbo.tuner.gathered_sends import GatheredSends
from flwr_fbo.tuner.hidden_metrics import (
    TRAIN_KEYS,
    MetricError,
    merged,
    numbers_of,
    weight_of,
)
from flwr_fbo.tuner.kept_rounds import KeptRounds
from flwr_fbo.tuner.trial_thread import Send, for_others, is_evaluation

_KNOWN_TYPES = (
    "train or evaluate where trials are compared privately: of others it is not known "
    "what is private. Without privacy any type is allowed"
)
# Looks for nodes without a message between them, as a strategy has them that waits for
# more nodes: one a second.
_MOST_LOOKS, _SECONDS_A_LOOK = 6, 0.5
# Threads in which a server of `flwr.server` may ask its clients.
_MOST_THREADS = 500

# What a user's ServerApp has as its main.
Main = Callable[[Grid, Context], Any]


def most_clients(grid: Grid) -> int | None:
    """Return how many clients a Grid will ever have; None where others may come."""
    is_complete = getattr(grid, "is_complete", False)
    return len(list(grid.get_node_ids())) if is_complete else None


@dataclass(frozen=True)
class Share:
    """The clients that a trial has in a round.

    Attributes
    ----------
    nodes : sequence of int
        That `main` sees.
    min_clients : int
        Of how many clients models are aggregated at least.
    spares : sequence of int
        Who trains, in this order, in place of clients that do not.
    """

    nodes: Sequence[int]
    min_clients: int = 0
    spares: Sequence[int] = ()


# From a Grid and the number of a round of training.
ShareOf = Callable[[Grid, int], Share]

_log = logging.getLogger("flwr.fbo")

P = ParamSpec("P")
R = TypeVar("R")


# Sends of type train in which clients train; and a round of them begins with these.
_KNOWN = MessageType.TRAIN, MessageType.EVALUATE, GET_PARAMETERS
_TRAINING = None, SecureAggregationStage.COLLECT_MASKED_VECTORS
_FIRST = None, SecureAggregationStage.SETUP


class TrainingFailedError(RuntimeError):
    """A trial has no model to compare: its training diverged, or no client trained."""


class HiddenMetricsError(RuntimeError):
    """`main` has failed on a metric that stays at the clients."""


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
        Gets the metrics of each evaluation by the server, and of each round that
        Flower's strategies keep. Where `main` has a loop of its own, and has noted
        nothing since it trained: the clients' means of what they report for ``train``,
        unless that stays at the clients.
    wanted : collection of str
        Metrics without which a round is not noted.
    share : callable, optional
        Says which clients the trial has in a round. None: all.
    kept : KeptRounds, optional
        Has the rounds that an earlier run has trained, and keeps those of this one.
    note_round : callable, optional
        Called when a round of training is complete.
    sample_seed : int, optional
        Of the nodes that Flower's strategies draw. Trials with the same one train with
        the same clients in the same rounds, and so differ less by chance. Their other
        random numbers are their own.

    Attributes
    ----------
    training : Training
        Of Flower's, that `main` runs, as far as it is known.
    """

    def __init__(
        self,
        grid: Grid,
        send: Send,
        is_hidden: bool,
        note: Callable[[Any], None],
        wanted: Collection[str] = (),
        share: ShareOf | None = None,
        kept: KeptRounds | None = None,
        note_round: Callable[[], None] = lambda: None,
        sample_seed: int | None = None,
    ) -> None:
        self._note = note
        self._wanted = set(wanted)
        # The clients' means of the last training; None once anything was noted since.
        self._means: dict[str, float] | None = None
        self.training = Training()
        self._sample_seed, self._num_sends = sample_seed, 0
        self._grid = grid
        self._send = send
        self._gathered = GatheredSends(self._send_round)
        # Rounds whose evaluation by the server was noted.
        self._noted: set[int] = set()
        self._looks, self._last_look = 0, time.monotonic()
        self._is_hidden = is_hidden
        # Rounds of training so far, and each node's arrays while none were sent since.
        # Some strategies take them out of the replies.
        self._round = 0
        self._last_round = ("", "")
        self._trained: dict[int, list[tuple[str, Array]]] = {}
        # The replies of the last round of training.
        self._replies: list[Message] = []
        # Arrays that may hold NaN or inf from the start, as a mask does, are not in it.
        self._finite_arrays: set[str] = set()
        # Whether the clients' models are masked, so that NaN cannot be seen in them.
        self._is_masked = False
        self._is_closed = False
        self._kept, self._note_round = kept, note_round
        self._share_of = share
        # That `main` was given last.
        self._share = Share(())
        # Keys whose values `main` does not get: texts that are empty, and numbers.
        self._emptied: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def note(self, metrics: Any) -> None:
        """Note metrics, of the server or of a training."""
        self._means = None
        self._note(metrics)

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
        self._look()
        if self._share_of is None:
            nodes: Sequence[int] = list(self._grid.get_node_ids())
        else:
            share = self._share_of(self._grid, self._round + 1)
            if self._gathered.is_own_thread:
                self._share = share
            nodes = share.nodes
        self._widen(len(nodes))
        now = time.monotonic()
        if self._gathered.is_own_thread and now - self._last_look > _SECONDS_A_LOOK:
            self._looks, self._last_look = self._looks + 1, now
        if self._looks > _MOST_LOOKS and getattr(self._grid, "is_complete", False):
            raise RuntimeError(
                f"the server waits for more than {len(nodes)} nodes, and these are all "
                "that there are: min_available_nodes and its like"
            )
        size = asked_sample_size()
        if self._sample_seed is None or size is None:
            return nodes
        return _ordered(list(nodes), size, f"{self._sample_seed} {self._num_sends}")

    def _look(self) -> None:
        """Note what the training that is running has come to, in its own thread."""
        if not self._gathered.is_own_thread:
            return
        if self._gathered.error is not None:  # Flower goes on without such a client
            raise self._gathered.error
        found = running_training()
        if found.strategy is not None:
            self._note_server()  # what a training before it has ended with
            if found.kept is not self.training.kept:
                self._noted.clear()
            self.training = found
        self._note_server()
        self._note_means()

    def _note_means(self) -> None:
        """Note what clients report of a training that nothing else has scored."""
        if self._means is not None and self._means.keys() >= self._wanted:
            self.note(self._means)

    def _note_server(self) -> None:
        for number, metrics in sorted(self.training.all_metrics().items()):
            # A round may not be complete yet.
            if number not in self._noted and metrics.keys() >= self._wanted:
                self._noted.add(number)
                self.note(metrics)

    def measured(self) -> dict[int, dict[str, float]]:
        """Return the numbers that the server knows, by round.

        Those of its own evaluation; and means over the clients unless they are hidden.
        """
        training = self.training
        known = training.metrics() if self._is_hidden else training.all_metrics()
        return {
            number: {
                key: float(value)
                for key, value in metrics.items()
                if isinstance(value, int | float) and not isinstance(value, bool)
            }
            for number, metrics in sorted(known.items())
        }

    def _widen(self, num_nodes: int) -> None:
        """Let a server ask all clients at a time, so that a round is one send."""
        server = self.training.server
        if server is not None and (server.max_workers or 0) < num_nodes:
            server.set_max_workers(min(num_nodes, _MOST_THREADS))

    def finish(self) -> None:
        """Note what is known once `main` has ended; raise what one of its threads has.

        Raises
        ------
        BaseException
            That ended a send in a thread, and that `main` has gone on without.
        """
        if self._gathered.error is not None:
            raise self._gathered.error
        self._note_server()
        self._note_means()

    def push_messages(self, messages: Iterable[Message]) -> NoReturn:
        """Refuse: replies that are pulled one by one cannot be shared.

        Raises
        ------
        NotImplementedError
            Always.
        """
        raise NotImplementedError(
            "A trial of FederationTuner needs grid.send_and_receive, as Flower's "
            "strategies use it; the server uses push_messages."
        )

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Return the replies, once the trial's turn has come.

        Raises
        ------
        ValueError
            If the messages are of several types; or, while metrics stay at the clients,
            of one that is neither ``train`` nor ``evaluate``, or if the strategy has
            made a model of NaN from finite ones.
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
        is_known = kind.split(".")[0] in _KNOWN
        require(is_known or not self._is_hidden, "message_type", kind, _KNOWN_TYPES)
        self._look()
        return self._gathered.send(asked, timeout)

    def _send_round(self, asked: list[Message], timeout: float | None) -> list[Message]:
        """Return the replies to what was gathered; see `send_and_receive`."""
        kind = asked[0].metadata.message_type
        self._looks, self._last_look = 0, time.monotonic()
        finite, others = _by_finiteness(_arrays_of(asked[0]))
        if not self._finite_arrays.isdisjoint(others):
            self._raise_diverged()
        self._finite_arrays |= finite
        is_train = kind.startswith(MessageType.TRAIN)
        stage = secure_aggregation_stage(asked[0].content)
        this_round = kind, asked[0].metadata.group_id
        goes_on = this_round[1] != "" and this_round == self._last_round
        self._last_round = this_round
        if not goes_on or stage is not None:
            self._trained = {}
        if is_train:
            self._round += stage in _FIRST and not (goes_on and stage is None)
            self._is_masked = stage is not None
        # Flower's strategies have used them, and keep them until they get others: a
        # trial that waits would hold the models of all clients.
        for reply in self._replies if not goes_on else ():
            if reply.has_content():
                reply.content = RecordDict()
        kept = self._kept if is_train or is_evaluation(asked) else None
        replies = None if kept is None else kept.replies(self._round, asked)
        if replies is None:
            replies = self._asked(asked, timeout, goes_on)
            if kept is not None:
                kept.keep(self._round, asked, replies)
        elif is_train:
            self._note_trained(replies)
            self._note_round()
        return replies

    def _asked(
        self, asked: list[Message], timeout: float | None, goes_on: bool
    ) -> list[Message]:
        """Ask the clients; return the replies that `main` may use.

        With ``goes_on`` they are more clients of a round that has begun.
        """
        is_train = asked[0].metadata.message_type.startswith(MessageType.TRAIN)
        if is_train and self._share_of is not None:
            self._check_nodes({message.metadata.dst_node_id for message in asked})
        replies = self._send(asked, timeout)
        if self._is_hidden:
            self._note_emptied(replies, TRAIN_KEYS if is_train else ())
        if not is_train:
            return replies
        stage = secure_aggregation_stage(asked[0].content)
        self._note_trained(replies, goes_on)
        if self.training.strategy is None and not self._is_hidden:
            self._means = _means(self._replies) or None
        least = self._share.min_clients
        if 0 < len(self._trained) < least:
            # A mean of fewer models shows more of each to all who evaluate it.
            spares = self._share.spares[: least - len(self._trained)]
            if others := for_others(asked, spares):
                more = self._send(others, timeout)
                if self._is_hidden:
                    self._note_emptied(more, TRAIN_KEYS)
                replies = [*replies, *more]
                self._note_trained(replies, goes_on)
            if len(self._trained) < least:
                replies = [reply for reply in replies if reply.has_error()]
                self._replies, self._trained = replies, {}
                _log.warning(
                    "fewer than min_clients=%d clients could train in round %d: the "
                    "model stays as it was",
                    least,
                    self._round,
                )
                self._note_round()
                return replies
        # A round of secure aggregation is over with its last stage, unless it halts:
        # then the model is what it was.
        is_last = stage == SecureAggregationStage.UNMASK
        if (stage is None and not goes_on) or (is_last and self._trained):
            self._note_round()
        # One client that is asked alone is not all of a round.
        is_alone = len(asked) == 1 and asked[0].metadata.group_id != ""
        is_all = not is_alone or len(self._share.nodes) == 1
        is_lost = is_all and stage in (*_FIRST, *_TRAINING)
        if replies and not self._trained and is_lost:
            raise TrainingFailedError(
                f"no client could train in round {self._round}: "
                f"{replies[-1].error.reason}"
            )
        return replies

    def _note_trained(self, replies: list[Message], goes_on: bool = False) -> None:
        """Note the models of a round, or of more clients in it."""
        self._replies = [*self._replies, *replies] if goes_on else replies
        self._trained |= {
            reply.metadata.src_node_id: _arrays_of(reply)
            for reply in replies
            if reply.has_content()
        }

    def _note_emptied(self, replies: list[Message], kept: Sequence[str]) -> None:
        for reply in replies:
            if reply.has_content():
                content = reply.content
                for config in content.config_records.values():
                    self._emptied |= _emptied(config) - {*kept}
                for metrics in content.metric_records.values():
                    self._emptied |= _emptied(metrics) - {*kept}

    def _check_nodes(self, asked: set[int]) -> None:
        """Raise RuntimeError if `main` does not keep to its share of the clients."""
        if not asked <= set(self._share.nodes):
            raise RuntimeError(
                f"the server asks clients in round {self._round} that are not its "
                "share: grid.get_node_ids() returns it, anew in each round, as "
                "Flower's strategies call it. Halving needs no shares."
            )
        least = self._share.min_clients
        if len(asked) < least:
            raise RuntimeError(
                f"the server asks {len(asked)} clients in round {self._round}, and "
                f"min_clients={least}."
            )

    def check_error(self, error: Exception) -> None:
        """Raise another error if there is one that explains what `main` has raised.

        Raises
        ------
        TrainingFailedError
            If clients' models are not finite.
        HiddenMetricsError
            If `main` found texts or lists empty that stay at the clients.
        """
        if isinstance(error, TrainingFailedError):
            return
        if self._diverged_nodes():
            raise TrainingFailedError(self._diverged()) from error
        if self._emptied and not isinstance(error, PublicError):
            raise HiddenMetricsError(
                f"the server raised {error!r}. While trials are compared privately, "
                f"these metrics of clients are empty there: {sorted(self._emptied)}. "
                "Let the server do without them where current_trial(context) is not "
                "None"
            ) from error

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


def _emptied(record: Mapping[str, Any]) -> set[str]:
    """Return the keys of texts and lists that are empty."""
    return {
        key
        for key, value in record.items()
        if isinstance(value, str | bytes | list) and not value
    }


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


def _means(replies: Iterable[Message]) -> dict[str, float]:
    """Return the weighted means of the numbers that all clients report for ``train``.

    None where their weights cannot be used.
    """
    found = [
        merged([*of.config_records.values(), *of.metric_records.values()])
        for of in (reply.content for reply in replies if reply.has_content())
    ]
    try:
        weights = [weight_of(metrics, "a reply to train") for metrics in found]
    except MetricError:
        return {}
    if not sum(weights) > 0:
        return {}
    numbers = [numbers_of(metrics) for metrics in found]
    names = set.intersection(*({*one} for one in numbers))
    return {
        name: float(np.average([one[name] for one in numbers], weights=weights))
        for name in names
    }


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

"""The Grid that the user's `main` gets in a trial."""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, NoReturn, ParamSpec, TypeVar

from flwr.app import Context, Message, MessageType
from flwr.serverapp import Grid

from flwr_fbo._common.errors import PublicError
from flwr_fbo._common.validation import refuse, require
from flwr_fbo._compat import (
    GET_PARAMETERS,
    RunNotRunningException,
    SecureAggregationStage,
    asked_sample_size,
    secure_aggregation_stage,
)
from flwr_fbo.tuner.site.hidden_metrics import TRAIN_KEYS
from flwr_fbo.tuner.trials.gathered_sends import GatheredSends
from flwr_fbo.tuner.trials.kept_rounds import KeptRounds
from flwr_fbo.tuner.trials.training_rounds import (
    FIRST_STAGES,
    TRAINING_STAGES,
    TrainingFailedError,
    TrainingRounds,
)
from flwr_fbo.tuner.trials.trial_thread import Send, for_others, is_evaluation
from flwr_fbo.tuner.trials.watched_training import WatchedTraining

_log = logging.getLogger("flwr.fbo")

P = ParamSpec("P")
R = TypeVar("R")

# Message types of whose replies it is known what is private.
_KNOWN = MessageType.TRAIN, MessageType.EVALUATE, GET_PARAMETERS
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
        The nodes that `main` sees.
    min_clients : int
        Number of clients whose models are aggregated at least.
    spares : sequence of int
        Nodes that train, in this order, in place of clients that do not.
    """

    nodes: Sequence[int]
    min_clients: int = 0
    spares: Sequence[int] = ()


# From a Grid and the number of a round of training.
ShareOf = Callable[[Grid, int], Share]


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
        The Grid that it stands for.
    send : callable
        Function from messages and a timeout to the replies.
    is_hidden : bool
        Whether the clients' metrics stay at the clients.
    note : callable
        Gets what the server measures: see `WatchedTraining`.
    wanted : collection of str
        Metrics without which a round is not noted.
    share : callable, optional
        Says which clients the trial has in a round. None: all.
    kept : KeptRounds, optional
        Has the rounds that an earlier run has trained, and keeps those of this one.
    note_round : callable, optional
        Called when a round of training is complete.
    sample_seed : int, optional
        Seed of the nodes that Flower's strategies draw. Trials with the same one train
        with the same clients in the same rounds, and so differ less by chance. Their
        other random numbers are their own.

    Attributes
    ----------
    watched : WatchedTraining
        What the server knows of the training that `main` runs.
    """

    def __init__(
        self,
        grid: Grid,
        send: Send,
        is_hidden: bool,
        note: Callable[[Any], None],
        *,
        wanted: Collection[str] = (),
        share: ShareOf | None = None,
        kept: KeptRounds | None = None,
        note_round: Callable[[], None] = lambda: None,
        sample_seed: int | None = None,
    ) -> None:
        self._grid = grid
        self._send = send
        self._is_hidden = is_hidden
        self.watched = WatchedTraining(note, wanted, is_hidden)
        self._rounds = TrainingRounds()
        self._gathered = GatheredSends(self._send_round)
        self._share_of = share
        # The clients that `main` was given last.
        self._share = Share(())
        self._kept, self._note_round = kept, note_round
        self._sample_seed, self._num_sends = sample_seed, 0
        self._looks, self._last_look = 0, time.monotonic()
        self._is_closed = False
        # Keys whose values `main` does not get: texts that are empty, and numbers.
        self._emptied: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def close(self) -> None:
        """Tell threads that `main` has left behind that its run is over."""
        self._is_closed = True

    def finish(self) -> None:
        """Note what is known once `main` has ended; raise what one of its threads has.

        Raises
        ------
        BaseException
            That ended a send in a thread, and that `main` has gone on without.
        """
        if self._gathered.error is not None:
            raise self._gathered.error
        self.watched.finish()

    def _look(self) -> None:
        """Note what the training that is running has come to, in its own thread."""
        if not self._gathered.is_own_thread:
            return
        if self._gathered.error is not None:  # Flower goes on without such a client
            raise self._gathered.error
        self.watched.look()

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
            share = self._share_of(self._grid, self._rounds.number + 1)
            if self._gathered.is_own_thread:
                self._share = share
            nodes = share.nodes
        # Let a server of `flwr.server` ask all at a time, so that a round is one send.
        server = self.watched.training.server
        if server is not None and (server.max_workers or 0) < len(nodes):
            server.set_max_workers(min(len(nodes), _MOST_THREADS))
        now = time.monotonic()
        if self._gathered.is_own_thread and now - self._last_look > _SECONDS_A_LOOK:
            self._looks, self._last_look = self._looks + 1, now
        if self._looks > _MOST_LOOKS and getattr(self._grid, "is_complete", False):
            raise RuntimeError(
                f"the server waits for more than {len(nodes)} nodes, and these are all "
                "that there are: min_available_nodes and its like"
            )
        size = asked_sample_size()
        # A strategy that asks all clients draws nothing.
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
        is_train = asked[0].metadata.message_type.startswith(MessageType.TRAIN)
        self._looks, self._last_look = 0, time.monotonic()
        # Before clients are asked: training from NaN gives NaN.
        if not self._rounds.is_finite(asked[0]):
            is_known = self._rounds.is_masked or self._rounds.diverged_nodes()
            if self._is_hidden and not is_known:
                # The server made NaN of finite models: it may have used hidden metrics.
                allowed = (
                    "finite, as the clients' models are. Either training diverged in "
                    f"round {self._rounds.number} at the server, or the strategy uses "
                    "metrics that stay at the clients, as QFedAvg their training loss"
                )
                refuse("model", math.nan, allowed)
            raise self._rounds.error()
        goes_on = self._rounds.begin_send(asked)
        # Other messages may change something at the clients: they are sent again.
        kept = self._kept if is_train or is_evaluation(asked) else None
        replies = None if kept is None else kept.replies(self._rounds.number, asked)
        if replies is None:
            replies = self._asked(asked, timeout, goes_on)
            if kept is not None:
                kept.keep(self._rounds.number, asked, replies)
        elif is_train:
            self._rounds.note(replies)
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
        rounds, stage = self._rounds, secure_aggregation_stage(asked[0].content)
        rounds.note(replies, goes_on)
        self.watched.note_replies(rounds.replies)
        least = self._share.min_clients
        if 0 < len(rounds.models) < least:
            # A mean of fewer models shows more of each to all who evaluate it.
            spares = self._share.spares[: least - len(rounds.models)]
            if others := for_others(asked, spares):
                more = self._send(others, timeout)
                if self._is_hidden:
                    self._note_emptied(more, TRAIN_KEYS)
                replies = [*replies, *more]
                rounds.note(replies, goes_on)
            if len(rounds.models) < least:
                replies = [reply for reply in replies if reply.has_error()]
                rounds.replies, rounds.models = replies, {}
                _log.warning(
                    "fewer than min_clients=%d clients could train in round %d: the "
                    "model stays as it was",
                    least,
                    rounds.number,
                )
                self._note_round()
                return replies
        # A round of secure aggregation is over with its last stage, unless it halts:
        # then the model is what it was.
        is_last = stage == SecureAggregationStage.UNMASK
        if (stage is None and not goes_on) or (is_last and rounds.models):
            self._note_round()
        # One client that is asked alone is not all of a round.
        is_alone = len(asked) == 1 and asked[0].metadata.group_id != ""
        is_all = not is_alone or len(self._share.nodes) == 1
        is_lost = is_all and stage in (*FIRST_STAGES, *TRAINING_STAGES)
        if replies and not rounds.models and is_lost:
            raise TrainingFailedError(
                f"no client could train in round {rounds.number}: "
                f"{replies[-1].error.reason}"
            )
        return replies

    def _note_emptied(self, replies: list[Message], kept: Sequence[str]) -> None:
        """Note which texts and lists a site has emptied."""
        for reply in replies:
            if reply.has_content():
                content = reply.content
                records: list[Mapping[str, Any]] = [*content.config_records.values()]
                for record in (*records, *content.metric_records.values()):
                    self._emptied |= {
                        key
                        for key, value in record.items()
                        if isinstance(value, str | bytes | list) and not value
                    } - {*kept}

    def _check_nodes(self, asked: set[int]) -> None:
        """Raise RuntimeError if `main` does not keep to its share of the clients."""
        number, least = self._rounds.number, self._share.min_clients
        if not asked <= set(self._share.nodes):
            raise RuntimeError(
                f"the server asks clients in round {number} that are not its share: "
                "grid.get_node_ids() returns it, anew in each round, as Flower's "
                "strategies call it. Halving needs no shares."
            )
        if len(asked) < least:
            raise RuntimeError(
                f"the server asks {len(asked)} clients in round {number}, and "
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
        if self._rounds.diverged_nodes():
            raise self._rounds.error() from error
        if self._emptied and not isinstance(error, PublicError):
            raise HiddenMetricsError(
                f"the server raised {error!r}. While trials are compared privately, "
                f"these metrics of clients are empty there: {sorted(self._emptied)}. "
                "Let the server do without them where current_trial(context) is not "
                "None"
            ) from error


def server_score(grid: Grid, evaluate_fn: Callable[P, R]) -> Callable[P, R]:
    """Return an ``evaluate_fn`` whose metrics score a trial of `FederationTuner`.

    With ``FederationTuner(..., score="server")`` the last of them is a trial's score.
    Outside of trials it is ``evaluate_fn`` as it is.

    Examples
    --------
    >>> from flwr.app import MetricRecord
    >>> from flwr_fbo import InProcessGrid
    >>> from flwr_fbo.tuning import server_score
    >>> def global_evaluate(server_round, arrays):
    ...     return MetricRecord({"accuracy": 0.9})  # your own, on the server's data
    >>> def main(grid, context):
    ...     evaluate_fn = server_score(grid, global_evaluate)
    ...     ...  # FedAvg().start(grid, arrays, num_rounds, evaluate_fn=evaluate_fn)

    Parameters
    ----------
    grid : Grid
        The Grid that `main` gets.
    evaluate_fn : callable
        Returns metrics, or None; its parameters are as Flower's strategies give them.
    """
    if not isinstance(grid, TrialGrid):
        return evaluate_fn
    note = grid.watched.note

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
    # The places that the strategy will draw next, from the same state.
    places = random.sample(range(len(nodes)), sample_size)
    random.setstate(state)
    sample = random.Random(seed).sample(sorted(nodes), sample_size)
    at = dict(zip(places, sample, strict=True))
    others = iter(sorted(set(nodes) - set(sample)))
    return [at[place] if place in at else next(others) for place in range(len(nodes))]

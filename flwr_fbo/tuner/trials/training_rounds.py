"""The rounds of a trial's training, and whether they have given a finite model."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from flwr.app import Array, Message, MessageType, RecordDict

from flwr_fbo._compat import SecureAggregationStage, secure_aggregation_stage

# Stages of a round in which clients train; and a round of training begins with these.
TRAINING_STAGES = None, SecureAggregationStage.COLLECT_MASKED_VECTORS
FIRST_STAGES = None, SecureAggregationStage.SETUP


class TrainingFailedError(RuntimeError):
    """A trial has no model to compare: its training diverged, or no client trained."""


class TrainingRounds:
    """Counts the rounds of a training, and has the clients' models of the last one.

    Attributes
    ----------
    number : int
        Number of the last round of training; 0 before the first.
    models : dict of int to list
        The named arrays of each node, while none were sent since.
    replies : list of Message
        Replies to the last round of training.
    is_masked : bool
        Whether the clients' models are masked, so that NaN cannot be seen in them.
    """

    def __init__(self) -> None:
        self.number = 0
        self.models: dict[int, list[tuple[str, Array]]] = {}
        self.replies: list[Message] = []
        self.is_masked = False
        # Message type and group of the last send: a round may have several.
        self._last_send = ("", "")
        # Arrays that may hold NaN or inf from the start, as a mask does, are not in it.
        self._finite_arrays: set[str] = set()

    def is_finite(self, message: Message) -> bool:
        """Return whether no array of a message was finite before, and is not now."""
        finite, others = _by_finiteness(_arrays_of(message))
        # An array that was never finite may be meant so, as a mask of -inf.
        if not self._finite_arrays.isdisjoint(others):
            return False
        self._finite_arrays |= finite
        return True

    def begin_send(self, asked: list[Message]) -> bool:
        """Note a send; return whether it goes on with a round that has begun."""
        kind = asked[0].metadata.message_type
        stage = secure_aggregation_stage(asked[0].content)
        this_send = kind, asked[0].metadata.group_id
        # Servers of `flwr.server` name a round by its group; strategies have no groups.
        goes_on = this_send[1] != "" and this_send == self._last_send
        self._last_send = this_send
        if not goes_on or stage is not None:
            self.models = {}
        if kind.startswith(MessageType.TRAIN):
            self.number += stage in FIRST_STAGES and not (goes_on and stage is None)
            self.is_masked = stage is not None
        # Flower's strategies have used them, and keep them until they get others: a
        # trial that waits would hold the models of all clients.
        for reply in self.replies if not goes_on else ():
            if reply.has_content():
                reply.content = RecordDict()
        return goes_on

    def note(self, replies: list[Message], goes_on: bool = False) -> None:
        """Note the models of a round, or of more clients in it.

        Now, as some strategies take the arrays out of the replies.
        """
        self.replies = [*self.replies, *replies] if goes_on else replies
        self.models |= {
            reply.metadata.src_node_id: _arrays_of(reply)
            for reply in replies
            if reply.has_content()
        }

    def diverged_nodes(self) -> list[int]:
        """Return the nodes whose models of the last round are not finite."""
        return [
            node
            for node, arrays in self.models.items()
            if not self._finite_arrays.isdisjoint(_by_finiteness(arrays)[1])
        ]

    def error(self) -> TrainingFailedError:
        """Return an error that says in which round training diverged, and where."""
        nodes = self.diverged_nodes()
        models = "masked" if self.is_masked else "finite"
        where = f"at the server; the clients' models are {models}"
        if nodes:
            where = f"at {len(nodes)} of {len(self.models)} clients"
        if 0 < len(nodes) < len(self.models):
            where += f", nodes {nodes}"
        return TrainingFailedError(f"training diverged in round {self.number} {where}")


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

"""The Grids that the user's `main` gets: of a trial, and of the training after it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

import numpy as np
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from flwr_fbo._compat import SECURE_AGGREGATION_RECORD, Run
from flwr_fbo._validation import require
from flwr_fbo.tuner.envelope import HEADER, SettingsHeader, header_record
from flwr_fbo.tuner.trial_thread import Send


class _GridAround(Grid):
    """A Grid that leaves everything to another."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def set_run(self, run: Run) -> None:
        """Set the run."""
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        """The run."""
        return self._grid.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Return a new message."""
        return self._grid.create_message(
            content, message_type, dst_node_id, group_id, ttl
        )

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of all nodes."""
        return self._grid.get_node_ids()

    def get_nodes(self) -> Any:
        """Return all nodes."""
        return self._grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return replies."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages, and return their replies."""
        return self._grid.send_and_receive(messages, timeout=timeout)


class TrialGrid(_GridAround):
    """The Grid of one trial, whose sends are shared with other trials.

    Parameters
    ----------
    grid : Grid
    send : callable
        From `Send` to its replies.
    """

    def __init__(self, grid: Grid, send: Callable[[Send], list[Message]]) -> None:
        super().__init__(grid)
        self._send = send
        self._last_replies: list[Message] = []

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
            ones, as one does that reads metrics which stay at the clients.
        NotImplementedError
            If they are of Flower's secure aggregation.
        """
        asked = list(messages)
        if not asked:
            return []
        kinds = {message.metadata.message_type for message in asked}
        require(len(kinds) == 1, "message_type", sorted(kinds), "one a send")
        kind = kinds.pop()
        allowed = (
            "train or evaluate: of others it is not known what is private (a strategy "
            "of flwr.server asks for parameters unless it has initial_parameters)"
        )
        ok = kind.split(".")[0] in (MessageType.TRAIN, MessageType.EVALUATE)
        require(ok, "message_type", kind, allowed)
        if any(SECURE_AGGREGATION_RECORD in message.content for message in asked):
            raise NotImplementedError(
                "FederationTuner does not support Flower's secure aggregation "
                "(SecAggWorkflow, SecAggPlusWorkflow): one round of it is four sends "
                "of type train, and the tuner counts each of them as a round."
            )
        trained = [m.content for m in self._last_replies if m.has_content()]
        if trained and not _is_finite(asked[0].content):
            allowed = (
                "finite, as the clients' models are. Does the strategy use metrics "
                "that stay at the clients, as QFedAvg their training loss?"
            )
            require(not all(map(_is_finite, trained)), "model", math.nan, allowed)
        self._last_replies = self._send(Send(asked, timeout))
        return self._last_replies


def _is_finite(content: RecordDict) -> bool:
    """Return whether all numbers of the arrays are finite; others do not count."""
    arrays = (
        array.numpy()
        for record in content.array_records.values()
        for array in record.values()
    )
    return all(np.isfinite(a).all() for a in arrays if a.dtype.kind in "fc")


class TunedGrid(_GridAround):
    """A Grid whose messages tell the clients which settings were chosen.

    Parameters
    ----------
    grid : Grid
    settings : mapping
    """

    def __init__(self, grid: Grid, settings: Mapping[str, Any]) -> None:
        super().__init__(grid)
        self._settings = dict(settings)

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
        record = header_record(SettingsHeader(self._settings))
        for message in told:
            message.content = RecordDict({HEADER: record, **message.content})
        return told

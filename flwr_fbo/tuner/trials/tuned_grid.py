"""The Grid of the training with the settings that were chosen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from flwr_fbo.tuner.message_headers import HEADER, SettingsHeader, header_record


@Grid.register
class TunedGrid:
    """A Grid whose messages tell the clients which settings were chosen.

    Parameters
    ----------
    grid : Grid
        The Grid of the ServerApp.
    settings : mapping
        The settings that were chosen.
    is_hidden : bool
        Whether the clients' metrics stay at the clients.
    attempt : str
        Names the run of the tuner whose trial goes on; empty: none does.
    trial : int
        Number of the trial that goes on.
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

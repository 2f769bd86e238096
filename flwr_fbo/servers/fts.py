"""The server of FTS and its baselines: it passes messages on, and changes nothing.

Nothing here protects anybody: an agent's message reaches all other agents as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._validation import require_int
from flwr_fbo._version import __version__
from flwr_fbo.journal.ledger_table import LedgerRow

FloatArray = NDArray[np.float64]


class RelayServer:
    """Sends every agent what all of them sent last.

    Parameters
    ----------
    num_agents : int
        N >= 1.
    message_length : int
        Numbers in a message, >= 1.
    after : int, optional
        The one iteration after which there are messages; after each unless given.

    Attributes
    ----------
    ledger : list of LedgerRow
        What was passed on, newest last.
    """

    def __init__(
        self, num_agents: int, message_length: int, after: int | None = None
    ) -> None:
        require_int("num_agents", num_agents, 1)
        require_int("message_length", message_length, 1)
        if after is not None:
            require_int("after", after, 0)
        self.num_agents = num_agents
        self.ledger: list[LedgerRow] = []
        self._length = message_length
        self._after = after

    @property
    def vectors(self) -> FloatArray | None:
        """What agents receive now, shape (N, L): a row of NaN for who is missing."""
        return self.ledger[-1].vectors if self.ledger else None

    def wants_messages(self, iteration: int) -> bool:
        """Return whether the agents should send a message after ``iteration``."""
        return self._after in (None, iteration)

    def receive(self, iteration: int, messages: Mapping[int, Any]) -> None:
        """Take the messages of ``iteration``; what is no message counts as missing."""
        if not self.wants_messages(iteration):
            return
        vectors = np.full((self.num_agents, self._length), np.nan)
        for slot, message in messages.items():
            if _is_message(message, self._length):
                vectors[slot] = message
        facts = {"private": False, "flwr_fbo": __version__}
        self.ledger.append(LedgerRow(iteration, facts, vectors))

    def resume(self, ledger: Sequence[LedgerRow]) -> None:
        """Go on after what an earlier run passed on."""
        self.ledger = list(ledger)

    def summary(self) -> list[str]:
        """Describe the settings, a line each."""
        when = "every iteration" if self._after is None else f"iteration {self._after}"
        return [
            f"{self.num_agents} agents; messages of {self._length} numbers are passed "
            f"on after {when}",
            "NOT PRIVATE: every agent's message reaches all others as it is",
        ]


def _is_message(message: Any, length: int) -> bool:
    numbers = isinstance(message, np.ndarray) and message.dtype.kind in "fiu"
    return numbers and message.shape == (length,) and bool(np.isfinite(message).all())

"""The server of FTS and its baselines: it passes messages on, and changes nothing.

Nothing here protects anybody: an agent's message reaches all other agents as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flwr_fbo._common.validation import require_int
from flwr_fbo._common.version import __version__
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.study.codec import is_array
from flwr_fbo.study.server import Server, Step


class FTSServer(Server):
    """Sends every agent what all of them sent last: (N, L), NaN for who is missing.

    Parameters
    ----------
    num_agents : int
        N >= 1.
    message_length : int
        Numbers in a message, >= 1.
    after : int, optional
        The one round, >= 1, after which there are messages.
    every : int
        Without ``after`` there are messages after each round, or after every so many,
        the first one included.

    Attributes
    ----------
    ledger : list of LedgerRow
        Messages that were passed on, newest last.
    """

    def __init__(
        self,
        num_agents: int,
        message_length: int,
        after: int | None = None,
        every: int = 1,
    ) -> None:
        require_int("num_agents", num_agents, 1)
        require_int("message_length", message_length, 1)
        if after is not None:
            require_int("after", after, 1)
        require_int("every", every, 1)
        self.num_agents = num_agents
        self.ledger = []
        self._length = message_length
        self._after, self._every = after, every

    def step(self, iteration: int) -> Step:
        """Decide to pass messages on: after each few rounds, or after the one."""
        if self._after is not None:
            return Step(iteration, int(iteration + 1 == self._after))
        due = iteration % self._every == 0
        return Step(iteration, iteration // self._every + 1 if due else 0)

    def receive(self, step: Step, messages: Mapping[int, Any]) -> None:
        """Take the messages of a step; a malformed one counts as missing."""
        if not step.release:
            return
        vectors = np.full((self.num_agents, self._length), np.nan)
        for slot, message in messages.items():
            if is_array(message, (self._length,)):
                vectors[slot] = message
        facts = {"private": False, "flwr_fbo": __version__}
        self.ledger.append(LedgerRow(step.iteration, facts, vectors))

    def summary(self) -> list[str]:
        """Describe the settings, a line each."""
        every = "every round" if self._every == 1 else f"every {self._every} rounds"
        when = every if self._after is None else f"round {self._after}"
        return [
            f"{self.num_agents} agents; messages of {self._length} numbers are passed "
            f"on after {when}",
            "NOT PRIVATE: every agent's message reaches the server and all others as "
            "it is, and says what it believes of its objective",
        ]

"""The server of methods that share nothing: Thompson sampling, random search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flwr_fbo._validation import require_int
from flwr_fbo.journal.ledger_table import LedgerRow


@dataclass
class LocalServer:
    """Asks for no message and sends no vector.

    Attributes
    ----------
    num_agents : int
        N >= 1.
    """

    num_agents: int
    vectors: None = None
    ledger: tuple[()] = ()

    def __post_init__(self) -> None:
        require_int("num_agents", self.num_agents, 1)

    def wants_messages(self, iteration: int) -> bool:
        """Return False."""
        return False

    def receive(self, iteration: int, messages: Mapping[int, Any]) -> None:
        """Ignore what arrives."""

    def summary(self) -> list[str]:
        """Describe the settings."""
        return [f"{self.num_agents} agents, each on its own: nothing is shared"]

    def resume(self, ledger: Sequence[LedgerRow]) -> None:
        """Go on: there is no state."""

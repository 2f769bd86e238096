"""The server of methods that share nothing: Thompson sampling, random search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr_fbo._common.validation import require_int
from flwr_fbo.study.server import Server, Step


class LocalServer(Server):
    """Asks for no message and sends no vector.

    Parameters
    ----------
    num_agents : int
        N >= 1.
    """

    def __init__(self, num_agents: int) -> None:
        require_int("num_agents", num_agents, 1)
        self.num_agents = num_agents
        self.ledger = []

    def step(self, iteration: int) -> Step:
        """Decide on no release."""
        return Step(iteration)

    def receive(self, step: Step, messages: Mapping[int, Any]) -> None:
        """Ignore what arrives."""

    def summary(self) -> list[str]:
        """Describe the settings, a line each."""
        return [f"{self.num_agents} agents, each on its own: nothing is shared"]

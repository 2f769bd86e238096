"""What a strategy needs of a server half."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


class Server(Protocol):
    """Turns the messages of one iteration into the vectors of the next."""

    @property
    def num_agents(self) -> int:
        """N, the slots of the study."""

    @property
    def vectors(self) -> FloatArray | None:
        """What agents receive now, shape (P, M); None before the first release."""

    def wants_messages(self, iteration: int) -> bool:
        """Return whether the agents should send a message after ``iteration``."""

    def receive(self, iteration: int, messages: Mapping[int, Any]) -> None:
        """Take the messages of ``iteration``, by slot, whatever they are."""

    def summary(self) -> list[str]:
        """Describe the settings, a line each."""

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive a restart."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what ``state_dict`` returned."""

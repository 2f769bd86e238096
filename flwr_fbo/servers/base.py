"""What a strategy needs of a server half."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from flwr_fbo.journal.ledger_table import LedgerRow

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

    @property
    def ledger(self) -> Sequence[LedgerRow]:
        """What has been released so far, in order."""

    def resume(self, ledger: Sequence[LedgerRow]) -> None:
        """Go on after what an earlier run released."""

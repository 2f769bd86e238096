"""Base class of the algorithms' server halves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.journal.tables import LedgerRow


@dataclass(frozen=True)
class Step:
    """Plan of a server half for one iteration, made before agents are asked.

    Attributes
    ----------
    iteration : int
        From 0.
    release : int
        Number of the release that agents are asked for, from 1; 0 for none.
    is_exhausted : bool
        Whether a release is due that the privacy budget does not allow.
    is_over : bool
        Whether nothing is left to ask agents for.
    """

    iteration: int
    release: int = 0
    is_exhausted: bool = False
    is_over: bool = False


class Server(ABC):
    """Turns the messages of one iteration into the vectors of the next.

    Attributes
    ----------
    num_agents : int
        N, the slots of the study.
    ledger : sequence of LedgerRow
        Releases so far, in order.
    """

    num_agents: int
    ledger: list[LedgerRow]

    @property
    def vectors(self) -> FloatArray | None:
        """Vectors that agents receive now, shape (P, M); None before a release."""
        return self.ledger[-1].vectors if self.ledger else None

    @property
    def arrays(self) -> list[NDArray[Any]]:
        """What agents are sent of ``vectors``: these, unless a kind says more."""
        return [] if self.vectors is None else [self.vectors]

    @property
    def made_after(self) -> int:
        """Iteration whose messages ``vectors`` are of; 0 before the first release."""
        return self.ledger[-1].made_after if self.ledger else 0

    def plays(self, slot: int) -> bool:
        """Return whether a slot's agent takes part by now."""
        return True

    def sends(self, slot: int, step: Step) -> bool:
        """Return whether a slot's agent is asked for a message in a step."""
        return step.release > 0

    def release_number(self, slot: int, step: Step) -> int:
        """Return which release a slot's agent is asked for, as it counts; 0: none."""
        return step.release if self.sends(slot, step) else 0

    @abstractmethod
    def step(self, iteration: int) -> Step:
        """Decide what happens in an iteration; changes nothing."""

    @abstractmethod
    def receive(self, step: Step, messages: Mapping[int, Any]) -> None:
        """Take the messages of a step, by slot, whatever they are."""

    @abstractmethod
    def summary(self) -> list[str]:
        """Describe the settings, a line each."""

    def resume(self, ledger: Sequence[LedgerRow]) -> None:
        """Go on after what an earlier run released."""
        self.ledger = list(ledger)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return what is needed besides the ledger to go on, as arrays.

        An array that is the one of last time is not written again: what has changed is
        another array.
        """
        return {}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from what ``state_dict`` returned."""
        assert not state

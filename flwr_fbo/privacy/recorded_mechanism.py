"""What mechanisms have in common that draw noise once, and keep what they released."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from flwr_fbo._arrays import FloatArray
from flwr_fbo._version import __version__
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.journal.ledger_table import LedgerRow
from flwr_fbo.privacy.noise import Entropy


class NoiseSettings(Protocol):
    """What a mechanism's guarantee rests on."""

    @property
    def noise_std(self) -> float:
        """The noise's standard deviation; 0 without noise."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, as JSON values."""


S = TypeVar("S", bound=NoiseSettings)


class RecordedMechanism(Generic[S]):
    """Settings, entropy, and a journal of what was released.

    Raises
    ------
    ValueError
        If there is noise, but no entropy.
    """

    def __init__(
        self, settings: S, entropy: Entropy | None, journal: Journal | None
    ) -> None:
        if settings.noise_std > 0 and entropy is None:
            raise ValueError("A release with noise needs entropy.")
        self.settings = settings
        self._entropy = entropy
        self._journal = journal

    @property
    def private(self) -> bool:
        """Whether its releases are differentially private."""
        has_noise = self.settings.noise_std > 0
        return has_noise and self._entropy is not None and self._entropy.private

    def _facts(self) -> dict[str, Any]:
        """Return what is recorded beside each release."""
        return {
            "settings": self.settings.to_dict(),
            "noise_std": self.settings.noise_std,
            "private": self.private,
            "flwr_fbo": __version__,
        }

    def _recorded(
        self, journal: Journal, what: str, after: int = 0, last: float = math.inf
    ) -> Iterator[LedgerRow]:
        """Yield rows ``after + 1`` to ``last`` of the journal, all of these settings.

        The others are another mechanism's.
        """
        mine = json.loads(json.dumps(self.settings.to_dict()))
        for row in journal.ledger():
            if not after < row.iteration <= last:
                continue
            if row.facts.get("settings") != mine:
                raise JournalError(
                    f"The journal {journal.path} holds {what} with other settings "
                    f"(stored, now): {row.facts.get('settings')}, {mine}."
                )
            yield row


def is_on_grid(values: FloatArray, grid: float) -> bool:
    """Return whether all values are multiples of a grid, below 2**53 steps of it."""
    steps = values / grid
    return bool(np.array_equal(steps, np.rint(steps)) and np.abs(steps).max() < 2**53)

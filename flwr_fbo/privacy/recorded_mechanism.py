"""What mechanisms have in common that draw noise once, and keep what they released."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np

from flwr_fbo._arrays import FloatArray
from flwr_fbo._validation import require_int
from flwr_fbo._version import __version__
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.journal.ledger_table import LedgerRow
from flwr_fbo.privacy.noise import Entropy


class NoiseSettings(Protocol):
    """What a mechanism's guarantee rests on."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def max_releases(self) -> int:
        """n, the releases that can be made."""

    @property
    def noise_std(self) -> float:
        """The noise's standard deviation; 0 without noise."""


S = TypeVar("S", bound=NoiseSettings)


class RecordedMechanism(ABC, Generic[S]):
    """Settings, entropy, and a journal of what was released.

    Parameters
    ----------
    settings : NoiseSettings
    entropy : Entropy, optional
        Where noise comes from; none is needed without noise. Agents with
        `SeededEntropy` need one each, or they would all add the same noise.
    journal : Journal, optional
        Of this agent. Each release is on disk before `release` returns, and one that is
        there is returned as it is. Without a journal they are kept in memory: for
        experiments.

    Raises
    ------
    ValueError
        If there is noise, but no entropy.
    JournalError
        If the journal is of other settings, or damaged.
    """

    def __init__(
        self,
        settings: S,
        entropy: Entropy | None,
        journal: Journal | None = None,
    ) -> None:
        if settings.noise_std > 0 and entropy is None:
            raise ValueError("A release with noise needs entropy.")
        self.settings = settings
        self._entropy = entropy
        self._journal = journal
        self._released: dict[int, FloatArray] = {}

    @property
    def num_released(self) -> int:
        """Releases made so far, from 0 to n."""
        return len(self._released)

    @property
    def private(self) -> bool:
        """Whether its releases are differentially private."""
        has_noise = self.settings.noise_std > 0
        return has_noise and self._entropy is not None and self._entropy.private

    def release(self, k: int, total: FloatArray) -> FloatArray:
        """Return release k: drawn and recorded, unless it is on record.

        Parameters
        ----------
        k : int
            From 1 to n.
        total : ndarray
            The sum to release; of no effect where the release is on record.

        Raises
        ------
        ValueError
            If there is no release k, or ``total`` cannot be such a sum.
        JournalError
            If the release could not be recorded, or another is missing.
        """
        require_int("k", k, 1, self.settings.max_releases)
        if k not in self._released:
            released, draws = self._draw_release(k, total)
            if self._journal is not None:
                row = LedgerRow(k, self._facts(), released)
                self._journal.add_release(row, draws)
            self._released[k] = released
        return self._released[k].copy()

    @abstractmethod
    def _draw_release(
        self, k: int, total: FloatArray
    ) -> tuple[FloatArray, Mapping[str, FloatArray]]:
        """Return release k, and what later ones need of its noise, by name."""

    def _facts(self) -> dict[str, Any]:
        """Return what is recorded beside each release."""
        return {
            "settings": asdict(self.settings),
            "noise_std": self.settings.noise_std,
            "private": self.private,
            "flwr_fbo": __version__,
        }

    def _recorded(self) -> Iterator[LedgerRow]:
        """Yield the rows of the journal, all of these settings."""
        journal = self._journal
        mine = json.loads(json.dumps(asdict(self.settings)))
        for row in [] if journal is None else journal.ledger():
            if row.facts.get("settings") != mine:
                assert journal is not None
                raise JournalError(
                    f"The journal {journal.path} holds releases with other settings "
                    f"(stored, now): {row.facts.get('settings')}, {mine}."
                )
            yield row


def is_on_grid(values: FloatArray, grid: float) -> bool:
    """Return whether all values are multiples of a grid, below 2**53 steps of it."""
    steps = values / grid
    return bool(np.array_equal(steps, np.rint(steps)) and np.abs(steps).max() < 2**53)

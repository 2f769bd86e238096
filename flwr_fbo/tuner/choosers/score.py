"""Scores: weighted sums of metrics that trials are compared by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flwr_fbo.tuner.site.hidden_metrics import score_of
from flwr_fbo.tuning.search.settings import Direction


@dataclass(frozen=True)
class Score:
    """A weighted sum of metrics, and which of two is better.

    Attributes
    ----------
    weights : dict of str to float
        Weight of each metric.
    maximize : bool
        Whether larger scores are better.
    """

    weights: dict[str, float]
    maximize: bool

    def __str__(self) -> str:
        return " + ".join(self.weights)

    @property
    def direction(self) -> Direction:
        """Which of two scores is better, in a word."""
        return "maximize" if self.maximize else "minimize"

    def of(self, metrics: Mapping[str, Any], source: str) -> float:
        """Return the score of some metrics; see `score_of`."""
        return score_of(metrics, self.weights, source)

    def signed(self, values: Iterable[float]) -> list[float]:
        """Return scores with the sign that makes larger ones better; and back."""
        return [float(value if self.maximize else -value) for value in values]

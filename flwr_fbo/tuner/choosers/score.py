"""Scores: weighted sums of metrics that trials are compared by."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from flwr_fbo.tuning.search.settings import Direction


@dataclass(frozen=True)
class Score:
    """A weighted sum of metrics, and which of two is better.

    Attributes
    ----------
    weights : dict of str to float
        Weight of each metric.
    direction : {"maximize", "minimize"}
        Whether larger or smaller scores are better.
    """

    weights: dict[str, float]
    direction: Direction

    def __str__(self) -> str:
        return " + ".join(self.weights)

    def signed(self, values: Iterable[float]) -> list[float]:
        """Return scores with the sign that makes larger ones better; and back."""
        is_larger_better = self.direction == "maximize"
        return [float(value if is_larger_better else -value) for value in values]

"""The control: after the same initial points, uniform draws from the cube."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._random import Purpose
from flwr_fbo._validation import require_int
from flwr_fbo.agents.tuning.base import Agent

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class RandomSearchSettings:
    """Which initial points to share with the methods it is compared to.

    Attributes
    ----------
    num_sub_regions, num_initial : int
        As in `ThompsonSettings`.
    """

    num_sub_regions: int = 4
    num_initial: int = 10

    def __post_init__(self) -> None:
        require_int("num_sub_regions", self.num_sub_regions, 1)
        require_int("num_initial", self.num_initial, 1)


class RandomSearchAgent(Agent):
    """Draws each point uniformly; sends nothing."""

    def receive(self, vectors: FloatArray) -> None:
        """Ignore what others know."""

    def message(self, iteration: int) -> FloatArray:
        """Return an empty vector: there is nothing to share."""
        return np.empty(0)

    def _suggest(self, iteration: int) -> FloatArray:
        return self._generator(iteration, Purpose.SEARCH).random(self.space.dim)

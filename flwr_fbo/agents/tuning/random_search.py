"""The control: after the same initial points, uniform draws from the cube."""

from __future__ import annotations

import numpy as np

from flwr_fbo._arrays import FloatArray
from flwr_fbo._random import Purpose, generator
from flwr_fbo.agents.tuning.base import Agent


class RandomSearchAgent(Agent):
    """Draws each point uniformly; sends nothing."""

    def receive(self, vectors: FloatArray, made_after: int = 0) -> None:
        """Ignore what others know."""

    def message(self, iteration: int) -> FloatArray:
        """Return an empty vector: there is nothing to share."""
        return np.empty(0)

    def _suggest(self, iteration: int) -> FloatArray:
        return generator(self.entropy, self.slot, iteration, Purpose.SEARCH).random(
            self.space.dim
        )

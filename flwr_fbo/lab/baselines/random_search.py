"""Controls that share nothing: uniform draws after the same initial points, and TS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.fields import integer
from flwr_fbo._common.random import Purpose, generator
from flwr_fbo._common.validation import require_int
from flwr_fbo.space.search_space import SearchSpace, SubRegions
from flwr_fbo.study.server import Server, Step
from flwr_fbo.tuning.registry import Algorithm, register
from flwr_fbo.tuning.search.agent import Agent
from flwr_fbo.tuning.search.settings import Direction, SearchSettings


@dataclass(frozen=True)
class RandomSearchSettings(SearchSettings):
    """Initial points that are shared with the methods it is compared to.

    Attributes
    ----------
    num_sub_regions, num_initial : int
        As in `DPFTSDESettings`.
    sub_region_axes : tuple of str
        As in `DPFTSDESettings`.
    """

    num_sub_regions: int = field(default=4, metadata=integer(1, cap="max_dimension"))
    sub_region_axes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "sub_region_axes", tuple(self.sub_region_axes))

    def sub_regions(self, space: SearchSpace) -> SubRegions:
        """Return the P boxes of the space; see `SearchSpace.sub_regions`."""
        return space.sub_regions(self.num_sub_regions, self.sub_region_axes)


class RandomSearchAgent(Agent):
    """Draws each point uniformly; sends nothing."""

    def __init__(
        self,
        space: SearchSpace,
        direction: Direction,
        settings: RandomSearchSettings,
        slot: int,
        entropy: int,
        feature_seed: int,
    ) -> None:
        regions = settings.sub_regions(space)
        super().__init__(space, direction, regions, settings.num_initial, slot, entropy)

    def receive(self, vectors: FloatArray, made_after: int = 0) -> None:
        """Ignore what others know."""

    def message(self, iteration: int) -> FloatArray:
        """Return an empty vector: there is nothing to share."""
        return np.empty(0)

    def suggest(self, iteration: int) -> FloatArray:
        """Return a uniform point, shape (D,)."""
        rng = generator(self.entropy, self.slot, iteration, Purpose.SEARCH)
        return self.space.snap(rng.random(self.space.dim))


register(
    Algorithm(
        "random", RandomSearchSettings, f"{__name__}:{RandomSearchAgent.__name__}"
    )
)


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

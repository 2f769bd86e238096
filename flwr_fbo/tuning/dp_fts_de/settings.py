"""Settings of the agents of DP-FTS-DE, which the server sends to all of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from flwr_fbo._common.fields import choice, flag, integer, number
from flwr_fbo.space.search_space import SearchSpace, SubRegions
from flwr_fbo.tuning.search.settings import SearchSettings

_POWERS = {"inverse": 1.0, "inverse-sqrt": 0.5, "inverse-square": 2.0}


Follow = Literal["never", "inverse", "inverse-sqrt", "inverse-square"]
InitialRegion = Literal["sub-region", "whole"]


@dataclass(frozen=True)
class DPFTSDESettings(SearchSettings):
    """The agent's settings; the defaults are those published for real data.

    See `SearchSettings` for the others.

    Examples
    --------
    >>> from optuna.distributions import FloatDistribution
    >>> from flwr_fbo import DPFTSDE
    >>> from flwr_fbo.tuning import DPFTSDESettings
    >>> agent = DPFTSDESettings(num_sub_regions=1)  # DP-FTS
    >>> space = {"C": FloatDistribution(1e-3, 1e3, log=True)}
    >>> strategy = DPFTSDE(space, "maximize", num_agents=20, agent=agent)

    Attributes
    ----------
    num_sub_regions : int
        P, >= 1.
    lengthscale : float
        l of the shared features, in units of the cube, from 1e-9 to 1e9.
    regularization : float
        lambda of the posterior behind a message, from 1e-15 to 1e15.
    follow : {"inverse", "inverse-sqrt", "inverse-square", "never"}
        1 - p_t is 1/t, 1/sqrt(t), 1/t^2, or 0; if not 0, iteration 1 always follows.
    sub_region_axes : tuple of str
        Parameters whose axes are cut into sub-regions: see `SearchSpace.sub_regions`.
        All continuous ones unless given.
    initial_region : {"sub-region", "whole"}
        Region of the initial points: in the agent's sub-region, or in the whole space,
        which leaves out one component of distributed exploration.
    random_starts : bool
        Whether the acquisition's optimiser starts from ``num_starts`` random points
        besides the candidates (DP-FTS-DE, appendix B.2.6). False: from the best
        candidates.
    """

    num_sub_regions: int = field(default=4, metadata=integer(1, cap="max_dimension"))
    lengthscale: float = field(default=0.01, metadata=number(1e-9, 1e9))
    regularization: float = field(default=1e-6, metadata=number(1e-15, 1e15))
    follow: Follow = field(default="inverse", metadata=choice(Follow))
    sub_region_axes: tuple[str, ...] = ()
    initial_region: InitialRegion = field(
        default="sub-region", metadata=choice(InitialRegion)
    )
    random_starts: bool = field(default=False, metadata=flag())

    def __post_init__(self) -> None:
        super().__post_init__()
        # JSON has lists only.
        object.__setattr__(self, "sub_region_axes", tuple(self.sub_region_axes))

    def sub_regions(self, space: SearchSpace) -> SubRegions:
        """Return the P boxes of the space; see `SearchSpace.sub_regions`."""
        return space.sub_regions(self.num_sub_regions, self.sub_region_axes)

    def follow_probability(self, iteration: int) -> float:
        """Return 1 - p_t for t >= 1."""
        if self.follow == "never":
            return 0.0
        return float(iteration ** -_POWERS[self.follow])

    def shared_lengthscale(self, dim: int) -> float:
        """Return l, whatever the dimension."""
        return self.lengthscale

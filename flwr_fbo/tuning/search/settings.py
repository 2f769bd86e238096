"""Settings of tuning agents, which the server sends to all of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from flwr_fbo._common.fields import FREE, check_fields, integer, number
from flwr_fbo._common.random import Purpose, generator
from flwr_fbo.space.search_space import SearchSpace, SubRegions

if TYPE_CHECKING:
    from flwr_fbo.models.features import RandomFeatures

Direction = Literal["maximize", "minimize"]


class Facts:
    """Base of what an algorithm tells its agents besides their settings; public.

    A frozen dataclass, which the algorithm's server half makes once the releases are
    planned.
    """

    kind: ClassVar[str]  # name of the algorithm, once it is registered

    def check(
        self, space: SearchSpace, direction: Direction, agent: SearchSettings
    ) -> None:
        """Raise ValueError unless the facts fit the rest of their study."""

    @property
    def num_rows(self) -> int:
        """Vectors that agents know besides those of this study's server."""
        return 0


@dataclass(frozen=True)
class SearchSettings:
    """Settings of agents that exchange vectors and search on their own.

    Attributes
    ----------
    num_features : int
        M, the length of a message, >= 1.
    num_sub_regions : int
        P >= 1, the vectors that the server releases.
    num_initial : int
        Evaluations before the first query, in the agent's sub-region, >= 1.
    num_surrogate_features : int
        M of the agent's own Thompson sample, drawn afresh in each iteration, >= 1.
    refit_every : int
        New observations between two fits of the hyperparameters, >= 1.
    noise_floor : float
        Smallest noise variance of the agent's own model, from 1e-15 to 1e6. It is
        absolute, and the published model neither centres nor scales: give it values
        whose spread is neither far below 1 nor far below their mean.
    num_candidates, num_starts : int
        Points of the acquisition's optimiser, >= 1.
    """

    # Whether agents start at one point, and search by improvement: see `LeanAgent`.
    is_lean: ClassVar[bool] = False
    kind: ClassVar[str]  # name of the algorithm, once it is registered

    num_features: int = field(default=100, metadata=integer(1, cap="max_features"))
    num_sub_regions: int = field(default=1, metadata=integer(1, cap="max_dimension"))
    num_initial: int = field(default=10, metadata=integer(1))
    num_surrogate_features: int = field(
        default=100, metadata=integer(1, cap="max_features")
    )
    refit_every: int = field(default=5, metadata=integer(1, cap=FREE))
    noise_floor: float = field(default=1e-5, metadata=number(1e-15, 1e6))
    num_candidates: int = field(default=1000, metadata=integer(1))
    num_starts: int = field(default=20, metadata=integer(1))

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def message_length(self) -> int:
        """Numbers in a message."""
        return self.num_features

    def sub_regions(self, space: SearchSpace) -> SubRegions:
        """Return the P boxes of the space."""
        return space.sub_regions(self.num_sub_regions)

    def follow_probability(self, iteration: int) -> float:
        """Return how likely an agent looks at the server's vectors at t >= 1."""
        return 1.0

    def steps(self, dim: int, num_rows: int) -> dict[str, float]:
        """Return what a message takes: see `Study.steps`.

        Parameters
        ----------
        dim : int
            D.
        num_rows : int
            Vectors that the server sends.
        """
        M = max(self.num_features, self.num_surrogate_features)
        n, C, S = self.num_initial, self.num_candidates, self.num_starts
        P = self.num_sub_regions
        return {
            f"num_initial={n}": 1500 * n * dim + 8 * n**3,
            f"num_candidates={C}": C * (4 * dim + M * (2 + (dim + P) / 20)),
            f"num_starts={S}": S * (M + dim) * (400 + 2 * dim),
        }

    def shared_lengthscale(self, dim: int) -> float:
        """Return the lengthscale of the shared features, in units of the cube.

        Without any, as where messages are about a pool of points, it does not matter.
        """
        return 1.0

    def shared_features(self, dim: int, feature_seed: int) -> RandomFeatures:
        """Return the features that all agents of a study, and its server, share."""
        from flwr_fbo.models.features import RandomFeatures

        return RandomFeatures.draw(
            generator(feature_seed, Purpose.SHARED_FEATURES),
            self.num_features,
            dim,
            self.shared_lengthscale(dim),
        )

"""Settings of tuning agents, which the server sends to all of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, get_args

from flwr_fbo._common.conversion import take_plain
from flwr_fbo._common.random import Purpose, generator
from flwr_fbo._common.validation import (
    require,
    require_int,
    require_positive,
)
from flwr_fbo.space.search_space import SearchSpace, SubRegions

if TYPE_CHECKING:
    from flwr_fbo.models.features import RandomFeatures

Direction = Literal["maximize", "minimize"]


class AgentSettings(Protocol):
    """What the settings of every kind of tuning agent have: a frozen dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def num_sub_regions(self) -> int:
        """P."""

    @property
    def num_initial(self) -> int:
        """Initial points of an agent."""

    def sub_regions(self, space: SearchSpace) -> SubRegions:
        """Return the P boxes of the space."""

    def steps(self, dim: int, num_rows: int) -> dict[str, float]:
        """Return what a message takes: see `SearchSettings`."""


def check_direction(direction: Any) -> None:
    """Raise ValueError unless ``direction`` is one of the two."""
    allowed = f"one of {get_args(Direction)}"
    require(direction in get_args(Direction), "direction", direction, allowed)


@dataclass(frozen=True)
class SearchSettings(ABC):
    """What agents have in common that exchange vectors and search on their own.

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
        Smallest noise variance of the agent's own model, > 0. It is absolute, and the
        published model neither centres nor scales: give it values whose spread is
        neither far below 1 nor far below their mean.
    num_candidates, num_starts : int
        Of the acquisition's optimiser, >= 1.
    """

    num_features: int = 100
    num_sub_regions: int = 1
    num_initial: int = 10
    num_surrogate_features: int = 100
    refit_every: int = 5
    noise_floor: float = 1e-5
    num_candidates: int = 1000
    num_starts: int = 20

    def __post_init__(self) -> None:
        take_plain(self)
        for name in (
            "num_features",
            "num_sub_regions",
            "num_initial",
            "num_surrogate_features",
            "refit_every",
            "num_candidates",
            "num_starts",
        ):
            require_int(name, getattr(self, name), 1)
        require_positive("noise_floor", self.noise_floor)

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
            Of the server's vectors.
        """
        M = max(self.num_features, self.num_surrogate_features)
        n, C, S = self.num_initial, self.num_candidates, self.num_starts
        P = self.num_sub_regions
        return {
            f"num_initial={n}": 1500 * n * dim + 8 * n**3,
            f"num_candidates={C}": C * (4 * dim + M * (2 + (dim + P) / 20)),
            f"num_starts={S}": S * (M + dim) * (400 + 2 * dim),
        }

    @abstractmethod
    def shared_lengthscale(self, dim: int) -> float:
        """Return the lengthscale of the shared features, in units of the cube."""

    def shared_features(self, dim: int, feature_seed: int) -> RandomFeatures:
        """Return the features that all agents of a study, and its server, share."""
        from flwr_fbo.models.features import RandomFeatures

        return RandomFeatures.draw(
            generator(feature_seed, Purpose.SHARED_FEATURES),
            self.num_features,
            dim,
            self.shared_lengthscale(dim),
        )

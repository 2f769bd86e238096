"""Settings of tuning agents, which the server sends to all of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, get_args

from flwr_fbo._conversion import take_plain
from flwr_fbo._random import Purpose, generator
from flwr_fbo._validation import (
    require,
    require_bool,
    require_choice,
    require_int,
    require_positive,
)
from flwr_fbo.space.search_space import SearchSpace
from flwr_fbo.space.sub_regions import SubRegions

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


_POWERS = {"inverse": 1.0, "inverse-sqrt": 0.5, "inverse-square": 2.0}


Follow = Literal["never", "inverse", "inverse-sqrt", "inverse-square"]
InitialRegion = Literal["sub-region", "whole"]


@dataclass(frozen=True)
class ThompsonSettings(SearchSettings):
    """The agent's settings; the defaults are those published for real data.

    See `SearchSettings` for the others.

    Examples
    --------
    >>> from optuna.distributions import FloatDistribution
    >>> from flwr_fbo import DPFTSDE, ThompsonSettings
    >>> agent = ThompsonSettings(num_sub_regions=1)  # DP-FTS
    >>> space = {"C": FloatDistribution(1e-3, 1e3, log=True)}
    >>> strategy = DPFTSDE(space, "maximize", num_agents=20, agent=agent)

    Attributes
    ----------
    num_sub_regions : int
        P, >= 1.
    lengthscale : float
        l of the shared features, in units of the cube, > 0.
    regularization : float
        lambda of the posterior behind a message, > 0.
    follow : {"inverse", "inverse-sqrt", "inverse-square", "never"}
        1 - p_t is 1/t, 1/sqrt(t), 1/t^2, or 0; if not 0, iteration 1 always follows.
    sub_region_axes : tuple of str
        Parameters whose axes are cut into sub-regions: see `SearchSpace.sub_regions`.
        All continuous ones unless given.
    initial_region : {"sub-region", "whole"}
        Where initial points are drawn: in the agent's sub-region, or in the whole
        space, which leaves out one component of distributed exploration.
    random_starts : bool
        Whether the acquisition's optimiser starts from ``num_starts`` random points
        besides the candidates (DP-FTS-DE, appendix B.2.6). False: from the best
        candidates.
    """

    num_sub_regions: int = 4
    lengthscale: float = 0.01
    regularization: float = 1e-6
    follow: Follow = "inverse"
    sub_region_axes: tuple[str, ...] = ()
    initial_region: InitialRegion = "sub-region"
    random_starts: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("lengthscale", "regularization"):
            require_positive(name, getattr(self, name))
        require_choice("follow", self.follow, Follow)
        require_choice("initial_region", self.initial_region, InitialRegion)
        require_bool("random_starts", self.random_starts)
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


Weighting = Literal["uniform", "similarity"]


@dataclass(frozen=True)
class FTSSettings(ThompsonSettings):
    """The agent's settings; the defaults are those published for real data.

    See `ThompsonSettings` for the others.

    Examples
    --------
    >>> from optuna.distributions import FloatDistribution
    >>> from flwr_fbo import FTS, FTSSettings
    >>> agent = FTSSettings(share_after=10, weighting="similarity")
    >>> space = {"C": FloatDistribution(1e-3, 1e3, log=True)}
    >>> strategy = FTS(space, "maximize", num_agents=20, agent=agent)

    Attributes
    ----------
    num_sub_regions : int
        1.
    follow : {"inverse-square", "inverse-sqrt", "inverse", "never"}
        1 - p_t is 1/t^2 (published for real data), 1/sqrt(t) (for synthetic
        functions), 1/t, or 0; t is at least 2.
    share_after : int, optional
        None: all agents send a message after every iteration, and follow the newest.
        K >= 0: they search alone up to iteration K, send one message, and follow each
        other's once; t counts from there.
    weighting : {"uniform", "similarity"}
        P_N. ``"uniform"``, as published: all agents alike whose message is there.
        ``"similarity"``: by how well a message ranks the agent's own observations,
        Kendall's tau where it is positive; agents that rank no better than chance are
        not followed.
    """

    num_sub_regions: int = 1
    num_initial: int = 3
    follow: Follow = "inverse-square"
    share_after: int | None = None
    weighting: Weighting = "uniform"

    def __post_init__(self) -> None:
        super().__post_init__()
        P = self.num_sub_regions
        require(P == 1, "num_sub_regions", P, "1, where agents follow each other")
        if self.share_after is not None:
            require_int("share_after", self.share_after, 0)
        ok = self.weighting in get_args(Weighting)
        require(ok, "weighting", self.weighting, f"one of {get_args(Weighting)}")

    def steps(self, dim: int, num_rows: int) -> dict[str, float]:
        """Return what a message takes: see `SearchSettings`."""
        compared = num_rows if self.weighting == "similarity" else 0
        rows = {f"{num_rows} agents' messages": 50_000 * compared}
        return {**super().steps(dim, num_rows), **rows}

    def follow_probability(self, iteration: int) -> float:
        """Return 1 - p_t for t >= 1."""
        since = iteration - (self.share_after or 0)
        return super().follow_probability(max(since, 2))

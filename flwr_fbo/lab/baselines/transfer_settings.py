"""Settings of RGPE and TAF."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass, field

from flwr_fbo._common.fields import FREE, integer, positive
from flwr_fbo._common.validation import require
from flwr_fbo.algorithms.registry import Algorithm, register
from flwr_fbo.algorithms.search.settings import SearchSettings


@dataclass(frozen=True)
class TransferSettings(SearchSettings, ABC):
    """What both have in common; see `SearchSettings` for the others.

    Attributes
    ----------
    num_sub_regions : int
        1.
    lengthscale : float
        l of the shared features, in units of the cube, > 0.
    regularization : float
        lambda of the posterior behind a message, > 0.
    share_after : int
        The iteration, >= 0, after which every agent sends its surrogate.
    """

    num_sub_regions: int = field(default=1, metadata=integer(1, cap="max_dimension"))
    num_initial: int = field(default=3, metadata=integer(1))
    lengthscale: float = field(default=0.01, metadata=positive())
    regularization: float = field(default=1e-6, metadata=positive())
    share_after: int = field(default=0, metadata=integer(0, cap=FREE))

    def __post_init__(self) -> None:
        super().__post_init__()
        P = self.num_sub_regions
        require(P == 1, "num_sub_regions", P, "1, where agents send surrogates")

    @property
    def message_length(self) -> int:
        """M + M^2."""
        return self.num_features + self.num_features**2

    def steps(self, dim: int, num_rows: int) -> dict[str, float]:
        """Return what a message takes: see `SearchSettings`."""
        M, S = self.num_features, self.num_starts
        points = self.num_candidates + 60 * S * (2 * dim + 1)
        surrogates = {
            f"num_features={M} of surrogates": M**3 / 5 + 20 * M**2,
            f"{num_rows} surrogates": num_rows * points * (M + M**2 / 10),
        }
        return {**super().steps(dim, num_rows), **surrogates}

    def shared_lengthscale(self, dim: int) -> float:
        """Return l, whatever the dimension."""
        return self.lengthscale


@dataclass(frozen=True)
class RGPESettings(TransferSettings):
    """Of the ranking-weighted ensemble; see `TransferSettings` for the others.

    Attributes
    ----------
    num_samples : int
        S, posterior samples of each model, >= 1.
    """

    num_samples: int = field(default=100, metadata=integer(1))

    def steps(self, dim: int, num_rows: int) -> dict[str, float]:
        """Return what a message takes: see `SearchSettings`."""
        S = self.num_samples
        samples = {f"num_samples={S}": 1000 * S * (num_rows + 1)}
        return {**super().steps(dim, num_rows), **samples}


@dataclass(frozen=True)
class TAFSettings(TransferSettings):
    """Of the transfer acquisition function; see `TransferSettings` for the others.

    Attributes
    ----------
    bandwidth : float
        rho, > 0: models that rank a larger share of the pairs wrongly count nothing.
        0.5 in the code of the FTS paper's authors, 0.1 elsewhere.
    """

    bandwidth: float = field(default=0.5, metadata=positive())

    @property
    def message_length(self) -> int:
        """M + M^2 + 1: the incumbent too, which no formula here needs."""
        return super().message_length + 1


_AGENTS = "flwr_fbo.lab.baselines.transfer_agents"
register(Algorithm("rgpe", RGPESettings, f"{_AGENTS}:RGPEAgent"))
register(Algorithm("taf", TAFSettings, f"{_AGENTS}:TAFAgent"))

"""Settings of RGPE and TAF."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass

from flwr_fbo._common.validation import require, require_int, require_positive
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

    num_sub_regions: int = 1
    num_initial: int = 3
    lengthscale: float = 0.01
    regularization: float = 1e-6
    share_after: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        P = self.num_sub_regions
        require(P == 1, "num_sub_regions", P, "1, where agents send surrogates")
        for name in ("lengthscale", "regularization"):
            require_positive(name, getattr(self, name))
        require_int("share_after", self.share_after, 0)

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

    num_samples: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        require_int("num_samples", self.num_samples, 1)

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

    bandwidth: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("bandwidth", self.bandwidth)

    @property
    def message_length(self) -> int:
        """M + M^2 + 1: the incumbent too, which no formula here needs."""
        return super().message_length + 1


register(
    Algorithm("rgpe", RGPESettings, "flwr_fbo.lab.baselines.transfer_agents:RGPEAgent")
)
register(
    Algorithm("taf", TAFSettings, "flwr_fbo.lab.baselines.transfer_agents:TAFAgent")
)

"""Base of the ballots: what a client says of a rung's trials, and how far it may go.

A ballot is one vector about all trials of a rung. A class of ballots has what depends
on whom the choice protects: the vector, its bounds, how far neighbours' ballots are
apart, and what chance makes of their sum. Besides, choosers divide by the number of
examples where ballots count them, and logs name what they count.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.privacy.guarantee import PrivacyUnit
from flwr_fbo.privacy.release import ReleaseSettings
from flwr_fbo.privacy.weights import WeightSchedule

# Which trials are left in each of some drawn tuners, the number of voices that speak of
# them, and that of clients: returns the scores that chance gives them.
Draw = Callable[[NDArray[np.intp], int, int], FloatArray]


class Ballots(ABC):
    """Ballots of one sort: their vector, their bounds, their sensitivity.

    Attributes
    ----------
    unit : PrivacyUnit
        Whom the noise of a sum protects.
    voices : str
        Name of what the evidence in a sum grows with: ``"clients"`` or ``"examples"``.
    keeps_luck : bool
        Whether a trial that chance favours in one rung is favoured in all.
    """

    unit: ClassVar[PrivacyUnit]
    voices: ClassVar[Literal["clients", "examples"]]
    keeps_luck: ClassVar[bool]

    @abstractmethod
    def vector(self, scores: FloatArray, weights: FloatArray) -> FloatArray:
        """Return a client's ballot, shape (K,).

        Parameters
        ----------
        scores : ndarray of shape (K,)
            Larger is better. A score that is not finite is a failure.
        weights : ndarray of shape (K,)
            Numbers of examples; 0 where the client was not asked.
        """

    @abstractmethod
    def capped(self, ballot: Any, num_trials: int, num_examples: int) -> Any:
        """Return a ballot within the bounds of an honest one of such a client.

        An honest ballot stays as it is, and so does what is no ballot.
        """

    @abstractmethod
    def norm(self, num_trials: int) -> float:
        """Return the largest norm of a ballot."""

    @abstractmethod
    def distance(self, num_trials: int) -> float | None:
        """Return the largest distance of neighbours' ballots; None: to zeros."""

    def release(
        self,
        num_clients: int,
        num_trials: int,
        noise_multiplier: float,
        *,
        noise_only: bool = False,
    ) -> ReleaseSettings:
        """Return how the ballots of N clients on K trials are released: their mean."""
        return ReleaseSettings(
            num_agents=num_clients,
            clip_norm=self.norm(num_trials),
            noise_multiplier=noise_multiplier,
            sampling_probability=1.0,
            noise_only=noise_only,
            # Without a peak each client weighs 1 / N: the release is a mean.
            weights=WeightSchedule(peak=0.0),
            distance=self.distance(num_trials),
        )

    @classmethod
    @abstractmethod
    def noise_std(cls, num_trials: int, num_voices: int, z: float) -> float:
        """Return the noise of a score, with noise multiplier z and so many voices."""

    @staticmethod
    @abstractmethod
    def chance(num_trials: int, num_voices: int, num_clients: int) -> float:
        """Return the variance of a score by chance, where trials are alike."""

    @staticmethod
    @abstractmethod
    def spread(num_trials: int) -> float:
        """Return the expected standard deviation of the trials' true scores."""

    @staticmethod
    @abstractmethod
    def draws(rng: np.random.Generator, shape: tuple[int, int], *, agree: bool) -> Draw:
        """Return what draws scores without noise, for so many tuners and trials.

        Parameters
        ----------
        rng : numpy.random.Generator
            Source of the draws.
        shape : tuple of int
            Numbers of tuners and of trials of the first rung.
        agree : bool
            Whether trials differ: trial 0 is the worst, and the last one the best. Else
            they are alike.
        """

    @staticmethod
    @abstractmethod
    def silent(
        scores: FloatArray, noise_std: float, num_voices: int
    ) -> tuple[float, float]:
        """Return how many voices have no finite score, as estimated, and its std."""


def is_vector(ballot: Any, num_trials: int) -> bool:
    """Return whether what came is a vector of floats of the right length."""
    return (
        isinstance(ballot, np.ndarray)
        and ballot.shape == (num_trials,)
        and ballot.dtype.kind == "f"
        and ballot.dtype.itemsize <= 8
    )

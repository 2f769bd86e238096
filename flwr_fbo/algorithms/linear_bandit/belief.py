"""What an agent chooses by: an ellipsoid of parameters, and how it explores that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray, first_best
from flwr_fbo.algorithms.linear_bandit.exploration import Exploration, Optimism, drawn

if TYPE_CHECKING:
    from flwr_fbo.models.ellipsoid import Ellipsoid


@dataclass(frozen=True, eq=False)
class Belief:
    """The parameters t with ||t - estimate||_V <= w, of one model or of a batch.

    Attributes
    ----------
    ellipsoid : Ellipsoid
        V and the estimate.
    width : ndarray of shape (...)
        w >= 0, of each model.
    exploration : Exploration
        How an agent chooses within the ellipsoid.
    """

    ellipsoid: Ellipsoid
    width: FloatArray
    exploration: Exploration

    @property
    def coordinate_widths(self) -> FloatArray:
        """Half the confidence interval of each coordinate, shape (..., d).

        w sqrt((V^-1)_ii): coordinate i of t is at most that far from theta's, for every
        t with ||t - theta||_V <= w (Cauchy-Schwarz).
        """
        factor = self.ellipsoid.factor
        axes = np.broadcast_to(np.eye(factor.shape[-1]), factor.shape)
        lengths = np.linalg.norm(self.ellipsoid.whitened(axes), axis=-2)
        return np.asarray(self.width[..., None] * lengths)

    def upper_bounds(self, actions: FloatArray) -> FloatArray:
        """Return the upper confidence bound of each action's mean reward."""
        return self.ellipsoid.upper_bounds(actions, self.width)

    def probabilities(
        self, actions: FloatArray, rngs: Sequence[np.random.Generator]
    ) -> FloatArray:
        """Return with which probability each action is played: see `Exploration`.

        Parameters
        ----------
        actions : ndarray of shape (A, K, d)
            Of A decisions.
        rngs : sequence of A numpy.random.Generator
            What each decision draws from.

        Returns
        -------
        ndarray of shape (A, K)
        """
        mean, directions = self.ellipsoid.rewards(actions)
        widths = np.broadcast_to(self.width, len(actions))
        return self.exploration.probabilities(mean, directions, widths, rngs)

    def choose(
        self,
        actions: FloatArray,
        rngs: Callable[[], Sequence[np.random.Generator]],
    ) -> tuple[NDArray[np.intp], FloatArray]:
        """Choose for A decisions; return indices and their probabilities, shape (A,).

        Parameters
        ----------
        actions : ndarray of shape (A, K, d)
        rngs : callable
            Returns what `probabilities` takes; called only if there is chance.
        """
        if isinstance(self.exploration, Optimism):  # all of them at once
            chosen = first_best(self.upper_bounds(actions))
            return chosen, np.ones(len(actions))
        generators = rngs()
        probabilities = self.probabilities(actions, generators)
        draws = [drawn(*one) for one in zip(probabilities, generators, strict=True)]
        indices, propensities = zip(*draws, strict=True)
        return np.array(indices), np.array(propensities)

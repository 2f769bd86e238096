"""The agent of ApproxDisKernelUCB: kernel ridge regression on a shared dictionary.

Li, Wang, Wang & Wang, *Communication Efficient Distributed Learning for Kernelized
Contextual Bandits* (NeurIPS 2022), algorithm 2. With `models.nystrom`'s mean and
variance of all synchronised data and its own since, an agent plays the action with the
largest mean + sqrt(beta variance), and asks for a synchronisation once

    sum of variance_last(x) over its points x since the last synchronisation > D,

where variance_last is as it was then. In a synchronisation

1. every agent draws each of its points into the dictionary, with probability
   min(1, q variance_last(x)), and sends those drawn; all get all of them;
2. every agent computes the features of all of its points anew, and sends their sums
   (sum z z' and sum z y); all get the total.

What the paper leaves open, or where we differ:

- The kernel is a squared exponential one, of variance 1.
- Points that are drawn more than once are in the dictionary once: the features are the
  same, and candidates that stay are drawn often. Nor is one sent twice by an agent.
- Before the first synchronisation there is no dictionary: all actions look alike, the
  variance is 1 / lambda, and an agent tries an action at random, as in phase I of
  Fed-GO-UCB. The first in the list would be luck: it may well be the best.
- If nobody draws a point, there is no dictionary afterwards either.
- beta is a constant that is set, as for the other methods.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.random import Purpose, generator
from flwr_fbo._common.validation import require, require_int, require_positive
from flwr_fbo.algorithms.fed_go_ucb.agent import checked_observation
from flwr_fbo.lab.baselines.nystrom import NystromFeatures, NystromRegression, sums_of
from flwr_fbo.models.near_ties import first_best
from flwr_fbo.models.threads import one_blas_thread


@dataclass(frozen=True)
class KernelUCBSettings:
    """What all agents of a study have in common.

    Attributes
    ----------
    lengthscale : float
        > 0: of the kernel, in the units of an action's coordinates.
    ridge : float
        lambda > 0.
    beta : float
        > 0: the squared width of a confidence bound, in units of the variance.
    threshold : float
        D > 0: the larger, the fewer synchronisations.
    oversampling : float
        q > 0: the larger, the larger the dictionary.
    """

    lengthscale: float = 1.0
    ridge: float = 0.1
    beta: float = 0.01
    threshold: float = 1.0
    oversampling: float = 1.0

    def __post_init__(self) -> None:
        for name in ("lengthscale", "ridge", "beta", "threshold", "oversampling"):
            require_positive(name, getattr(self, name))


class KernelUCBAgent:
    """One agent: `choose` and `tell`; the rest is a synchronisation.

    There all agents send what they `draw`, `adopt` the dictionary and send their
    `message`, and `receive` the total.

    Parameters
    ----------
    settings : KernelUCBSettings
    dimension : int
        D, an action's coordinates.
    seed : int
        Of the study.
    slot : int
        The agent's.
    """

    def __init__(
        self, settings: KernelUCBSettings, dimension: int, seed: int, slot: int
    ) -> None:
        require_int("dimension", dimension, 1)
        self.settings, self.dimension = settings, dimension
        self._seed, self._slot = seed, slot
        self._x: list[FloatArray] = []
        self._y: list[float] = []
        self.adopt(np.zeros((0, dimension)))
        self.receive(np.zeros((1, 0)))

    @one_blas_thread
    def choose(self, actions: ArrayLike) -> int:
        """Return the index of the action with the largest upper confidence bound.

        Of several that are equal, the lowest; without a dictionary, any.

        Parameters
        ----------
        actions : array of shape (K, D)
            K >= 1, finite.
        """
        mean, variance = self.predict(actions)
        if not len(self._features.dictionary):
            key = (self._slot, len(self._x), Purpose.INITIAL_POINTS)
            return int(generator(self._seed, *key).integers(len(mean)))
        return int(first_best(mean + np.sqrt(self.settings.beta * variance)))

    def predict(self, actions: ArrayLike) -> tuple[FloatArray, FloatArray]:
        """Return mean and variance of actions, each of shape (K,)."""
        x = checked_actions(actions, self.dimension)
        return self._regression.predict(x)

    @one_blas_thread
    def tell(self, action: ArrayLike, reward: float) -> None:
        """Record what an action, shape (D,), was rewarded with.

        Raises
        ------
        ValueError
            If either is not finite, or of another shape. Nothing is recorded then.
        """
        x, y = checked_observation(action, reward, self.dimension)
        self._x.append(x)
        self._y.append(y)
        self._variance_since += float(self._synchronised.predict(x[None])[1][0])
        self._regression.observe(x, y)

    def wants_synchronisation(self) -> bool:
        """Return whether the agent has learned enough by itself."""
        return self._variance_since > self.settings.threshold

    # A synchronisation

    @one_blas_thread
    def draw(self) -> FloatArray:
        """Return points of the agent's own, for the dictionary: shape (m, D)."""
        x = self._points
        if not len(x):
            return x
        rng = generator(self._seed, self._slot, len(x), Purpose.DICTIONARY)
        probability = self.settings.oversampling * self._synchronised.predict(x)[1]
        return np.unique(x[rng.uniform(size=len(x)) < probability], axis=0)

    @one_blas_thread
    def adopt(self, dictionary: FloatArray) -> None:
        """Take a dictionary, shape (m, D): `message` and `receive` are about it.

        Raises
        ------
        ValueError
            If these are no such points.
        """
        points, d = np.asarray(dictionary, dtype=float), self.dimension
        ok = points.ndim == 2 and points.shape[1] == d and np.isfinite(points).all()
        require(bool(ok), "dictionary", points, f"finite, of shape (m, {d})")
        self._features = NystromFeatures(points, self.settings.lengthscale)

    @one_blas_thread
    def message(self) -> FloatArray:
        """Return the sums over the agent's own points, shape (m + 1, m)."""
        return sums_of(self._features, self._points, np.array(self._y))

    @one_blas_thread
    def receive(self, total: FloatArray) -> None:
        """Take the sums over all agents, shape (m + 1, m).

        Raises
        ------
        ValueError
            If these are no such sums.
        """
        size = len(self._features.dictionary)
        ok = total.shape == (size + 1, size) and bool(np.isfinite(total).all())
        require(ok, "total", total, f"finite, of shape {(size + 1, size)}")
        ridge = self.settings.ridge
        self._synchronised = NystromRegression(self._features, total, ridge)
        self._regression = NystromRegression(self._features, total, ridge)
        self._variance_since = 0.0

    @property
    def _points(self) -> FloatArray:
        return np.array(self._x).reshape(-1, self.dimension)


def checked_actions(actions: ArrayLike, dimension: int) -> FloatArray:
    """Return actions as an array of shape (K, D).

    Raises
    ------
    ValueError
        If there are none, they have other coordinates, or one is not finite.
    """
    x = np.asarray(actions, dtype=float)
    ok = x.ndim == 2 and len(x) > 0 and x.shape[1] == dimension
    ok = ok and bool(np.isfinite(x).all())
    require(ok, "actions", x, f"finite, of shape (K, {dimension}) with K >= 1")
    return x

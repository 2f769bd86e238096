"""ApproxDisKernelUCB: kernel ridge regression on a shared dictionary.

Li, Wang, Wang & Wang, *Communication Efficient Distributed Learning for Kernelized
Contextual Bandits* (NeurIPS 2022), algorithm 2. With Nystrom's mean and
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

Nystrom's approximation. With points S and the kernel k, a point's features are z(x) =
K_SS^-1/2 k_S(x), so that z(x)'z(x') is k(x, x') wherever one of them is in S. With V =
lambda I + sum z z' and u = sum z y (Calandriello, Carratino, Lazaric, Valko & Rosasco,
COLT 2019):

    mean(x) = z(x)'V^-1 u,
    variance(x) = (k(x, x) - z(x)'z(x)) / lambda + z(x)'V^-1 z(x),

the same as (k(x, x) - z(x)' (sum z z') V^-1 z(x)) / lambda, but without a difference of
two large numbers where lambda is small. A variance is at most 1 / lambda.

The server joins the agents' points, and adds up. A synchronisation of N agents that
send n points of D coordinates in all, m of them in the dictionary, takes

    n D (points, up) + N m D (dictionary, down) + 2 N (m^2 + m) (sums, up and down)

scalars. Only simulations play it, where every agent answers: nothing is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from flwr_fbo._common.arrays import FloatArray, first_best, one_blas_thread
from flwr_fbo._common.fields import check_fields, positive
from flwr_fbo._common.random import Purpose, generator
from flwr_fbo.models.ellipsoid import Ellipsoid

# Eigenvalues of K_SS below this share of the largest are rounding.
_RANK_TOLERANCE = 1e-13


def rbf_kernel(x: FloatArray, other: FloatArray, lengthscale: float) -> FloatArray:
    """Return exp(-|x - x'|^2 / (2 l^2)), shape (n, m), of (n, D) and (m, D) points."""
    from scipy.spatial.distance import cdist

    squared = cdist(x, other, "sqeuclidean")
    return np.asarray(np.exp(-0.5 * squared / lengthscale**2))


class NystromFeatures:
    """z(x).

    Parameters
    ----------
    dictionary : ndarray of shape (m, D)
        S; m >= 0.
    lengthscale : float
        l > 0 of the kernel, `rbf_kernel`.

    Attributes
    ----------
    dictionary : ndarray of shape (m, D)
        Points S of the dictionary.
    """

    def __init__(self, dictionary: FloatArray, lengthscale: float) -> None:
        self.dictionary = dictionary
        self._lengthscale = lengthscale
        # The symmetric root does not depend on signs or the order of eigenvectors, so
        # that agents on different machines have the same features.
        kernel = rbf_kernel(dictionary, dictionary, lengthscale)
        values, vectors = np.linalg.eigh(kernel)
        kept = values > _RANK_TOLERANCE * values.max(initial=0.0)
        self._root = (vectors[:, kept] / np.sqrt(values[kept])) @ vectors[:, kept].T

    def __call__(self, x: FloatArray) -> FloatArray:
        """Return the features of points of shape (n, D): shape (n, m)."""
        return np.asarray(
            rbf_kernel(x, self.dictionary, self._lengthscale) @ self._root
        )


class NystromRegression:
    """Belief about the reward of a point, by a sum over observations.

    Parameters
    ----------
    features : NystromFeatures
        Features z of the points.
    sums : ndarray of shape (m + 1, m)
        Sum of z z', and in the last row of z y: see `sums_of`.
    ridge : float
        lambda > 0.
    """

    def __init__(
        self, features: NystromFeatures, sums: FloatArray, ridge: float
    ) -> None:
        self.features = features
        self._ridge = ridge
        self._ellipsoid: Ellipsoid | None = None
        if sums.size:
            matrix = sums[:-1] + ridge * np.eye(len(sums) - 1)
            self._ellipsoid = Ellipsoid(matrix, sums[-1])

    def observe(self, x: FloatArray, y: float) -> None:
        """Add a point, shape (D,), and its reward."""
        if self._ellipsoid is not None:
            self._ellipsoid.observe(self.features(x[None])[0], y)

    def predict(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return mean and variance at points of shape (n, D), each of shape (n,)."""
        if self._ellipsoid is None:
            return np.zeros(len(x)), np.full(len(x), 1 / self._ridge)
        z = self.features(x)
        right = np.vstack([z, self._ellipsoid.target]).T
        solved = self._ellipsoid.whitened(right)
        solved_z, solved_u = solved[:, :-1], solved[:, -1]
        missing = np.maximum(1 - np.einsum("ij,ij->i", z, z), 0.0)
        variance = missing / self._ridge + np.einsum("ij,ij->j", solved_z, solved_z)
        return solved_u @ solved_z, variance


def sums_of(features: NystromFeatures, x: FloatArray, y: FloatArray) -> FloatArray:
    """Return the sums of z z', and in the last row of z y, over n >= 0 points."""
    z = features(x)
    return np.vstack([z.T @ z, y @ z])


@dataclass(frozen=True)
class KernelUCBSettings:
    """Settings of all agents of a study.

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

    lengthscale: float = field(default=1.0, metadata=positive())
    ridge: float = field(default=0.1, metadata=positive())
    beta: float = field(default=0.01, metadata=positive())
    threshold: float = field(default=1.0, metadata=positive())
    oversampling: float = field(default=1.0, metadata=positive())

    def __post_init__(self) -> None:
        check_fields(self)

    def agents(
        self, num_agents: int, dimension: int, seed: int
    ) -> list[KernelUCBAgent]:
        """Return the agents of a study, before their first evaluation."""
        slots = range(num_agents)
        return [KernelUCBAgent(self, dimension, seed, slot) for slot in slots]

    @staticmethod
    def synchronise(
        agents: Sequence[KernelUCBAgent],
        send: Callable[[FloatArray], FloatArray] = lambda array: array,
    ) -> None:
        """Let all agents share what they know.

        Parameters
        ----------
        agents : sequence of KernelUCBAgent
            All agents of the study.
        send : callable
            Function that all arrays pass that agents and server send each other.
        """
        drawn = [send(agent.draw()) for agent in agents]
        # Sorted: the dictionary does not depend on who was first.
        dictionary = np.unique(np.concatenate(drawn), axis=0)
        for agent in agents:
            agent.adopt(send(dictionary))
        total = np.sum([send(agent.message()) for agent in agents], axis=0)
        for agent in agents:
            agent.receive(send(total))


class KernelUCBAgent:
    """One agent: `choose` and `tell`; the rest is a synchronisation.

    There all agents send what they `draw`, `adopt` the dictionary and send their
    `message`, and `receive` the total.

    Parameters
    ----------
    settings : KernelUCBSettings
        Settings of all agents.
    dimension : int
        D, an action's coordinates.
    seed : int
        Seed of the study.
    slot : int
        The agent's.
    """

    def __init__(
        self, settings: KernelUCBSettings, dimension: int, seed: int, slot: int
    ) -> None:
        self.settings, self.dimension = settings, dimension
        self._seed, self._slot = seed, slot
        self._x: list[FloatArray] = []
        self._y: list[float] = []
        self.adopt(np.zeros((0, dimension)))
        self.receive(np.zeros((1, 0)))

    @one_blas_thread
    def choose(self, actions: FloatArray) -> int:
        """Return the index of the action with the largest upper confidence bound.

        Of several that are equal, the lowest; without a dictionary, any.

        Parameters
        ----------
        actions : ndarray of shape (K, D)
            K >= 1.
        """
        mean, variance = self.predict(actions)
        if not len(self._features.dictionary):
            key = (self._slot, len(self._x), Purpose.INITIAL_POINTS)
            return int(generator(self._seed, *key).integers(len(mean)))
        return int(first_best(mean + np.sqrt(self.settings.beta * variance)))

    def predict(self, actions: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return mean and variance of actions, each of shape (K,)."""
        return self._regression.predict(actions)

    @one_blas_thread
    def tell(self, action: FloatArray, reward: float) -> None:
        """Record what an action, shape (D,), was rewarded with."""
        self._x.append(action)
        self._y.append(reward)
        self._variance_since += float(self._synchronised.predict(action[None])[1][0])
        self._regression.observe(action, reward)

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
        """Take a dictionary, shape (m, D): `message` and `receive` are about it."""
        self._features = NystromFeatures(dictionary, self.settings.lengthscale)

    @one_blas_thread
    def message(self) -> FloatArray:
        """Return the sums over the agent's own points, shape (m + 1, m)."""
        return sums_of(self._features, self._points, np.array(self._y))

    @one_blas_thread
    def receive(self, total: FloatArray) -> None:
        """Take the sums over all agents, shape (m + 1, m)."""
        ridge = self.settings.ridge
        self._synchronised = NystromRegression(self._features, total, ridge)
        self._regression = NystromRegression(self._features, total, ridge)
        self._variance_since = 0.0

    @property
    def _points(self) -> FloatArray:
        return np.array(self._x).reshape(-1, self.dimension)

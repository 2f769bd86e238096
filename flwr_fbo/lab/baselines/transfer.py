"""RGPE and TAF: what FTS is compared with, in the federated form of its paper.

Every agent sends its surrogate: the posterior of the shared features' weights, nu and
Sigma^-1, M + M^2 numbers. The target keeps one model a message, which predicts

    mean_i(x) = phi(x)'nu_i,    variance_i(x) = lambda phi(x)'Sigma_i^-1 phi(x),

beside its own Gaussian process, and queries the maximum of an acquisition that is made
of all of them. Nothing of it is private.

- RGPE (Feurer, Letham & Bakshy, Scalable meta-learning for Bayesian optimization,
  2018): expected improvement on an ensemble, weighted by how often a model's posterior
  samples rank the target's observations best.
- TAF (Wistuba, Schilling & Schmidt-Thieme, Scalable Gaussian process-based transfer
  surrogates, 2018), ranking version: expected improvement of the target, averaged with
  what the other models expect to gain, weighted by the Epanechnikov kernel of how they
  rank the target's observations.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.special import ndtr

from flwr_fbo._common.arrays import FloatArray, first_best, one_blas_thread
from flwr_fbo._common.fields import FREE, integer, positive
from flwr_fbo._common.random import Purpose, generator
from flwr_fbo._common.validation import require
from flwr_fbo.models.features import RandomFeatures, ascend
from flwr_fbo.models.thompson_gp import (
    Hyperparameters,
    posterior_weights,
    squared_distances,
)
from flwr_fbo.space.search_space import SearchSpace
from flwr_fbo.tuning.fts.agent import checked, others_present
from flwr_fbo.tuning.registry import Algorithm, register
from flwr_fbo.tuning.search.own_search import SearchAgent
from flwr_fbo.tuning.search.settings import SearchSettings


@dataclass(frozen=True)
class TransferSettings(SearchSettings, ABC):
    """Settings of both algorithms; see `SearchSettings` for the others.

    Attributes
    ----------
    num_sub_regions : int
        1.
    lengthscale : float
        l of the shared features, in units of the cube, > 0.
    regularization : float
        lambda of the posterior behind a message, > 0.
    share_after : int
        The round, >= 1, after which every agent sends its surrogate.
    """

    num_sub_regions: int = field(default=1, metadata=integer(1, cap="max_dimension"))
    num_initial: int = field(default=3, metadata=integer(1))
    lengthscale: float = field(default=0.01, metadata=positive())
    regularization: float = field(default=1e-6, metadata=positive())
    share_after: int = field(default=1, metadata=integer(1, cap=FREE))

    def __post_init__(self) -> None:
        super().__post_init__()
        P = self.num_sub_regions
        require(P == 1, "num_sub_regions", P, "1, where agents send surrogates")

    @property
    def message_length(self) -> int:
        """M + M^2."""
        return self.num_features + self.num_features**2

    def shared_lengthscale(self, dim: int) -> float:
        """Return l, whatever the dimension."""
        return self.lengthscale


@dataclass(frozen=True)
class RGPESettings(TransferSettings):
    """Settings of the ranking-weighted ensemble; see `TransferSettings` for the others.

    Attributes
    ----------
    num_samples : int
        S, posterior samples of each model, >= 1.
    """

    num_samples: int = field(default=100, metadata=integer(1))


@dataclass(frozen=True)
class TAFSettings(TransferSettings):
    """Settings of the transfer acquisition; see `TransferSettings` for the others.

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


register(Algorithm("rgpe", RGPESettings, "flwr_fbo.lab.baselines.transfer:RGPEAgent"))
register(Algorithm("taf", TAFSettings, "flwr_fbo.lab.baselines.transfer:TAFAgent"))


# Of numerical gradients, in units of the cube.
_STEP = 1e-6
# Of the target's model in TAF: the Epanechnikov kernel at no discordance.
_OWN_WEIGHT = 0.75


class Posterior:
    """Posterior of a function, by observations (Rasmussen & Williams, algorithm 2.1).

    Parameters
    ----------
    x : ndarray of shape (t, D)
        Points of the observations.
    y : ndarray of shape (t,)
        Observed values.
    hyperparameters : Hyperparameters
        Variance, lengthscale and noise of the kernel.
    """

    def __init__(
        self, x: FloatArray, y: FloatArray, hyperparameters: Hyperparameters
    ) -> None:
        self.x, self.y = x, y
        self._hyperparameters = hyperparameters
        covariance = self._kernel(x, x)
        covariance.flat[:: len(y) + 1] += hyperparameters.noise
        self._factor = cho_factor(covariance, lower=True)
        self._alpha = cho_solve(self._factor, y)

    def _kernel(self, x: FloatArray, other: FloatArray) -> FloatArray:
        h, squared = self._hyperparameters, squared_distances(x, other)
        return np.asarray(h.variance * np.exp(-0.5 * squared / h.lengthscale**2))

    def predict(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return mean and variance of the function at k points, shape (k,) each."""
        kernel = self._kernel(x, self.x)
        explained = np.sum(kernel.T * cho_solve(self._factor, kernel.T), axis=0)
        variance = np.maximum(self._hyperparameters.variance - explained, 0.0)
        return np.asarray(kernel @ self._alpha), np.asarray(variance)

    def samples(self, x: FloatArray, num: int, rng: np.random.Generator) -> FloatArray:
        """Return joint samples of the function at k points, shape (num, k)."""
        kernel = self._kernel(x, self.x)
        explained = kernel @ cho_solve(self._factor, kernel.T)
        covariance = self._kernel(x, x) - explained
        draws = rng.standard_normal((num, len(x)))
        return np.asarray(kernel @ self._alpha + draws @ root(covariance).T)

    def leave_one_out(self, num: int, rng: np.random.Generator) -> FloatArray:
        """Return joint samples at all t points, shape (t, num, t).

        Row j is of the model that has not seen observation j; the hyperparameters stay.
        """
        rest = ~np.eye(len(self.y), dtype=bool)
        models = (
            Posterior(self.x[others], self.y[others], self._hyperparameters)
            for others in rest
        )
        return np.array([model.samples(self.x, num, rng) for model in models])


def root(covariance: FloatArray) -> FloatArray:
    """Return A with A A' = the covariance, shape (k, k), as near as rounding allows.

    The symmetric root, which does not depend on the signs of eigenvectors: each BLAS
    has others. Eigenvalues below 0 are taken for 0: a covariance of a posterior may
    well be singular.
    """
    values, vectors = np.linalg.eigh(0.5 * (covariance + covariance.T))
    return np.asarray((vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T)


class Surrogates:
    """The models that other agents sent.

    Parameters
    ----------
    features : RandomFeatures
        M shared ones.
    messages : ndarray of shape (n, M + M^2) or (n, M + M^2 + 1)
        nu, then Sigma^-1 row by row, of each.
    regularization : float
        lambda > 0.
    """

    def __init__(
        self, features: RandomFeatures, messages: FloatArray, regularization: float
    ) -> None:
        M = len(features.phases)
        self._features = features
        self._nu = messages[:, :M]
        self._inverse = messages[:, M : M + M * M].reshape(-1, M, M)
        self._regularization = regularization

    def means(self, x: FloatArray) -> FloatArray:
        """Return the models' means at k points, shape (n, k)."""
        return np.asarray(self._nu @ self._features(x).T)

    def variances(self, x: FloatArray) -> FloatArray:
        """Return their variances, shape (n, k)."""
        phi = self._features(x)
        products = np.einsum("km,nkm->nk", phi, phi @ self._inverse)
        return np.asarray(self._regularization * np.maximum(products, 0.0))

    def samples(self, x: FloatArray, num: int, rng: np.random.Generator) -> FloatArray:
        """Return joint posterior samples at k points, shape (n, num, k)."""
        phi = self._features(x)
        covariances = self._regularization * (phi @ self._inverse @ phi.T)
        roots = np.array([root(c) for c in covariances]).reshape(covariances.shape)
        draws = rng.standard_normal((len(self._nu), num, len(x)))
        return np.asarray(self.means(x)[:, None, :] + draws @ roots.mT)


class TransferAgent(SearchAgent, ABC):
    """One agent; see `SearchAgent` for the parameters."""

    settings: TransferSettings

    @one_blas_thread
    def message(self, iteration: int) -> FloatArray:
        """Return nu and Sigma^-1, shape (M + M^2,)."""
        x, y = self._observations(iteration)
        regularization = self.settings.regularization
        nu, inverse = posterior_weights(self._shared(x), y, regularization)
        return np.concatenate([nu, inverse.ravel()])

    def receive(self, vectors: FloatArray, made_after: int = 0) -> None:
        """Keep the agents' surrogates, a row each: NaN where one did not arrive.

        Raises
        ------
        ValueError
            See `checked`.
        """
        self._vectors = checked(vectors, self.settings.message_length, self.slot)

    @one_blas_thread
    def _follow(self, vectors: FloatArray, iteration: int) -> FloatArray | None:
        x, y = self._observations(iteration)
        if len(y) == 0:
            return None
        there = others_present(vectors, self.slot)
        regularization = self.settings.regularization
        others = Surrogates(self._shared, vectors[there], regularization)
        posterior = Posterior(x, y, self._fitted(x, y, iteration))
        return maximize_function(
            self._acquisition(posterior, others, iteration),
            self.space,
            generator(self.entropy, self.slot, iteration, Purpose.SEARCH),
            self.settings.num_candidates,
            self.settings.num_starts,
        )

    @abstractmethod
    def _acquisition(
        self, own: Posterior, others: Surrogates, iteration: int
    ) -> Callable[[FloatArray], FloatArray]:
        """Return a function of points (k, D) that is to be maximised, shape (k,)."""


class RGPEAgent(TransferAgent):
    """One agent; see `SearchAgent` for the parameters."""

    settings: RGPESettings

    def _acquisition(
        self, own: Posterior, others: Surrogates, iteration: int
    ) -> Callable[[FloatArray], FloatArray]:
        rng = generator(self.entropy, self.slot, iteration, Purpose.SURROGATE_SAMPLE)
        num = self.settings.num_samples
        ours = left_out_misranked(own.leave_one_out(num, rng), own.y)
        theirs = misranked_pairs(others.samples(own.x, num, rng), own.y)
        weights = ensemble_weights(np.vstack([ours, theirs]))
        return partial(ensemble_improvement, own, others, weights)


class TAFAgent(TransferAgent):
    """One agent; see `SearchAgent` for the parameters."""

    settings: TAFSettings

    @one_blas_thread
    def message(self, iteration: int) -> FloatArray:
        """Return nu, Sigma^-1 and the incumbent, shape (M + M^2 + 1,)."""
        _, y = self._observations(iteration)
        incumbent = np.max(y, initial=-np.inf)
        return np.append(super().message(iteration), incumbent)

    def _acquisition(
        self, own: Posterior, others: Surrogates, iteration: int
    ) -> Callable[[FloatArray], FloatArray]:
        discordant = discordant_share(others.means(own.x), own.y)
        weights = epanechnikov(discordant / self.settings.bandwidth)
        return partial(transfer_improvement, own, others, weights)


def misranked_pairs(samples: FloatArray, y: FloatArray) -> NDArray[np.int64]:
    """Return how many ordered pairs of observations each sample ranks wrongly.

    Parameters
    ----------
    samples : ndarray of shape (..., t)
        Sampled values at the t observed points.
    y : ndarray of shape (t,)
        Observed values.

    Returns
    -------
    ndarray of shape (...)
        Number of misranked pairs of each sample.
    """
    ours = samples[..., :, None] < samples[..., None, :]
    theirs = y[:, None] < y[None, :]
    return np.asarray(np.sum(ours ^ theirs, axis=(-2, -1)))


def left_out_misranked(samples: FloatArray, y: FloatArray) -> NDArray[np.int64]:
    """Return the same of the target's own model, which ranks what it has not seen.

    A pair (j, k) is ranked by the model without observation j.

    Parameters
    ----------
    samples : ndarray of shape (t, S, t)
        Samples of `Posterior.leave_one_out`.
    y : ndarray of shape (t,)
        Observed values.

    Returns
    -------
    ndarray of shape (S,)
        Number of misranked pairs of each sample.
    """
    left_out = np.einsum("jsj->js", samples)
    ours = left_out[:, :, None] < samples
    theirs = y[:, None] < y[None, :]
    return np.asarray(np.sum(ours ^ theirs[:, None, :], axis=(0, 2)))


def ensemble_weights(losses: NDArray[np.int64]) -> FloatArray:
    """Return the models' weights: how often each has the least loss, ties split.

    A model whose median loss is above the 95th percentile of the target's counts
    nothing (dilution).

    Parameters
    ----------
    losses : ndarray of shape (n + 1, S)
        Losses of S samples of each model; the target's is the first.

    Returns
    -------
    ndarray of shape (n + 1,), which sums to 1
        Weights of the models, the target's first.
    """
    kept = np.median(losses, axis=1) <= np.percentile(losses[0], 95)
    kept[0] = True
    counted = np.where(kept[:, None], losses, np.iinfo(np.int64).max)
    best = counted == counted.min(axis=0)
    return np.asarray(np.mean(best / best.sum(axis=0), axis=1))


def ensemble_improvement(
    own: Posterior, others: Surrogates, weights: FloatArray, x: FloatArray
) -> FloatArray:
    """Return expected improvement on the ensemble at k points, shape (k,)."""
    mean, variance = own.predict(x)
    means = np.vstack([mean, others.means(x)])
    variances = np.vstack([variance, others.variances(x)])
    deviation = np.sqrt(weights**2 @ variances)
    return expected_improvement(weights @ means, deviation, float(np.max(own.y)))


def discordant_share(values: FloatArray, y: FloatArray) -> FloatArray:
    """Return the share of pairs of observations that values rank otherwise.

    Parameters
    ----------
    values : ndarray of shape (n, t)
        Values of n rankings at the t observed points.
    y : ndarray of shape (t,)
        Observed values.

    Returns
    -------
    ndarray of shape (n,), from 0 to 1; 0 where there is no pair
        Share of each ranking.
    """
    num_pairs = len(y) * (len(y) - 1)
    return misranked_pairs(values, y) / max(num_pairs, 1)


def epanechnikov(t: FloatArray) -> FloatArray:
    """Return 3/4 (1 - t^2) up to t = 1, and 0 beyond."""
    return np.asarray(0.75 * np.maximum(1.0 - t**2, 0.0))


def transfer_improvement(
    own: Posterior, others: Surrogates, weights: FloatArray, x: FloatArray
) -> FloatArray:
    """Return the transfer acquisition at k points, shape (k,).

    The weighted mean of the target's expected improvement and of how much more than
    anywhere in the target's observations each other model predicts.
    """
    mean, variance = own.predict(x)
    best = float(np.max(own.y))
    ours = expected_improvement(mean, np.sqrt(variance), best)
    seen = others.means(own.x).max(axis=1, keepdims=True)
    gains = np.maximum(others.means(x) - seen, 0.0)
    total = _OWN_WEIGHT * ours + weights @ gains
    return np.asarray(total / (_OWN_WEIGHT + weights.sum()))


def expected_improvement(
    mean: FloatArray, deviation: FloatArray, best: float
) -> FloatArray:
    """Return E max(0, f - best) for f ~ N(mean, deviation^2), shape as ``mean``."""
    deviation = np.maximum(deviation, 1e-12)
    z = (mean - best) / deviation
    density = np.exp(-(z**2) / 2.0) / math.sqrt(2.0 * math.pi)
    return np.asarray((mean - best) * ndtr(z) + deviation * density)


def maximize_function(
    function: Callable[[FloatArray], FloatArray],
    space: SearchSpace,
    rng: np.random.Generator,
    num_candidates: int,
    num_starts: int,
) -> FloatArray:
    """Return the maximiser of any function, by numerical gradients.

    Parameters
    ----------
    function : callable
        Takes points of shape (n, D), returns values of shape (n,).
    space : SearchSpace
        Discrete axes take the values of the candidates; the ascent moves the others.
    num_candidates, num_starts : int
        Uniform points, and how many of the best are refined; both >= 1.

    Returns
    -------
    ndarray of shape (D,)
        Maximiser on the unit cube.
    """
    candidates = space.snap_discrete(rng.random((num_candidates, space.dim)))
    values = function(candidates)
    # L-BFGS stops at an absolute gradient.
    scale = max(float(np.max(np.abs(values))), np.finfo(np.float64).tiny)
    slope = partial(_with_differences, lambda x: function(x) / scale)
    starts = candidates[np.argsort(-values, kind="stable")[:num_starts]]
    lower = np.where(space.continuous, 0.0, starts)
    upper = np.where(space.continuous, 1.0, starts)
    points = np.vstack([ascend(slope, starts, lower, upper), starts])
    return np.asarray(points[first_best(function(points))])


def _with_differences(
    function: Callable[[FloatArray], FloatArray], x: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return values (n,) and central differences (n, D), in one call."""
    num, dim = x.shape
    steps = _STEP * np.vstack([np.zeros(dim), np.eye(dim), -np.eye(dim)])
    values = function((x[None] + steps[:, None]).reshape(-1, dim)).reshape(-1, num)
    gradient = (values[1 : dim + 1] - values[dim + 1 :]) / (2.0 * _STEP)
    return values[0], gradient.T

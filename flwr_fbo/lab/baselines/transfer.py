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

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.random import Purpose, generator
from flwr_fbo._common.validation import require, require_int, require_positive
from flwr_fbo.algorithms.fts.relayed import checked, others_present
from flwr_fbo.algorithms.registry import Algorithm, register
from flwr_fbo.algorithms.search.acquisition import maximize_function
from flwr_fbo.algorithms.search.expected_improvement import expected_improvement
from flwr_fbo.algorithms.search.own_search import SearchAgent
from flwr_fbo.algorithms.search.settings import SearchSettings
from flwr_fbo.models.features import RandomFeatures
from flwr_fbo.models.gp import Posterior, root
from flwr_fbo.models.linear import posterior_weights
from flwr_fbo.models.threads import one_blas_thread


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


register(Algorithm("rgpe", RGPESettings, "flwr_fbo.lab.baselines.transfer:RGPEAgent"))
register(Algorithm("taf", TAFSettings, "flwr_fbo.lab.baselines.transfer:TAFAgent"))


# Of the target's model in TAF: the Epanechnikov kernel at no discordance.
_OWN_WEIGHT = 0.75


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
        own = Posterior(x, y, self._fitted(x, y, iteration))
        return maximize_function(
            self._acquisition(own, others, iteration),
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
    y : ndarray of shape (t,)

    Returns
    -------
    ndarray of shape (...)
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
        Of `Posterior.leave_one_out`.
    y : ndarray of shape (t,)

    Returns
    -------
    ndarray of shape (S,)
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
        Of S samples of each model; the target's is the first.

    Returns
    -------
    ndarray of shape (n + 1,), which sums to 1
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
    y : ndarray of shape (t,)

    Returns
    -------
    ndarray of shape (n,), from 0 to 1; 0 where there is no pair
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

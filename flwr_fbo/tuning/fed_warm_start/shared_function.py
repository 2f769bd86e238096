"""Posterior of a function that sites share, by noisy sums of unit vectors.

Each site writes what it believes of its objective over a public pool of m points: a
vector with mean 0 and norm 1. Cohort k of n_k sites releases the mean of its vectors
with noise. Over the pool, in units of a site's own spread, such a mean is

    u_k = r g + (mean of n_k functions sqrt(1 - r^2) e_i) + N(0, m s^2 / n_k^2)

where g is what all sites share, the e_i are what each has for itself, and both are
Gaussian processes with the same Matern 5/2 kernel K, centred over the pool. In the
eigenvectors of K all directions are independent. So releases are combined by their
precision in each direction, exactly, and the evidence of any r^2 costs next to nothing
once K is decomposed.

*Whether anything is shared.* Against 0 < r^2 < 1 stands r^2 = 0, of two kinds at equal
odds: the sites' own functions are there, or there is noise alone. Without the first
kind a smooth sum of unrelated functions would pass for agreement.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from scipy.special import logsumexp, ndtr

from flwr_fbo._common.arrays import FloatArray, one_blas_thread

# Median and spread of the prior of a lengthscale's logarithm; draws of it.
_MEDIAN, _SPREAD, _NUM_DRAWS = 0.6, 0.6, 96
# r^2, uniform: squared correlation of two sites' functions.
_AGREEMENT = np.linspace(0.02, 0.95, 24)
# Of a vector's own variance: what the model leaves unexplained.
_LEFT_OVER = 1e-3
# Of the noise: an experiment may have none.
_LEAST_NOISE = 1e-6
# Draws that the function is averaged over; what the others weigh is negligible.
_NUM_KEPT = 10
# Beliefs about standardised values that differ by less are equal: their ranks would
# be those of rounding errors.
_FLAT, _DECIMALS = 1e-6, 9
# Of a difference of g at two places.
_LEAST_VARIANCE = 1e-12
# A release is followed up to this p0: then sites with unrelated Gaussian functions
# follow in at most one release in ten (`test_shared_function`).
MOST_NULL = 0.18
# And if the shared function's maximum is this likely above a setting that is given.
LEAST_ABOVE = 0.95
# And if h varies by at least this, in units of a site's own variance.
_LEAST_FOLLOWED = 0.03
# Places that are candidates of each led search.
_NUM_TOPS = 40
# A shared part of more variance would leave nothing to a site itself.
_LARGEST_VARIANCE = 0.95


def rank_vector(beliefs: FloatArray) -> FloatArray:
    """Return squared ranks of m values, centred, with norm 1; zeros where all agree.

    Ranks make sites of any scale comparable. Their squares say more about where the
    best places are than about the worst.
    """
    if np.ptp(beliefs) <= _FLAT:
        return np.zeros(len(beliefs))
    _, place, counts = np.unique(
        np.round(beliefs, _DECIMALS), return_inverse=True, return_counts=True
    )
    # From 1; of equal values the mean of theirs.
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place] / len(beliefs)
    vector = ranks**2 - np.mean(ranks**2)
    return np.asarray(vector / np.linalg.norm(vector))


def matern(x: FloatArray, other: FloatArray, lengthscales: FloatArray) -> FloatArray:
    """Return the Matern 5/2 correlation, shape (n, k), of points (n, D) and (k, D)."""
    r = np.sqrt(5.0) * cdist(x / lengthscales, other / lengthscales)
    return np.asarray((1.0 + r + r * r / 3.0) * np.exp(-r))


@dataclass(frozen=True, eq=False)
class SharedFunction:
    """The posterior mean of what sites share, and whether they share anything.

    Attributes
    ----------
    pool : ndarray of shape (m, D)
        Points of the pool on the unit cube.
    lengthscales : ndarray of shape (k, D)
        Lengthscales of the draws that it is averaged over.
    weights : ndarray of shape (k, m)
        Weights of the pool's points, in each draw.
    shares : ndarray of shape (k,)
        Posterior probability of each draw; together 1 less ``null_probability``.
    scales : ndarray of shape (k,)
        Variance of the prior of g at a point.
    roots : ndarray of shape (k, m, m)
        A square root of what the releases take from the covariance of g.
    offset : float
        The mean over the points given as ``reference``: `__call__` leaves it out.
    variance : float
        Over these points, at most 0.95; a site's own function has variance 1.
    null_probability : float
        Posterior probability that nothing is shared.
    tops : ndarray of shape (k, D)
        Places of a grid where the function is largest, the largest first.
    """

    pool: FloatArray
    lengthscales: FloatArray
    weights: FloatArray
    shares: FloatArray
    scales: FloatArray
    roots: FloatArray
    offset: float
    variance: float
    null_probability: float
    tops: FloatArray

    @property
    def is_followed(self) -> bool:
        """True if enough is shared for agents to start from it."""
        certain = self.null_probability <= MOST_NULL
        return certain and self.variance >= _LEAST_FOLLOWED

    def is_above(self, given: FloatArray) -> bool:
        """Return whether the maximum is clearly above settings, shape (k, D)."""
        above = self.probability_above(self.tops[0], given)
        return bool(np.all(above >= LEAST_ABOVE))

    @one_blas_thread
    def __call__(self, x: FloatArray) -> FloatArray:
        """Return the function at points of shape (n, D)."""
        total = np.full(len(x), -self.offset)
        for lengthscales, weights in zip(self.lengthscales, self.weights, strict=True):
            total += matern(x, self.pool, lengthscales) @ weights
        return total

    @one_blas_thread
    def probability_above(self, x: FloatArray, others: FloatArray) -> FloatArray:
        """Return how likely g is larger at x than at each of others, shape (n,).

        Given that anything is shared: see ``null_probability``.

        Parameters
        ----------
        x : ndarray of shape (D,)
            Point of the unit cube.
        others : ndarray of shape (n, D)
            Points that x is compared with.
        """
        found = np.zeros(len(others))
        for k, lengthscales in enumerate(self.lengthscales):
            points = np.vstack([x, others])
            to_pool = matern(points, self.pool, lengthscales)
            away = to_pool[0] - to_pool[1:]
            mean = away @ self.weights[k] / self.shares[k]
            apart = 1.0 - matern(points[:1], others, lengthscales)[0]
            variance = 2.0 * self.scales[k] * apart
            variance -= ((away @ self.roots[k]) ** 2).sum(axis=1)
            deviation = np.sqrt(np.maximum(variance, _LEAST_VARIANCE))
            found += self.shares[k] * ndtr(mean / deviation)
        return np.asarray(found / self.shares.sum())


@one_blas_thread
def shared_function(
    pool: FloatArray,
    means: FloatArray,
    noise_std: FloatArray,
    sizes: NDArray[np.int64],
    reference: FloatArray,
    *,
    rng: np.random.Generator,
    grid: FloatArray | None = None,
) -> SharedFunction:
    """Return what releases say of the function that sites share.

    Parameters
    ----------
    pool : ndarray of shape (m, D)
        Points of the unit cube.
    means : ndarray of shape (K, m)
        The mean vector of each cohort, with noise.
    noise_std : ndarray of shape (K,)
        Standard deviation of an entry's noise, >= 0.
    sizes : ndarray of int, shape (K,)
        n_k: sites of each cohort, whether they answered or not.
    reference : ndarray of shape (n, D)
        Points that mean and variance of the function are taken over.
    rng : numpy.random.Generator
        Draws lengthscales.
    grid : ndarray of shape (k, D), optional
        Places that its largest values are looked for among; the reference points unless
        given.
    """
    m, dim = pool.shape
    u = np.sqrt(m) * (means - means.mean(axis=1, keepdims=True))
    noise = np.maximum(m * noise_std[:, None] ** 2, _LEAST_NOISE)
    lengths = _MEDIAN * np.exp(_SPREAD * rng.standard_normal((_NUM_DRAWS, dim)))
    white = _log_density(u, noise)
    alone_logs, shared, weights, bases = [], [], [], []
    for lengthscales in lengths:
        eigenvalues, vectors, scale = _centred_kernel(pool, lengthscales)
        rotated = u @ vectors
        log_evidence, alone, *spectra = _evidence(rotated, eigenvalues, noise, sizes)
        alone_logs.append(alone)
        shared.append(log_evidence)
        weights.append(scale * (vectors @ spectra[0]))
        bases.append((scale, vectors, spectra[1]))
    # Both kinds of r^2 = 0 have equal odds. An evidence is the mean over lengthscales,
    # which are drawn from their prior.
    null = np.logaddexp(white, logsumexp(alone_logs) - np.log(_NUM_DRAWS)) - np.log(2.0)
    something = logsumexp(shared) - np.log(_NUM_DRAWS)
    p0 = float(np.exp(null - np.logaddexp(null, something)))
    share = np.exp(np.array(shared) - logsumexp(shared))
    kept = np.argsort(-share, kind="stable")[:_NUM_KEPT]
    # Bayesian model averaging: where nothing is shared g is 0, with probability p0.
    share = (1.0 - p0) * share[kept] / share[kept].sum()
    # Square roots of what is taken from the covariance, by rows of the pool's points. K
    # is centred: the mean of a column says nothing.
    roots = []
    for k in kept:
        scale, vectors, taken = bases[k]
        root = scale * vectors * np.sqrt(taken)
        roots.append(root - root.mean(axis=0))
    found = SharedFunction(
        pool,
        lengths[kept],
        np.array(weights)[kept] * share[:, None],
        share,
        np.array([bases[k][0] for k in kept]),
        np.array(roots),
        offset=0.0,
        variance=0.0,
        null_probability=p0,
        tops=reference,
    )
    values, grid = found(reference), reference if grid is None else grid
    variance = min(float(values.var()), _LARGEST_VARIANCE)
    found = replace(found, offset=float(values.mean()), variance=variance)
    order = np.argsort(-found(grid), kind="stable")
    return replace(found, tops=grid[order[:_NUM_TOPS]])


def _centred_kernel(
    pool: FloatArray, lengthscales: FloatArray
) -> tuple[FloatArray, FloatArray, float]:
    """Return eigenvalues, eigenvectors, and what K is multiplied with.

    Vectors have mean 0 and norm 1. So K is that of functions less their mean over the
    pool, and its diagonal is 1 on average.
    """
    kernel = matern(pool, pool, lengthscales)
    rows = kernel.mean(axis=0)
    kernel += rows.mean() - rows[:, None] - rows
    scale = len(pool) / float(np.trace(kernel))
    eigenvalues, vectors = np.linalg.eigh(scale * kernel)
    return np.maximum(eigenvalues, 0.0), vectors, scale


def _evidence(
    rotated: FloatArray,
    eigenvalues: FloatArray,
    noise: FloatArray,
    sizes: NDArray[np.int64],
) -> tuple[float, float, FloatArray, FloatArray]:
    """Return log evidence with r^2 > 0 and with r^2 = 0, and two spectra, shape (m,).

    In the eigenvectors of K, g's posterior mean is K times the first one, and its
    posterior covariance is K less K times the second one times K.
    """
    per_site = eigenvalues / sizes[:, None]
    alone = _log_density(rotated, per_site + noise + _LEFT_OVER)
    agreement = _AGREEMENT[:, None, None]  # (r^2, cohorts, directions)
    rest = (1.0 - agreement) * per_site + noise + _LEFT_OVER
    precision = (1.0 / rest).sum(axis=1)
    pulled = (rotated / rest).sum(axis=1)
    prior = _AGREEMENT[:, None] * eigenvalues
    gain = 1.0 + prior * precision
    # Of N(0, diag(rest) + prior 1 1'), by the matrix determinant and inversion lemmas.
    log_density = -0.5 * (np.log(rest) + rotated**2 / rest).sum(axis=(1, 2))
    log_density += 0.5 * (prior * pulled**2 / gain - np.log(gain)).sum(axis=1)
    together = float(logsumexp(log_density) - np.log(len(_AGREEMENT)))
    # g's posterior mean given r^2 is r K pulled / gain (one normal prior, K normal
    # observations, direction by direction), averaged over r^2 by its posterior.
    share = np.exp(log_density - logsumexp(log_density))
    weights = np.sqrt(_AGREEMENT)[:, None] * pulled / gain
    taken = _AGREEMENT[:, None] * precision / gain
    return together, alone, share @ weights, share @ taken


def _log_density(u: FloatArray, variance: FloatArray) -> float:
    """Return the log density of independent N(0, variance), but for a constant."""
    variance = np.broadcast_to(variance, u.shape)
    return float(-0.5 * (np.log(variance) + u**2 / variance).sum())

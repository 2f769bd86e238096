"""Linear regression on sums with known noise: regression with errors in its variables.

G = sum x x' and b = sum x y of trials are released as S = G + N and u = b + h. N is
symmetric, with entries of variance s^2 on the diagonal and s^2/2 off it; h has s^2/2.
So with rewards y = x'theta + eta, of variance v, these covariances are *exact*:

    u - G theta = h + sum x eta,    s^2/2 I + v G,
    N theta,                        s^2/2 (||theta||^2 I + theta theta').

The noise is treated as more noise of the observations u. That is a *heuristic*, without
a confidence statement:

- S, shrunk and with its eigenvalues below 0 set to 0, is taken for G, and the variance
  of N theta is added to that of u. Along an eigenvector of eigenvalue g, u measures
  g theta with variance v g + s^2/2 (1 + w ||theta||^2), where w is the weight of S in
  what it was shrunk to. The term theta theta', of rank one, is left out. So the sum is
  worth h = g^2 / (g + s^2 (1 + w ||theta||^2) / (2 v)) trials there.
- ||theta||^2 is its own posterior mean, which a few fixed-point steps find: as long as
  little is known it is large, and so is what the noise of S may do.
- That S depends on N, too, is left out: noise can make an eigenvalue larger than G's,
  and then counts as signal, the less the more S is shrunk.

All of it takes a batch of sums as well as one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.models.ellipsoid import Ellipsoid

_TINY = np.finfo(float).tiny
_FIXED_POINT_STEPS = 4


def shrunk(
    noisy: FloatArray, prior: FloatArray, std: float
) -> tuple[FloatArray, FloatArray]:
    """Return noisy matrices shrunk towards others, and the weight of the noisy ones.

    The weight, from 0 to 1, is 1 less the share of the noise in the mean square
    distance between the two (Efron & Morris, 1973).
    """
    d = noisy.shape[-1]
    difference = noisy - prior
    mean_square = np.square(difference).mean((-2, -1))
    noise = std**2 * (d + 1) / (2 * d)  # the mean variance of an entry
    weight = np.maximum(1 - noise / np.maximum(mean_square, _TINY), 0.0)
    weight = weight if noise else np.ones_like(weight)
    return prior + weight[..., None, None] * difference, weight


@dataclass(frozen=True, eq=False)
class Evidence:
    """Evidence of a noisy sum about theta, or of each of a batch.

    Attributes
    ----------
    directions : ndarray of shape (..., d, d)
        Eigenvectors of the Gram matrix, in columns.
    gram, information, target : ndarray of shape (..., d)
        Of each direction the eigenvalue g >= 0; h, in trials; and h times what the sum
        says theta is.
    """

    directions: FloatArray
    gram: FloatArray
    information: FloatArray
    target: FloatArray

    def share(self, cap: float) -> FloatArray:
        """Return q / (h + q): what is left of h, at most q trials, by a cap q.

        That is for a theta that differs from the sum's by N(0, v / q I).
        """
        return cap / np.maximum(self.information + cap, _TINY)


def evidence(
    total: FloatArray,
    std: float,
    variance: FloatArray | float,
    ridge: FloatArray | float,
    *,
    known: FloatArray | None = None,
    shrink_to: FloatArray | None = None,
) -> Evidence:
    """Return what a sum with known noise tells, beside what is known from elsewhere.

    Parameters
    ----------
    total : ndarray of shape (..., d + 1, d + 1)
        S, and in its last row and column u.
    std : float
        s >= 0.
    variance : float or ndarray of shape (...)
        v > 0.
    ridge : float or ndarray of shape (..., d)
        Prior precision of theta's coordinates, times v.
    known : ndarray of shape (..., d + 1, d + 1), optional
        Clean sum of other trials; of none unless given.
    shrink_to : ndarray of shape (..., d, d), optional
        See `shrunk`; S is as it is unless given.
    """
    gram, weight, eye = total[..., :-1, :-1], np.ones(()), np.eye(total.shape[-1] - 1)
    if shrink_to is not None:
        gram, weight = shrunk(gram, shrink_to, std)
    values, axes = np.linalg.eigh(gram)
    g, across = np.maximum(values, 0.0), np.swapaxes(axes, -1, -2)
    known = np.zeros_like(total) if known is None else known
    prior = known[..., :-1, :-1] + np.asarray(ridge)[..., None] * eye
    prior, u = across @ prior @ axes, times(across, total[..., :-1, -1])
    target, share = times(across, known[..., :-1, -1]), np.zeros_like(g)
    for _ in range(_FIXED_POINT_STEPS):
        covariance = np.linalg.inv(prior + (share * g)[..., None] * eye)
        estimate = times(covariance, target + share * u)
        uncertainty = variance * np.trace(covariance, axis1=-2, axis2=-1)
        length = np.square(estimate).sum(-1) + uncertainty
        noise = np.asarray(std**2 / 2 * (1 + weight * length) / variance)
        share = g / np.maximum(g + noise[..., None], _TINY)
    return Evidence(axes, g, share * g, share * u)


def posterior_of_noisy_sum(
    total: FloatArray,
    noise_std: float,
    prior_variances: FloatArray,
    reward_variance: float,
) -> Ellipsoid:
    """Return the posterior N(estimate, V^-1) of theta, as the ellipsoid of V.

    `FedUCB` bounds the noise for all releases at once, and shifts S by the bound
    (`flwr_fbo.privacy.noise_bounds`). Its ellipsoid holds theta with a known
    probability, and is wide. This is a Bayesian linear regression with a normal prior
    on the `evidence` of a sum, and a heuristic. S is not shrunk, which is why
    `NeuralPrivacy` limits the number of features. Without noise (s = 0) it is the exact
    posterior of Bayesian linear regression.

    Parameters
    ----------
    total : ndarray of shape (d + 1, d + 1)
        S, and in its last row and column u.
    noise_std : float
        s >= 0: standard deviation of the noise on the diagonal of ``total``; it is
        1/sqrt(2) of that off the diagonal.
    prior_variances : ndarray of shape (d,)
        > 0, of theta's coordinates, whose prior mean is 0.
    reward_variance : float
        v > 0: variance of a reward about x'theta.

    Raises
    ------
    numpy.linalg.LinAlgError
        If ``total`` has numbers so large that no posterior can be computed.
    """
    ridge = reward_variance / prior_variances
    found = evidence(total, noise_std, reward_variance, ridge)
    axes = found.directions
    precision = (axes * found.information) @ axes.T + np.diag(ridge)
    return Ellipsoid(precision / reward_variance, axes @ found.target / reward_variance)


def times(matrix: FloatArray, vector: FloatArray) -> FloatArray:
    """Return products of matrices and vectors, shape (..., d)."""
    return np.asarray((matrix @ vector[..., None])[..., 0])

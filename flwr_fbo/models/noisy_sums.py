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
  what it was shrunk to. The term theta theta', of rank one, is left out.
- So the sum is worth h = g^2 / (g + s^2 (1 + w ||theta||^2) / (2 v)) trials there.
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
# ||theta||^2 of `NoisySum.evidence` is taken to be in this range, in a unit.
_NORMS = 0.25, 400.0
_FIXED_POINT_STEPS = 4


def shrunk(
    noisy: FloatArray, prior: FloatArray, std: float
) -> tuple[FloatArray, FloatArray]:
    """Return noisy symmetric matrices, shrunk, and the weight of the noisy ones.

    They are shrunk towards ``prior``. The weight w, from 0 to 1, is 1 less the share of
    the noise in the mean square distance between the two (Efron & Morris, 1973).

    Parameters
    ----------
    noisy, prior : ndarray of shape (..., d, d)
        The matrices.
    std : float
        s >= 0.
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
        Orthonormal, in columns.
    information : ndarray of shape (..., d)
        h of each direction, in trials.
    target : ndarray of shape (..., d)
        h times what the sum says theta is in that direction.
    """

    directions: FloatArray
    information: FloatArray
    target: FloatArray

    def share(self, cap: float) -> FloatArray:
        """Return q / (h + q): what a cap of q trials leaves of each direction.

        That is for a theta that differs from the sum's by N(0, v / q I).
        """
        return cap / np.maximum(self.information + cap, _TINY)


@dataclass(frozen=True, eq=False)
class NoisySum:
    """A sum with known noise, along the eigenvectors of its Gram matrix.

    Attributes
    ----------
    directions : ndarray of shape (..., d, d)
        Eigenvectors, in columns.
    gram : ndarray of shape (..., d)
        g >= 0 of each.
    cross : ndarray of shape (..., d)
        u along each.
    weight : float or ndarray of shape (...)
        w of the noisy matrix in the one with these eigenvectors.
    std : float
        s >= 0.
    """

    directions: FloatArray
    gram: FloatArray
    cross: FloatArray
    weight: FloatArray | float
    std: float

    @classmethod
    def of(
        cls,
        gram: FloatArray,
        cross: FloatArray,
        weight: FloatArray | float,
        std: float,
    ) -> NoisySum:
        """Return that of a Gram matrix, as `shrunk` returns it, and of u."""
        values, axes = np.linalg.eigh(gram)
        rotated = times(np.swapaxes(axes, -1, -2), cross)
        return cls(axes, np.maximum(values, 0.0), rotated, weight, std)

    def shares(
        self, square_norm: FloatArray | float, variance: FloatArray | float
    ) -> FloatArray:
        """Return h / g of each direction, for a ||theta||^2 and a v."""
        noise = self.std**2 / 2 * (1 + self.weight * square_norm) / variance
        return self.gram / np.maximum(self.gram + np.asarray(noise)[..., None], _TINY)

    def evidence(
        self,
        precision: FloatArray,
        target: FloatArray,
        start: FloatArray,
        variance: FloatArray | float,
        unit: float,
        num_steps: int,
    ) -> Evidence:
        """Return what the sum tells, beside what is known from elsewhere.

        ||theta||^2 is that of the estimate by both, which fixed-point steps find.

        Parameters
        ----------
        precision : ndarray of shape (..., d, d)
            What is known, over v: a Gram matrix and a ridge.
        target : ndarray of shape (..., d)
            The sum of x y that goes with it.
        start : ndarray of shape (..., d)
            First estimate of theta.
        variance : float or ndarray of shape (...)
            v > 0.
        unit : float
            Square of the rewards' range: ||theta||^2 is from .25 to 400 of it.
        num_steps : int
            Fixed-point steps.
        """
        across = np.swapaxes(self.directions, -1, -2)
        rotated = across @ precision @ self.directions
        known, estimate = times(across, target), times(across, start)
        low, high = (bound * unit for bound in _NORMS)
        for _ in range(num_steps):
            length = np.clip(np.square(estimate).sum(-1), low, high)
            share = self.shares(length, variance)
            added = (share * self.gram)[..., None] * np.eye(share.shape[-1])
            right = known + share * self.cross
            estimate = np.linalg.solve(rotated + added, right[..., None])[..., 0]
        return Evidence(self.directions, share * self.gram, share * self.cross)


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
    on what a `NoisySum` says, and no more than a heuristic: S is not shrunk, which is
    why `NeuralPrivacy` limits the number of features, and ||theta||^2 is its own
    posterior mean, which a few fixed-point steps find.

    Without noise (s = 0) it is the exact posterior of Bayesian linear regression.

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
    d = len(prior_variances)
    noisy = NoisySum.of(total[:d, :d], total[:d, d], 1.0, noise_std)
    axes, length = noisy.directions, prior_variances.sum()  # the mean of ||theta||^2
    for _ in range(_FIXED_POINT_STEPS):
        shares = noisy.shares(length, reward_variance) / reward_variance
        precision = (axes * (shares * noisy.gram)) @ axes.T
        precision += np.diag(1 / prior_variances)
        believed = Ellipsoid(precision, axes @ (shares * noisy.cross))
        uncertainty = np.square(believed.whitened(np.eye(d))).sum()
        length = np.square(believed.estimate).sum() + uncertainty
    return believed


def times(matrix: FloatArray, vector: FloatArray) -> FloatArray:
    """Return products of matrices and vectors, shape (..., d)."""
    return np.asarray((matrix @ vector[..., None])[..., 0])

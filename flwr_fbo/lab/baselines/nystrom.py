"""Kernel ridge regression on a dictionary of points: Nystrom's approximation.

With points S and the kernel k, a point's features are z(x) = K_SS^-1/2 k_S(x), so that
z(x)'z(x') is k(x, x') wherever one of them is in S. With V = lambda I + sum z z' and
u = sum z y (Calandriello, Carratino, Lazaric, Valko & Rosasco, COLT 2019):

    mean(x) = z(x)'V^-1 u,
    variance(x) = (k(x, x) - z(x)'z(x)) / lambda + z(x)'V^-1 z(x),

the same as (k(x, x) - z(x)' (sum z z') V^-1 z(x)) / lambda, but without a difference of
two large numbers where lambda is small. A variance is at most 1 / lambda.
"""

from __future__ import annotations

import numpy as np

from flwr_fbo._common.arrays import FloatArray
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
    """What one believes of the reward of a point, by a sum over observations.

    Parameters
    ----------
    features : NystromFeatures
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

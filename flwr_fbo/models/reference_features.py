"""A few features in place of a network's many gradients, by points that all know.

Where sums of gradients are released with noise, the noise is as wide as they are. The
gradients of a network at w0 are of hundreds of numbers and nearly the same at all
actions, so that what tells actions apart drowns. Here the difference g(x) - mean to the
mean gradient of R reference points r_1, .., r_R is told by its products

    u_j(x) = (g(r_j) - mean)'(g(x) - mean),    j = 1, .., k - 1,

and these are whitened: with the covariance C of u over all R points, C = L L', and
v = L^-1 u,

    phi(x) = [sqrt(c), sqrt(1 - c) v / ||v||],    c = 1/5,

whose length is 1: what is released with noise is as long as it may be. The constant has
a fifth of the squared length, so that what all actions have in common is soon learned.
(Cholesky's factor, and not eigenvectors, whose signs and order could differ
between machines.)
"""

from __future__ import annotations

import math

import numpy as np
from scipy.linalg import solve_triangular

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.models.network import RewardModel

# c, in the squared length of every action's features.
CONSTANT_SHARE = 0.2
# R, and what is added to the covariance's diagonal, of its trace.
_NUM_POINTS = 1000
_JITTER = 1e-10


class ReferenceFeatures:
    """The map from gradients by w at w0 to features.

    Parameters
    ----------
    model : RewardModel
    w0 : ndarray of shape (d_w,)
    num_features : int
        k >= 2.
    rng : numpy.random.Generator
        Of the reference points, uniform in the unit cube: known to all.

    Raises
    ------
    FloatingPointError
        If the model has no finite gradients there, or the same everywhere.
    """

    def __init__(
        self,
        model: RewardModel,
        w0: FloatArray,
        num_features: int,
        rng: np.random.Generator,
    ) -> None:
        points = rng.uniform(size=(_NUM_POINTS, model.dimension))
        with np.errstate(over="ignore", invalid="ignore"):
            _, gradients = model.values_and_gradients(w0, points)
            self._mean = gradients.mean(axis=0)
            centred = gradients - self._mean
            self._directions = centred[: num_features - 1]
            products = centred @ self._directions.T
            covariance = products.T @ products / len(points)
        size = np.trace(covariance)
        if not (np.isfinite(covariance).all() and size > 0):
            raise FloatingPointError(
                "The model's gradients at w0 tell no two points of the unit cube apart."
            )
        jitter = _JITTER * size * np.eye(num_features - 1)
        self._factor = np.linalg.cholesky(covariance + jitter)

    def __call__(self, gradients: FloatArray) -> FloatArray:
        """Return the features of gradients: shape (K, d_w) in, (K, k) out.

        Rows of norm 1; zeros for gradients that are not finite, or too large.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            products = (gradients - self._mean) @ self._directions.T
            white = solve_triangular(
                self._factor, products.T, lower=True, check_finite=False
            ).T
            lengths = np.linalg.norm(white, axis=1, keepdims=True)
        finite = np.isfinite(lengths)
        white = np.where(finite, white, 0.0) / np.fmax(lengths, 1e-300)
        phi = np.empty((len(white), white.shape[1] + 1))
        phi[:, 0] = math.sqrt(CONSTANT_SHARE)
        phi[:, 1:] = math.sqrt(1 - CONSTANT_SHARE) * white
        return np.where(finite, phi, 0.0)

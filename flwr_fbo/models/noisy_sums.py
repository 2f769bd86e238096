"""What sums with Gaussian noise say of a linear model: its posterior.

G = sum x x' and b = sum x y are released as S = G + N and u = b + h. N is symmetric,
with entries of variance s^2 on the diagonal and s^2/2 off it; those of h have s^2/2. So
with rewards y = x'theta + eta, of noise variance r, these covariances are *exact*:

    u - G theta = h + sum x eta,    s^2/2 I + r G,
    N theta,                        s^2/2 (||theta||^2 I + theta theta').

`FedUCB` bounds this noise for all releases at once, and shifts S by the bound
(`flwr_fbo.privacy.spectrum`). Its ellipsoid holds theta with a known probability, and
is wide. Here the noise is treated as more noise of the observations u, in a Bayesian
linear regression with a normal prior. That is a *heuristic*, without a confidence
statement:

- S, its eigenvalues below 0 set to 0, is taken for G, and the variance of N theta is
  added to that of u: regression with errors in its variables, with u - S theta of
  variance s^2/2 (1 + ||theta||^2) + r g along an eigenvector of eigenvalue g. The
  term theta theta', of rank one, is left out.
- ||theta||^2 is its own posterior mean, which a few fixed-point steps find.
- That S depends on N, too, is left out: noise can make an eigenvalue larger than G's,
  and then counts as signal. This is why `NeuralPrivacy` limits the number of features.

Without noise (s = 0) it is the exact posterior of Bayesian linear regression.
"""

from __future__ import annotations

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.models.ellipsoid import Ellipsoid

_FIXED_POINT_STEPS = 4


def posterior(
    total: FloatArray,
    noise_std: float,
    prior_variances: FloatArray,
    reward_variance: float,
) -> Ellipsoid:
    """Return the posterior N(estimate, V^-1) of theta, as the ellipsoid of V.

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
        r > 0: variance of a reward about x'theta.

    Raises
    ------
    numpy.linalg.LinAlgError
        If ``total`` has numbers so large that no posterior can be computed.
    """
    d = len(prior_variances)
    values, vectors = np.linalg.eigh(total[:d, :d])
    gram = np.maximum(values, np.finfo(float).tiny)
    cross = vectors.T @ total[:d, d]
    length = prior_variances.sum()  # the mean of ||theta||^2
    for _ in range(_FIXED_POINT_STEPS):
        variances = noise_std**2 / 2 * (1 + length) + reward_variance * gram
        shares = gram / variances
        precision = (vectors * (shares * gram)) @ vectors.T
        precision += np.diag(1 / prior_variances)
        believed = Ellipsoid(precision, vectors @ (shares * cross))
        uncertainty = np.square(believed.whitened(np.eye(d))).sum()
        length = np.square(believed.estimate).sum() + uncertainty
    return believed

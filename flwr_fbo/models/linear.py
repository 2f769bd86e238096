"""Bayesian linear regression on features: samples of the weights, by Cholesky.

Model: y = Phi w + e, w ~ N(0, I), e ~ N(0, lambda I). The posterior is
N(nu, lambda Sigma^-1) with Sigma = Phi'Phi + lambda I and nu = Sigma^-1 Phi'y
(DP-FTS-DE, equation 2 and Algorithm 2, line 10).
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve_triangular

from flwr_fbo._common.arrays import FloatArray


def sample_weights(
    features: FloatArray,
    y: FloatArray,
    regularization: float,
    rng: np.random.Generator,
) -> FloatArray:
    """Draw one weight vector from the posterior, shape (M,).

    With t < M observations the t x t form is used: a draw from the prior, corrected
    by what it gets wrong about the data (Matheron's rule).

    Parameters
    ----------
    features : ndarray of shape (t, M)
        t >= 0 observations.
    y : ndarray of shape (t,)
    regularization : float
        lambda, the noise variance, > 0.

    Raises
    ------
    numpy.linalg.LinAlgError
        If the system is not positive definite, as with non-finite data.
    """
    num_observations, num_features = features.shape
    z = rng.standard_normal(num_features)
    if num_observations == 0:
        return np.asarray(z)
    if num_observations < num_features:
        noise = np.sqrt(regularization) * rng.standard_normal(num_observations)
        gram = features @ features.T
        gram.flat[:: num_observations + 1] += regularization
        residual = y - features @ z - noise
        solved = cho_solve(cho_factor(gram, lower=True), residual)
        return np.asarray(z + features.T @ solved)
    sigma = features.T @ features
    sigma.flat[:: num_features + 1] += regularization
    factor, _ = cho_factor(sigma, lower=True)
    mean = cho_solve((factor, True), features.T @ y)
    spread = solve_triangular(factor, z, lower=True, trans="T")
    return np.asarray(mean + np.sqrt(regularization) * spread)


def posterior_weights(
    features: FloatArray, y: FloatArray, regularization: float
) -> tuple[FloatArray, FloatArray]:
    """Return nu and Sigma^-1, shapes (M,) and (M, M), for who has to send them.

    Parameters
    ----------
    features : ndarray of shape (t, M)
    y : ndarray of shape (t,)
    regularization : float
        lambda, > 0.

    Raises
    ------
    numpy.linalg.LinAlgError
        If the system is not positive definite, as with non-finite data.
    """
    sigma = features.T @ features
    sigma.flat[:: len(sigma) + 1] += regularization
    factor = cho_factor(sigma, lower=True)
    inverse = cho_solve(factor, np.eye(len(sigma)))
    return np.asarray(cho_solve(factor, features.T @ y)), np.asarray(inverse)

"""Ridge regressions averaged by their evidence: Bayesian model averaging.

With theta ~ N(m, v P^-1) and rewards y = x'theta + N(0, v), a Gram matrix V and a sum c
of x y have, but for a constant, the log evidence (MacKay, 1992)

    ((c + P m)'(V + P)^-1 (c + P m) - m'P m) / (2 v) + log det (P (V + P)^-1) / 2.

P = ridge I + H, with H what else is known: so in the eigenvectors of V + H all ridges
are one division each.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.models.noisy_sums import times


class Average(NamedTuple):
    """A mixture of posteriors, or each of a batch.

    Attributes
    ----------
    estimate : ndarray of shape (..., d)
        Mean of theta.
    covariance : ndarray of shape (..., d, d)
        Covariance of theta over v.
    variance : float or ndarray of shape (...)
        v, of rewards.
    ridge : ndarray of shape (...)
        Mean of the ridges, of their logarithms.
    """

    estimate: FloatArray
    covariance: FloatArray
    variance: FloatArray | float
    ridge: FloatArray


def ridge_average(
    gram: FloatArray,
    target: FloatArray,
    ridges: FloatArray,
    variance: FloatArray | float,
    *,
    information: FloatArray | float = 0.0,
    told: FloatArray | float = 0.0,
    log_prior: FloatArray | float = 0.0,
) -> Average:
    """Return the average over R ridges, and C of what else is known.

    Parameters
    ----------
    gram : ndarray of shape (C, ..., d, d)
        V + H.
    target : ndarray of shape (C, ..., d)
        c + H m.
    ridges : ndarray of shape (R, 1, ...)
        Ridges > 0.
    variance : float or ndarray of shape (...)
        v > 0.
    information, told : ndarray of shape (C, ..., d), optional
        Eigenvalues of H, and H m in its eigenvectors; 0 unless given.
    log_prior : ndarray, optional
        Logarithms of prior weights, broadcast to (R, C, ...).
    """
    values, axes = np.linalg.eigh(gram)
    back = np.swapaxes(axes, -1, -2)
    inverses = 1 / (np.maximum(values, 0.0) + ridges[..., None])
    # What overflows is no evidence.
    with np.errstate(over="ignore", invalid="ignore"):
        priors, rotated = ridges[..., None] + information, times(back, target)
        means = inverses * rotated
        fit = (means * rotated).sum(-1) - (np.square(told) / priors).sum(-1)
        logarithm = fit / variance + np.log(priors * inverses).sum(-1)
        logarithm = np.where(np.isfinite(logarithm), logarithm / 2, -np.inf)
        logarithm += log_prior
        weights = np.exp(logarithm - logarithm.max(axis=(0, 1)))
        weights /= weights.sum(axis=(0, 1))
        means = np.where(weights[..., None] > 0, times(axes, means), 0.0)
        estimate = (weights[..., None] * means).sum(axis=(0, 1))
        apart = np.where(weights[..., None] > 0, means - estimate, 0.0)
    apart *= np.sqrt(weights / variance)[..., None]
    apart = np.moveaxis(apart.reshape(-1, *estimate.shape), 0, -1)
    within = (weights[..., None] * inverses).sum(axis=0)
    covariance = ((axes * within[..., None, :]) @ back).sum(axis=0)
    covariance = covariance + apart @ np.swapaxes(apart, -1, -2)
    ridge = np.exp((weights * np.log(ridges)).sum(axis=(0, 1)))
    return Average(estimate, covariance, variance, ridge)

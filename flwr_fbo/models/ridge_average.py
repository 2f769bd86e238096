"""Ridge regressions averaged by their evidence: Bayesian model averaging.

With theta ~ N(m, v P^-1) and rewards y = x'theta + N(0, v), a Gram matrix V and a sum c
of x y have, but for a constant, the log evidence (MacKay, 1992)

    ((c + P m)'(V + P)^-1 (c + P m) - m'P m) / (2 v) + log det (P (V + P)^-1) / 2.

P = ridge I + H, with H what else is known: so in the eigenvectors of V + H all ridges
are one division each. It is post-processing of the sums.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.models.noisy_sums import times


class Average(NamedTuple):
    """Mean and covariance of a mixture of posteriors, or of each of a batch.

    Attributes
    ----------
    estimate : ndarray of shape (..., d)
        Mean of theta.
    covariance : ndarray of shape (..., d, d)
        Covariance of theta over v.
    weights : ndarray of shape (R, C, ...)
        Posterior weight of each ridge and prior.
    """

    estimate: FloatArray
    covariance: FloatArray
    weights: FloatArray


class RidgeRegressions:
    """Posteriors by R ridges and C priors besides, or by each of a batch.

    Parameters
    ----------
    gram : ndarray of shape (C, ..., d, d)
        V + H.
    target : ndarray of shape (C, ..., d)
        c + H m.
    ridges : ndarray of shape (R, 1, ...)
        Ridges > 0.
    information : ndarray of shape (C, ..., d), optional
        Eigenvalues of H; 0 unless given.
    told : ndarray of shape (C, ..., d), optional
        H m in the eigenvectors of H; 0 unless given.

    Attributes
    ----------
    fit : ndarray of shape (R, C, ...)
        Sum of squares of the rewards that each explains.
    """

    def __init__(
        self,
        gram: FloatArray,
        target: FloatArray,
        ridges: FloatArray,
        information: FloatArray | float = 0.0,
        told: FloatArray | float = 0.0,
    ) -> None:
        values, self._axes = np.linalg.eigh(gram)
        rotated = times(np.swapaxes(self._axes, -1, -2), target)
        # What overflows is no evidence.
        with np.errstate(over="ignore", invalid="ignore"):
            self._priors = ridges[..., None] + information
            self._inverses = 1 / (np.maximum(values, 0.0) + ridges[..., None])
            self._means = self._inverses * rotated
            explained = (self._means * rotated).sum(-1)
            self.fit = explained - (np.square(told) / self._priors).sum(-1)

    def average(
        self, variance: FloatArray | float, log_prior: FloatArray | float = 0.0
    ) -> Average:
        """Return their average by evidence.

        Parameters
        ----------
        variance : float or ndarray of shape (...)
            v > 0.
        log_prior : ndarray, optional
            Logarithms of prior weights, broadcast to (R, C, ...); all alike unless
            given.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            volume = np.log(self._priors * self._inverses).sum(-1)
            evidence = self.fit / variance + volume
            evidence = np.where(np.isfinite(evidence), evidence / 2, -np.inf)
            evidence += log_prior
            weights = np.exp(evidence - evidence.max(axis=(0, 1)))
            weights /= weights.sum(axis=(0, 1))
            means = times(self._axes, self._means)
            means = np.where(weights[..., None] > 0, means, 0.0)
            estimate = (weights[..., None] * means).sum(axis=(0, 1))
            apart = np.where(weights[..., None] > 0, means - estimate, 0.0)
        apart *= np.sqrt(weights / variance)[..., None]
        apart = np.moveaxis(apart.reshape(-1, *estimate.shape), 0, -1)
        within = (weights[..., None] * self._inverses).sum(axis=0)
        axes = self._axes
        covariances = (axes * within[..., None, :]) @ np.swapaxes(axes, -1, -2)
        covariance = covariances.sum(axis=0) + apart @ np.swapaxes(apart, -1, -2)
        return Average(estimate, covariance, weights)

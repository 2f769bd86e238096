"""What a site believes by released blocks alone: a posterior from noisy totals.

A block is the sum over all sites of [x; y][x; y]' of new trials, with Gaussian noise of
known deviation s on the diagonal and s / sqrt(2) off it. Blocks are independent, so
that k of them add up to a noisy running sum of deviation sqrt(sum s_j^2).

Let G be the Gram matrix in it and z the noisy target, z = G theta + (rewards' noise) +
(released noise). The noisy Gram matrix is shrunk to a multiple of I, as far as its
noise explains how it differs from that. Noise on G moves z - G theta by variance
s^2 / 2 (1 + w ||theta||^2) a coordinate, with w the weight of the noisy matrix; so an
eigenvalue g of G is worth h = g^2 / (g + s^2 (1 + w ||theta||^2) / (2 v)) trials of
reward variance v: a normal regression with known noise in both variables.

Where each arm has coordinates of its own (`FeatureEncoder.blocks`), what a total says
of two arms together is noise and nothing else: it is left out, and each arm's block is
taken by itself.

The ridge is averaged by evidence over a grid: nothing is to be tuned. All of this is
post-processing of what was released.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.bandits.linear.confidence import Belief, Confidence
from flwr_fbo.bandits.linear.settings import LinearUCBSettings
from flwr_fbo.models.ellipsoid import Ellipsoid

# Ridges that are averaged over, in units of the longest action's square.
_RIDGES = np.array([0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0])
# The reward variance, over sigma^2; and ||theta||^2 over the rewards' range squared.
_VARIANCE = 0.8
_NORMS = 0.25, 400.0
_TINY = np.finfo(float).tiny
_ROUNDS = 3


class BlocksBelief:
    """Belief of every site by the same released blocks.

    Parameters
    ----------
    confidence : Confidence
        Settings and confidence set of the study.
    totals : ndarray of shape (k, d + 1, d + 1)
        The blocks' totals, in the order of their release.
    stds : ndarray of shape (k,)
        Deviation of each total's noise on the diagonal.

    Raises
    ------
    numpy.linalg.LinAlgError
        If the numbers are so large that nothing can be computed.
    """

    def __init__(
        self, confidence: Confidence, totals: FloatArray, stds: FloatArray
    ) -> None:
        self._confidence, self.settings = confidence, confidence.settings
        with np.errstate(over="ignore", invalid="ignore"):
            self.information, self.target = _evidence(self.settings, totals, stds)
        found = np.isfinite(self.information).all() and np.isfinite(self.target).all()
        if not found:
            raise np.linalg.LinAlgError("the totals are too large")

    @cached_property
    def belief(self) -> Belief:
        """Model that a site chooses by."""
        estimate, covariance = _averaged(self.settings, self.information, self.target)
        precision = np.linalg.inv(covariance)
        precision = (precision + precision.T) / 2
        model = Ellipsoid.raised(precision, precision @ estimate)
        return self._confidence.choosing(model)


def _evidence(
    settings: LinearUCBSettings, totals: FloatArray, stds: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return H, shape (d, d), and h, shape (d,), in trials: see the module."""
    d = settings.releases.dimension
    total, std = totals.sum(axis=0), math.sqrt(float(np.square(stds).sum()))
    blocks = 1 if settings.encoder is None else max(len(settings.encoder.blocks), 1)
    information, target = np.zeros((d, d)), np.zeros(d)
    for places in np.split(np.arange(d), blocks):
        gram, cross = total[np.ix_(places, places)], total[places, d]
        information[np.ix_(places, places)], target[places] = _of_block(
            settings, gram, cross, std
        )
    return information, target


def _of_block(
    settings: LinearUCBSettings, noisy: FloatArray, cross: FloatArray, std: float
) -> tuple[FloatArray, FloatArray]:
    d = len(noisy)
    middle = max(float(np.trace(noisy)) / d, 0.0)
    difference = noisy - middle * np.eye(d)
    mean_square = float(np.square(difference).mean())
    # The mean variance of an entry, by the noise alone.
    by_noise = std**2 * (d + 1) / (2 * d)
    weight = max(1 - by_noise / max(mean_square, _TINY), 0.0) if std else 1.0
    values, axes = np.linalg.eigh(middle * np.eye(d) + weight * difference)
    g, rotated = np.maximum(values, 0.0), axes.T @ cross
    most, longest = settings.noise_scale**2, settings.releases.max_action_norm**2
    variance = _VARIANCE * most
    low, high = (bound * 4 * most for bound in _NORMS)
    estimate = np.zeros(d)
    for _ in range(_ROUNDS):
        length = min(max(float(estimate @ estimate), low), high)
        noise = std**2 / 2 * (1 + weight * length) / variance
        share = g / np.maximum(g + noise, _TINY)
        estimate = share * rotated / (0.1 * longest + share * g)
    return (axes * (share * g)) @ axes.T, axes @ (share * rotated)


def _averaged(
    settings: LinearUCBSettings, information: FloatArray, target: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return mean and covariance, over v, of theta: ridges averaged by evidence."""
    variance = _VARIANCE * settings.noise_scale**2
    ridges = _RIDGES[:, None] * settings.releases.max_action_norm**2
    values, axes = np.linalg.eigh(information)
    h, rotated = np.maximum(values, 0.0), axes.T @ target
    covariances = 1 / (h + ridges)
    estimates = covariances * rotated
    fit = (estimates * rotated).sum(axis=1)
    evidence = (fit / variance - np.log((h + ridges) / ridges).sum(axis=1)) / 2
    weights = np.exp(evidence - evidence.max())
    weights /= weights.sum()
    estimate = weights @ estimates
    apart = (estimates - estimate) * np.sqrt(weights / variance)[:, None]
    covariance = np.diag(weights @ covariances) + apart.T @ apart
    return axes @ estimate, axes @ covariance @ axes.T

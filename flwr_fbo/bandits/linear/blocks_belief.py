"""What a site believes by released blocks alone: a posterior from noisy totals.

A block is the sum over all sites of [x; y][x; y]' of new trials, with Gaussian noise of
known deviation s on the diagonal and s / sqrt(2) off it. Blocks are independent, so
that k of them add up to a noisy running sum of deviation sqrt(sum s_j^2).

The noisy Gram matrix is shrunk to a multiple of I, as far as its noise explains how it
differs from that; an eigenvalue of it is then worth a number h of trials, by a normal
regression with known noise in both variables (`flwr_fbo.models.noisy_sums`).

Where each arm has coordinates of its own (`FeatureEncoder.blocks`), what a total says
of two arms together is noise and nothing else: it is left out, and each arm's block is
taken by itself.

The ridge is averaged by evidence over a grid, and v is estimated from the same totals:
nothing is to be tuned. All of this is post-processing of what was released.

Two rules say when a site is better off with its own trials. `BlocksBelief.worth` is
public: it compares what the totals know with what one site's own trials would tell.
`flwr_fbo.bandits.linear.leaving_the_sums` is private. After either, a site acts on its
own clean data, and nothing that it does later is in any block: so the whole promise
still holds.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import NamedTuple

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.bandits.linear.confidence import Belief, Confidence
from flwr_fbo.bandits.linear.prior import Prior
from flwr_fbo.bandits.linear.settings import LinearUCBSettings
from flwr_fbo.models.ellipsoid import Ellipsoid
from flwr_fbo.models.noisy_sums import evidence, times
from flwr_fbo.models.ridge_average import Average, ridge_average

# Ridges that are averaged over, and the one that `worth` and shrinking count with; in
# units of the longest action's square.
_RIDGES = np.array([0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0])
_WORTH_RIDGE = 0.1
# Sharing goes on where totals are worth so many times a site's own trials: those become
# more until the next total. Own trials tell something once the site's Gram matrix is so
# many `_WORTH_RIDGE` in the mean direction. `benchmarks.secure_bandits` says by which
# tables both were chosen.
_LEAST_WORTH, _LEAST_RIDGES = 1.4, 2.0
# The reward variance to begin with, and the least one, over sigma^2.
_FIRST_VARIANCE, _LEAST_VARIANCE = 0.8, 0.08
_TINY = np.finfo(float).tiny


class BlocksBelief:
    """Belief of every site by the same released blocks.

    Parameters
    ----------
    confidence : Confidence
        Settings and confidence set of the study.
    totals : ndarray of shape (k, d + 1, d + 1)
        The blocks' totals, in the order of their release; k may be 0.
    stds : ndarray of shape (k,)
        Deviation of each total's noise on the diagonal, >= 0.
    num_sites : int
        Number of sites that were summed, >= 1: the largest of all blocks.
    num_arms : int, optional
        Number of arms with as many coordinates each of their own: an action has zeros
        in all others. That of the encoder's blocks unless given, or 1.
    prior : Prior, optional
        What is known besides, without noise, and public; nothing unless given.

    Raises
    ------
    numpy.linalg.LinAlgError
        If the numbers are so large that nothing can be computed.
    """

    def __init__(
        self,
        confidence: Confidence,
        totals: FloatArray,
        stds: FloatArray,
        num_sites: int,
        num_arms: int | None = None,
        prior: Prior | None = None,
    ) -> None:
        self._confidence, self.settings = confidence, confidence.settings
        self._num_sites = num_sites
        if num_arms is None:
            encoder = self.settings.encoder
            num_arms = 1 if encoder is None else encoder.num_blocks
        size = self.settings.releases.dimension + 1
        self._std = std = math.sqrt(float(np.square(stds).sum()))
        most = self.settings.noise_scale**2
        variance = _FIRST_VARIANCE * most
        # What overflows is refused at the end.
        with np.errstate(over="ignore", invalid="ignore"):
            blocks = np.asarray(totals, dtype=float).reshape(-1, size, size)
            total = blocks.sum(axis=0)
            for _ in range(2):
                found = _evidence(self.settings, total, std, variance, num_arms)
                before = variance
                model = _averaged(self.settings, found, before, None)
                variance = _variance(self.settings, total, found.gram, model.estimate)
            if prior is not None:  # in what a site chooses by, not in `worth`
                model = _averaged(self.settings, found, before, prior)
        self._found, self._model = found, model
        parts = found.information, found.target, model.estimate, model.covariance
        if not all(np.isfinite(part).all() for part in parts):
            raise np.linalg.LinAlgError("the totals are too large")

    @cached_property
    def belief(self) -> Belief:
        """Model that a site chooses by."""
        precision = np.linalg.inv(self._model.covariance)
        precision = (precision + precision.T) / 2
        target = precision @ self._model.estimate
        return self._confidence.choosing(Ellipsoid.raised(precision, target))

    @cached_property
    def worth(self) -> float:
        """Ratio, >= 0, of a site's uncertainty by its own trials to that by the totals.

        With G the Gram matrix of all M summed sites, one site's own is about G / M.
        With ridge r the ratio is tr(G (G / M + r)^-1) / tr(G (H + r)^-1): the mean
        variance of the rewards of the actions that were played. A function of released
        numbers only.
        """
        gram, information = self._found.gram, self._found.information
        eye = _worth_ridge(self.settings) * np.eye(len(gram))
        alone = np.trace(np.linalg.solve(gram / self._num_sites + eye, gram))
        together = np.trace(np.linalg.solve(information + eye, gram))
        return float(alone / max(together, _TINY)) if together > 0 else 0.0

    @property
    def pays(self) -> bool:
        """Whether sites should go on sharing: the totals know more than own trials.

        They must know as much more as own trials will tell until the next total. At
        first neither tells anything: then they go on if, by the noise and the number of
        sites, totals could be worth that once own trials tell something, with the
        largest variance of rewards and a theta as long as their range.
        """
        gram, ridge = self._found.gram, _worth_ridge(self.settings)
        own = _LEAST_RIDGES * ridge
        if np.trace(gram) >= own * len(gram) * self._num_sites:
            return self.worth >= _LEAST_WORTH
        g, most = own * self._num_sites, self.settings.noise_scale**2
        information = g**2 / (g + self._std**2 / 2 * (1 + 4 * most) / most)
        possible = (information + ridge) / (own + ridge)
        return max(possible, self.worth) >= _LEAST_WORTH

    def expected(self, actions: FloatArray) -> FloatArray:
        """Return what rewards the totals promise, in the rewards' range.

        Parameters
        ----------
        actions : ndarray of shape (T, d)
            Actions.

        Returns
        -------
        ndarray of shape (T,)
            Expected rewards, clipped to the range.
        """
        releases = self.settings.releases
        centred = actions @ self._model.estimate
        return np.clip(centred + releases.reward_middle, *releases.reward_range)


class _Evidence(NamedTuple):
    """H and h in trials, and the shrunk Gram matrix: see the module."""

    information: FloatArray
    target: FloatArray
    gram: FloatArray


def _worth_ridge(settings: LinearUCBSettings) -> float:
    return _WORTH_RIDGE * settings.releases.max_action_norm**2


def _evidence(
    settings: LinearUCBSettings,
    total: FloatArray,
    std: float,
    variance: float,
    num_arms: int,
) -> _Evidence:
    """Return what a noisy running sum tells, each arm's coordinates by themselves."""
    d = settings.releases.dimension
    places = np.arange(d).reshape(num_arms, -1)
    with_reward = np.column_stack([places, np.full(num_arms, d)])
    arms = total[with_reward[:, :, None], with_reward[:, None, :]]
    eye, ridge = np.eye(d // num_arms), _worth_ridge(settings)
    trace = np.trace(arms[:, :-1, :-1], axis1=1, axis2=2)
    middle = np.maximum(trace / len(eye), 0.0)[:, None, None] * eye
    found = evidence(arms, std, variance, ridge, shrink_to=middle)
    axes, matrices = found.directions, np.zeros((2, d, d))
    for matrix, values in zip(matrices, (found.information, found.gram), strict=True):
        of_arms = (axes * values[:, None]) @ np.swapaxes(axes, 1, 2)
        matrix[places[:, :, None], places[:, None, :]] = of_arms
    return _Evidence(matrices[0], times(axes, found.target).ravel(), matrices[1])


def _averaged(
    settings: LinearUCBSettings,
    found: _Evidence,
    variance: float,
    prior: Prior | None,
) -> Average:
    """Return the posterior of theta, with ridges averaged by their evidence."""
    ridges = _RIDGES[:, None] * settings.releases.max_action_norm**2
    information, target = found.information, found.target
    if prior is not None:
        information = information + prior.total[:-1, :-1]
        target = target + prior.total[:-1, -1]
    return ridge_average(information[None], target[None], ridges, variance)


def _variance(
    settings: LinearUCBSettings,
    total: FloatArray,
    gram: FloatArray,
    estimate: FloatArray,
) -> float:
    """Return an estimate of the reward variance v, by the released squares.

    The number of trials is not released: it is at least the sum of y^2 over B^2, and
    the trace of G over L^2. With rewards 0 and 1 the first is exact.
    """
    releases, most = settings.releases, settings.noise_scale**2
    squares, cross = total[-1, -1], total[:-1, -1]
    count = max(
        squares / releases.max_reward**2,
        float(np.trace(gram)) / releases.max_action_norm**2,
        1.0,
    )
    rest = squares - 2 * estimate @ cross + estimate @ gram @ estimate
    return float(np.clip(rest / count, _LEAST_VARIANCE * most, most))

"""What one site believes of its own parameter, where sites differ: `SiteDeviation`.

Site i's rewards have mean x'theta_i, with theta_i = theta + delta_i, ||delta_i|| <= D,
and delta_i zero but for the coordinates Z. Two ellipsoids say where theta_i is.

**The shared sum.** Let theta be the mean of the theta_j, weighted by trials. Agents
release their sums as if there was no deviation: rewards are sent as they are, and theta
takes up the mean deviation. If all sites' Gram matrices are the same but for their
numbers of trials, G_j = n_j C, then sum_j G_j theta_j = G theta: the sum is that of
rewards of mean x'theta, and theta in {t: ||t - theta'||_V <= w}, as in
`Confidence.width_at`. So theta_i is in that ellipsoid, made larger by D in Z. With
W = V / w^2 and any q > 0 it is in the ellipsoid of width 1, with the same centre, of

    P = (q / (1 + q)) (W - W_Z (W_ZZ + I / (q D^2))^-1 W_Z').

*Proof.* P^-1 = (1 + 1/q) W^-1 + (1 + q) D^2 E E', by Woodbury's identity, where E has
the unit vectors of Z as columns. Let t = a + E b, with a'W a <= 1 and ||b|| <= D. For
every x, by the inequality of Cauchy and Schwarz,

    (x't)^2 <= (sqrt(x'W^-1 x) + D ||E'x||)^2
            <= (1 + 1/q) x'W^-1 x + (1 + q) D^2 ||E'x||^2 = x'P^-1 x,

which says t'P t <= 1. It is what a normal prior of variance q D^2 on delta would leave.

**The site's own data**, where there is no deviation: its newest own release, with the
noise that the others see in it, or, with ``local_data="raw"``, its raw trials without
noise. theta_i is in {t: ||t - theta_i'||_{V_i} <= w_i}, as for an agent that plays
alone.

**Both.** With A = a P and B = (1 - a) V_i / w_i^2, for any a in [0, 1],

    (t - t')'(A + B)(t - t') <= 1 - g'A (A + B)^-1 B g,    t = theta_i,

where g is how far the two centres are apart, and t' the mean of the centres, weighted
by A and B. *Proof.* The left side and the last term add up to the weighted mean of two
quadratic forms that are at most 1. A site takes the q and the a, of a few, with the
smallest volume. a = 0 is the site alone. It takes that where the right side is below 0
for one of them: then the ellipsoids do not meet, so that D is too small, or it is one
of the alpha cases. A site may look at the data to choose, as both ellipsoids hold for
every q and a at once.

All of it holds for all agents and trials with probability 1 - alpha: half of alpha is
for the shared sum, and half for M sites' own data.

**What is not covered.** Where sites' Gram matrices differ by more than a factor, the
shared estimate also moves by V^-1 sum_j (G_j - (n_j / n) G) delta_j, which is outside
of Z too. It is zero for equal contexts and choices, and small where these are alike.
``benchmarks/site_deviation.py`` measures how often theta_i is missed.

*Formal guarantees.* All of it is post-processing of releases with
``local_data="released"``. Nothing else is sent than without a deviation.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.algorithms.linear_bandit.confidence import Belief, Confidence
from flwr_fbo.models.ellipsoid import Ellipsoid

# The values of a and q that a site tries.
_SHARES = np.linspace(0.0, 1.0, 5)
_FACTORS = np.geomspace(1e-3, 1e6, 91)
# A smaller number may be what rounding made of zero.
_TINY = 1e-9


class SiteBelief:
    """What one site believes of its own parameter, or each of a batch of sites.

    Parameters
    ----------
    confidence : Confidence
        In the shared sum; its settings have a `SiteDeviation`.
    shared : Ellipsoid
        A watched one of the shared sum, as it was received.
    own : ndarray of shape (..., d + 1, d + 1)
        The site's part of that sum: its own release or, with ``local_data="raw"``, what
        that was made of.
    """

    def __init__(
        self, confidence: Confidence, shared: Ellipsoid, own: FloatArray
    ) -> None:
        settings = confidence.settings
        assert settings.site_deviation is not None
        self._coordinates = settings.site_deviation.coordinates(settings.feature_names)
        self._bound = settings.site_deviation.bound
        self._confidence = own_confidence(confidence)
        self._own = self._confidence.ellipsoid(own)
        belief = confidence.belief(shared)
        # As they are now: what the site observes later is its own.
        self._shared_estimate = belief.ellipsoid.estimate
        self._shared_widths = belief.coordinate_widths
        self._precision, self._target = self._widened(belief)
        self._fused: Belief | None = None

    def _widened(self, shared: Belief) -> tuple[FloatArray, FloatArray]:
        """Return P, and P times the shared estimate."""
        z, d = self._coordinates, shared.ellipsoid.factor.shape[-1]
        scale = shared.width[..., None] ** 2
        factor = shared.ellipsoid.factor
        W = factor @ np.swapaxes(factor, -1, -2) / scale[..., None]
        u = shared.ellipsoid.target / scale
        block = W[..., z, :][..., z]
        variances = _FACTORS * self._bound**2
        # log det P, but for log det W.
        spread = np.linalg.eigvalsh(block)[..., None] * variances
        log_det = d * np.log(_FACTORS / (1 + _FACTORS)) - np.log1p(spread).sum(axis=-2)
        best = np.argmax(log_det, axis=-1)
        q, variance = _FACTORS[best], variances[best]
        added = np.eye(len(z)) / np.asarray(variance)[..., None, None]
        right = np.concatenate([W[..., z, :], u[..., z, None]], axis=-1)
        solved = np.linalg.solve(block + added, right)
        taken = np.swapaxes(W[..., z, :], -1, -2) @ solved
        share = np.asarray(q / (1 + q))[..., None]
        precision = share[..., None] * (W - taken[..., :-1])
        precision = (precision + np.swapaxes(precision, -1, -2)) / 2
        return precision, share * (u - taken[..., -1])

    def observe(self, x: FloatArray, y: FloatArray | float) -> None:
        """Add a raw trial of the site's own."""
        self._own.observe(x, y)
        self._fused = None

    def observe_sum(self, gram: FloatArray, target: FloatArray, count: int) -> None:
        """Add a sum of raw trials of the site's own: see `Ellipsoid.observe_sum`."""
        self._own.observe_sum(gram, target, count)
        self._fused = None

    @property
    def belief(self) -> Belief:
        """What the site chooses by: theta_i is within it."""
        if self._fused is None:
            self._fused = self._fuse()
        return self._fused

    def _fuse(self) -> Belief:
        own = self._confidence.belief(self._own)
        V = self._own.factor @ np.swapaxes(self._own.factor, -1, -2)
        scale, models = own.width[..., None] ** 2, own.width.ndim
        share = _SHARES.reshape(-1, *[1] * (models + 2))
        A, B = share * self._precision, (1 - share) * (V / scale[..., None])
        both = A + B
        gap = (self._shared_estimate - self._own.estimate)[..., None]
        apart = np.swapaxes(A @ gap, -1, -2) @ np.linalg.solve(both, B @ gap)
        left = 1 - apart[..., 0, 0]
        d = V.shape[-1]
        log_volume = d * np.log(np.maximum(left, _TINY)) - np.linalg.slogdet(both)[1]
        meet = np.all(left > _TINY, axis=0)
        best = np.where(meet, np.argmin(log_volume, axis=0), 0)
        share = _SHARES[best][..., None]
        target = share * self._target + (1 - share) * (self._own.target / scale)
        chosen = best[None, ..., None, None]
        matrix = np.take_along_axis(both, chosen, axis=0)[0]
        width = np.sqrt(np.take_along_axis(left, best[None], axis=0)[0])
        return Belief(Ellipsoid(matrix, target), width, own.exploration)

    @property
    def deviation(self) -> tuple[FloatArray, FloatArray]:
        """Delta_i where sites differ, and half its confidence interval, shape (..., z).

        The site's own estimate less the shared one, and the sum of their widths, as
        both hold at once.
        """
        z, belief = self._coordinates, self.belief
        deviation = belief.ellipsoid.estimate - self._shared_estimate
        widths = belief.coordinate_widths + self._shared_widths
        return deviation[..., z], widths[..., z]


def own_confidence(confidence: Confidence) -> Confidence:
    """Return the confidence in a site's own data, beside that in the shared sum."""
    settings = replace(confidence.settings, site_deviation=None)
    if settings.local_data == "raw":
        settings = replace(
            settings, releases=replace(settings.releases, epsilon=math.inf)
        )
    share = confidence.alpha / (2 * confidence.num_agents)
    return Confidence(settings, 1, share).after(confidence.num_synchronisations)

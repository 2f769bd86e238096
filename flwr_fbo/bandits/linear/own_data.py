"""A site's own clean data, and what the others' noisy sums add: ``local_data="own"``.

A site knows the sum of its own trials without noise: V = sum x x' and c = sum x y. The
others' part of the total, O = total - own message, is noisy, and of sites that may
differ. A Bayesian linear regression puts them together, with reward variance v:

    theta ~ N(0, v / ridge D^-1),    y = x'theta + N(0, v).

Ridge, D and v are not set: the data tell them.

**Scales.** D is diagonal. With an encoder it has the mean square of each number in the
own actions, over all categories and blocks that it comes with
(`FeatureEncoder.scale_groups`). So an unlikely theta is one that would make rewards
vary much, in whatever unit a number is, and a ridge is in trials: that of one weighs as
one average trial does (unit information; Kass & Wasserman, 1995). Bounds that are too
wide make a feature small, and change nothing. A scale is at least a thousandth of the
mean one. Vectors may have a coordinate for each arm, and then those of rare arms would
look small: without an encoder all scales are the mean one.

**Ridge and reward variance.** The model is a mixture over a public grid of ridges, from
a tenth of a trial to 30. A ridge's weight is its prior, proportional to 1 / ridge,
times its evidence, the marginal likelihood of the own clean data (MacKay, 1992). v is
estimated by the residuals of the smallest ridge. A width is for rewards that vary by
sigma; the site explores sqrt(v) / sigma of it. ``benchmarks/bandit_defaults.py`` says
what a ridge and width that are tuned on a table itself give beside it.

The others count for as much as they are worth to this site.

**Noise.** The others' Gram matrix is shrunk towards c1 V + c2 I, fitted by least
squares, as far as its noise explains how it differs from that. Along an eigenvector of
it their sum of x y is worth a number h of trials (`flwr_fbo.models.noisy_sums`).

**Difference.** If the site's parameter differs from the others' by N(0, v / q I), h
becomes h q / (h + q): never more than q trials in any direction. How much sites differ
is unknown: the model is a mixture over caps q, with a prior of .98 on q = 0, the site
alone, beside the one over ridges. A cap's weight is its prior times its evidence, given
what the others say. So the others count only once own data speak for them, and no
longer when they speak against them.

A site chooses within the ellipsoid of the mixture's mean and covariance. All of it is a
function of sums, and is computed anew when there are new trials.
``benchmarks/secure_bandits.py`` shows what it gives.

*No error depends on data.* A server chooses bounds and the total. So a ridge is never
less than what rounding may take from an eigenvalue of V (`_least_ridge`); what is
inverted, or has a factor, is raised where rounding has made it indefinite (`raised`);
and what overflows is refused by the total alone, before own data are looked at
(`RecordedBandit.receive`).

*Formal guarantees.* It is computed at the site, and sent nowhere. What own clean data
mean for the releases: see `LinearUCBSettings`.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.bandits.linear.confidence import Belief, Confidence
from flwr_fbo.bandits.linear.prior import Prior
from flwr_fbo.bandits.linear.settings import LinearUCBSettings
from flwr_fbo.models.ellipsoid import Ellipsoid
from flwr_fbo.models.noisy_sums import Evidence, evidence, times
from flwr_fbo.models.ridge_average import Average, ridge_average
from flwr_fbo.models.rounding import raised

# Ridges that are averaged over, in trials, the prior of each proportional to its
# inverse; and the least scale of a coordinate, over the mean one.
_RIDGES = np.array([0.1, 0.3, 1.0, 3.0, 10.0, 30.0])
_LEAST_SCALE = 1e-3
# How many own trials the others may be worth in a direction, in units of the longest
# action's square, and the prior of each.
_CAPS = np.array([0.0, 1.0, 4.0, 16.0, 64.0, 256.0, 1e6])
_PRIOR = np.array([0.98] + [0.02 / 6] * 6)
# The reward variance is estimated as if so many trials had shown the largest one, and
# is at least this share of it.
_PRIOR_TRIALS, _LEAST_VARIANCE = 5.0, 0.02
_TINY = np.finfo(float).tiny
# What rounding may take from an eigenvalue of a sum of up to four million trials, as a
# share of its trace.
_LOST = 2.0**-30

Counts = NDArray[np.int64] | NDArray[np.float64] | int | float


def _least_ridge(
    settings: LinearUCBSettings, own: FloatArray, num_own: Counts
) -> FloatArray:
    """Return twice what rounding takes from an eigenvalue of V at most, shape (...).

    Each trial's xx' is rounded to the grid, which moves an eigenvalue by d / 2 steps at
    most, and adding them by `_LOST` of the trace. So with this ridge the smallest
    eigenvalue of V + ridge I is at least half of it, whatever the trials are, and its
    condition number 2^30 at most: solving by it cannot fail.
    """
    d, grid = settings.releases.dimension, settings.releases.grid
    trace = np.trace(own[..., :-1, :-1], axis1=-2, axis2=-1)
    return np.asarray(2 * _LOST * trace + d * grid * np.asarray(num_own))


def evidence_of_others(
    settings: LinearUCBSettings,
    others: FloatArray,
    std: float,
    own: FloatArray,
    num_own: Counts,
) -> Evidence:
    """Return what the others' releases tell a site, or each of a batch of sites.

    Parameters
    ----------
    settings : LinearUCBSettings
        Settings of the study.
    others : ndarray of shape (..., d + 1, d + 1)
        Total minus the site's own message.
    std : float
        s >= 0, of the noise on the diagonal of ``others``.
    own : ndarray of shape (..., d + 1, d + 1)
        Clean sum that the site's own message was made of.
    num_own : int, or ndarray of int of shape (...)
        Number of trials in the clean sum.

    Raises
    ------
    numpy.linalg.LinAlgError
        If ``others`` has numbers so large that nothing can be computed.
    """
    # What overflows is refused at the end.
    with np.errstate(over="ignore", invalid="ignore"):
        alone = _mixture(settings, own, num_own, None)
        like, ridge = _like(others, own), alone.ridge
        found = evidence(others, std, alone.variance, ridge, known=own, shrink_to=like)
    if not (np.isfinite(found.information) & np.isfinite(found.target)).all():
        raise np.linalg.LinAlgError("the others' sum is too large")
    return found


class OwnBelief:
    """Belief of a site, or of each of a batch, by its own data and the others'.

    Parameters
    ----------
    confidence : Confidence
        Settings and confidence set of the study.
    others : ndarray of shape (..., d + 1, d + 1), optional
        The total minus the site's own message; nothing unless given.
    num_others : int
        Number of agents' releases in it.
    own : ndarray of shape (..., d + 1, d + 1)
        Clean sum that the site's own message was made of.
    num_own : int, or ndarray of int of shape (...)
        Number of trials in the clean sum.
    num_releases : int
        Largest number of releases that any of the others has made.
    std : float, optional
        Deviation of the noise on the diagonal of ``others``; that of as many releases'
        own noise as there are others, unless given.
    prior : Prior, optional
        What was known before; nothing unless given. It counts as own trials do, but for
        intervals.
    """

    def __init__(
        self,
        confidence: Confidence,
        others: FloatArray | None,
        num_others: int,
        own: FloatArray,
        num_own: Counts,
        num_releases: int,
        *,
        std: float | None = None,
        prior: Prior | None = None,
    ) -> None:
        self._settings = settings = confidence.settings
        self._own, self._num_own = own.copy(), np.array(num_own)
        self._prior = prior or Prior.none(settings.releases.dimension)
        self._others: Evidence | None = None
        if others is not None and num_others > 0:
            if std is None:
                std = math.sqrt(num_others) * settings.releases.std_by(num_releases)
            self._others = evidence_of_others(settings, others, std, *self._known)
        clean = replace(settings.releases, epsilon=math.inf, calibration="exact")
        share = confidence.alpha / confidence.num_agents
        alone = Confidence(replace(settings, releases=clean), 1, share)
        self._alone = alone.after(confidence.num_synchronisations)
        self._confidence = confidence
        self._model: Ellipsoid | None = None

    @property
    def _known(self) -> tuple[FloatArray, NDArray[np.float64]]:
        """Sum and number of the site's own trials, with the prior's."""
        return self._prior.added_to(self._own, self._num_own)

    def observe_sum(self, total: FloatArray, count: NDArray[np.int64] | int) -> None:
        """Add trials of the site: their clean sum, shape (..., d + 1, d + 1)."""
        self._own, self._num_own = self._own + total, self._num_own + count
        self._model = None

    @property
    def belief(self) -> Belief:
        """Model that the site chooses by."""
        if self._model is None:
            self._model = weighed(self._settings, *self._known, self._others)
        return self._confidence.choosing(self._model)

    @property
    def coordinate_widths(self) -> FloatArray:
        """Half the confidence interval about the model's estimate, shape (..., d).

        The interval of the site's own clean data is that of linear UCB without noise,
        with the settings' ridge (Abbasi-Yadkori et al., 2011). It holds whatever the
        other sites and the prior are: for all M agents at once with probability 1 -
        alpha. About the model's estimate it is wider by how far the two estimates are
        apart.
        """
        alone = self.alone
        distance = self.belief.ellipsoid.estimate - alone.ellipsoid.estimate
        return alone.coordinate_widths + np.abs(distance)

    @property
    def alone(self) -> Belief:
        """Confidence set by the own clean data alone; see `coordinate_widths`."""
        least = _least_ridge(self._settings, self._own, self._num_own)
        ridge = np.maximum(self._settings.ridge, least)
        d = self._own.shape[-1] - 1
        matrix = self._own[..., :-1, :-1] + _scaled_eye(ridge, d)
        ellipsoid = Ellipsoid.raised(matrix, self._own[..., :-1, -1], watched=True)
        return self._alone.belief(ellipsoid)

    @property
    def worth(self) -> FloatArray:
        """Number of own trials that the others are worth now, shape (...).

        By as many more trials as the site has, all alike, the volume of its ellipsoid
        would shrink as it does by what the others add.
        """
        known, num_known = self._known
        alone = _mixture(self._settings, known, num_known, None)
        root = np.sqrt(alone.ridge)
        gram = known[..., :-1, :-1] / (root[..., :, None] * root[..., None, :])
        values = np.maximum(np.linalg.eigvalsh(gram), 0.0)

        def volume(times: FloatArray) -> FloatArray:
            return np.asarray(np.log1p(values * times[..., None]).sum(-1))

        low = np.ones_like(num_known)
        shrunk = (
            self.belief.ellipsoid.log_det - _ellipsoid_of(self._settings, alone).log_det
        )
        target = volume(low) + shrunk
        high = low + 1e9 * (num_known > 0)
        for _ in range(100):
            middle = np.sqrt(low * high)
            low = np.where(volume(middle) < target, middle, low)
            high = np.where(volume(middle) < target, high, middle)
        return np.asarray((low - 1) * num_known)


def weighed(
    settings: LinearUCBSettings,
    own: FloatArray,
    num_own: Counts,
    others: Evidence | None,
) -> Ellipsoid:
    """Return the model that a site chooses by, or each of a batch of sites.

    Parameters
    ----------
    settings : LinearUCBSettings
        Settings of the study.
    own : ndarray of shape (..., d + 1, d + 1)
        Clean sum of the site's own trials, and of a prior's.
    num_own : int, or ndarray of shape (...)
        Number of these trials.
    others : Evidence, optional
        What the others tell; nothing unless given.
    """
    mixture = _mixture(settings, own, num_own, others)
    return _ellipsoid_of(settings, mixture)


def _mixture(
    settings: LinearUCBSettings,
    own: FloatArray,
    num_own: Counts,
    others: Evidence | None,
) -> Average:
    """Return the mixture over all ridges and, if there are others, all caps.

    Coordinates are divided by the roots of their scales, in which ridges are numbers of
    trials.
    """
    scale = _scale(settings, own, num_own)
    by = np.sqrt(scale)
    by_both = by[..., :, None] * by[..., None, :]
    gram, target = own[..., :-1, :-1] / by_both, own[..., :-1, -1] / by
    most, trial = settings.noise_scale**2, settings.releases.max_action_norm**2
    # Axes in front of a batch's: ridges, and caps.
    ridges = _on_front(_RIDGES, by.ndim - 1)[:, None]
    h = u = np.zeros((1, *target.shape))
    grams, targets, priors = gram[None], target[None], _PRIOR[:1]
    if others is not None:
        U, priors = others.directions, _PRIOR
        shares = np.stack([others.share(cap * trial) for cap in _CAPS])
        capped = U * (shares * others.information)[..., None, :]
        information = capped @ np.swapaxes(U, -1, -2) / by_both
        told = times(U, shares * others.target) / by
        h, axes = np.linalg.eigh(information)
        h, u = np.maximum(h, 0.0), times(np.swapaxes(axes, -1, -2), told)
        grams, targets = gram + information, target + told
    # By the least ridge, alone.
    fitted = np.linalg.solve(
        gram + _RIDGES[0] * np.eye(gram.shape[-1]), target[..., None]
    )
    squares = own[..., -1, -1] - (target * fitted[..., 0]).sum(-1)
    variance = (squares + _PRIOR_TRIALS * most) / (num_own + _PRIOR_TRIALS)
    variance = np.clip(variance, _LEAST_VARIANCE * most, most)
    log_prior = _on_front(np.log(priors), by.ndim - 1) - np.log(ridges)
    average = ridge_average(
        grams, targets, ridges, variance, information=h, told=u, log_prior=log_prior
    )
    return Average(
        average.estimate / by,
        average.covariance / by_both,
        average.variance,
        average.ridge[..., None] * scale,
    )


def _scale(settings: LinearUCBSettings, own: FloatArray, num_own: Counts) -> FloatArray:
    """Return D: the scale of each coordinate, in squares, shape (..., d).

    All are alike without an encoder, or while all actions were zeros. None is so small
    that a ridge is below `_least_ridge`.
    """
    releases, encoder = settings.releases, settings.encoder
    d, trial = releases.dimension, releases.max_action_norm**2
    squares = np.diagonal(own[..., :-1, :-1], axis1=-2, axis2=-1)
    total = squares.sum(-1)
    # A prior may be worth more trials than it has.
    count = np.maximum(num_own, total / trial)[..., None]
    if encoder is None:
        squares = np.repeat(total[..., None] / d, d, axis=-1)
    else:
        groups = encoder.scale_groups
        squares = (squares @ np.eye(groups.max() + 1)[groups])[..., groups]
    scale = np.where(
        total[..., None] > 0, squares / np.maximum(count, _TINY), trial / d
    )
    least = _least_ridge(settings, own, num_own) / _RIDGES[0]
    least = np.maximum(least, _LEAST_SCALE * scale.mean(-1))
    return np.asarray(np.maximum(scale, least[..., None]))


def _ellipsoid_of(settings: LinearUCBSettings, mixture: Average) -> Ellipsoid:
    """Return the ellipsoid of a mixture's mean, and of its covariance over sigma^2.

    A width w is then one of w sqrt(v) / sigma over v: the less rewards vary, the less
    is explored.
    """
    scale = settings.noise_scale**2 / mixture.variance
    precision = _inverse(mixture.covariance) * np.asarray(scale)[..., None, None]
    precision = (precision + np.swapaxes(precision, -1, -2)) / 2
    return Ellipsoid.raised(precision, times(precision, mixture.estimate))


def _like(others: FloatArray, own_sum: FloatArray) -> FloatArray:
    """Return the c1 V + c2 I nearest to others' Gram matrices, with c1 and c2 >= 0."""
    noisy, own = others[..., :-1, :-1], own_sum[..., :-1, :-1]
    d = noisy.shape[-1]
    size, trace = np.square(own).sum((-2, -1)), np.trace(own, axis1=-2, axis2=-1)
    fit, total = (noisy * own).sum((-2, -1)), np.trace(noisy, axis1=-2, axis2=-1)
    det = size * d - trace**2  # 0 where V is a multiple of I
    c1 = (d * fit - trace * total) / np.maximum(det, _TINY)
    c2 = (size * total - trace * fit) / np.maximum(det, _TINY)
    only_own = np.maximum(fit / np.maximum(size, _TINY), 0.0)
    only_eye = np.maximum(total / d, 0.0)
    no_own = (c1 < 0) | (det <= _TINY)
    c1 = np.where(no_own, 0.0, np.where(c2 < 0, only_own, c1))
    c2 = np.where(no_own, only_eye, np.maximum(c2, 0.0))
    return np.asarray(c1[..., None, None] * own + c2[..., None, None] * np.eye(d))


def _inverse(matrix: FloatArray) -> FloatArray:
    """Return the inverse of matrices that are positive definite, but for rounding."""
    try:
        return np.asarray(np.linalg.inv(matrix), dtype=np.float64)
    except np.linalg.LinAlgError:
        return np.asarray(np.linalg.inv(raised(matrix)), dtype=np.float64)


def _scaled_eye(scale: FloatArray, size: int) -> FloatArray:
    return np.asarray(scale[..., None, None] * np.eye(size))


def _on_front(values: FloatArray, num_axes: int) -> FloatArray:
    """Return values in an axis before so many of a batch."""
    return values.reshape(-1, *[1] * num_axes)

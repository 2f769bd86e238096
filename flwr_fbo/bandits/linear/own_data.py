"""A site's own clean data, and what the others' noisy sums add: ``local_data="own"``.

A site knows the sum of its own trials without noise: V = sum x x' and c = sum x y. The
others' part of the total, O = total - own message, is noisy, and of sites that may
differ. A Bayesian linear regression puts them together, with reward variance v:

    theta ~ N(0, v / ridge I),    y = x'theta + N(0, v).

The others count for as much as they are worth to this site.

**Noise.** The others' Gram matrix is estimated from O by shrinkage. The prior mean is
c1 V + c2 I, fitted by least squares; the weight w of O, from 0 to 1, is 1 less the
share of the noise in O's mean square distance from it (Efron & Morris, 1973). Along an
eigenvector of that estimate with eigenvalue g, the others' sum of x y measures g theta
with variance v g + s^2 (1 + w ||theta||^2) / 2, where s is the deviation of the noise
on the diagonal (see `flwr_fbo.models.ellipsoid.posterior_of_noisy_sum`). So its
information is h = g^2 / (g + s^2 (1 + w ||theta||^2) / (2 v)), in trials, as V's is.

**Difference.** If the site's parameter differs from the others' by N(0, v / q I), h
becomes h q / (h + q): never more than q trials in any direction. How much sites differ
is unknown: the model is a mixture over caps q, with a prior of .98 on q = 0, the site
alone. A cap's weight is its prior times its evidence: the marginal likelihood of the
site's own clean data, given what the others say. So the others count only once own data
speak for them, and no longer when they speak against them.

A site chooses within the ellipsoid of the mixture's mean and covariance. All of it is a
function of sums, and is computed anew when there are new trials. The rule was chosen by
``benchmarks/own_data.py``.

*No error depends on data.* A server chooses ridge, scales and the total. So the ridge
is never less than what rounding may take from an eigenvalue of V (`_ridge_of`); what is
inverted, or has a factor, is raised where rounding has made it indefinite (`raised`);
and what overflows is refused by the total alone, before own data are looked at
(`RecordedBandit.receive`).

*Formal guarantees.* It is computed at the site, and sent nowhere. What own clean data
mean for the releases: see `LinearUCBSettings`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.bandits.linear.confidence import Belief, Confidence
from flwr_fbo.bandits.linear.settings import LinearUCBSettings
from flwr_fbo.models.ellipsoid import Ellipsoid
from flwr_fbo.models.rounding import raised

# How many own trials the others may be worth in a direction, and the prior of each; in
# units of the longest action's square.
_CAPS = (0.0, 1.0, 4.0, 16.0, 64.0, 256.0, 1e6)
_PRIOR = np.array([0.98] + [0.02 / 6] * 6)
# The reward variance is estimated as if so many trials had shown the largest one, and
# is at least this share of it.
_PRIOR_TRIALS, _LEAST_VARIANCE = 20.0, 0.08
# ||theta||^2, over the square of the range of rewards that sigma is half of, is taken
# to be in this range.
_NORMS = 0.25, 400.0
_TINY = np.finfo(float).tiny
# What rounding may take from an eigenvalue of a sum of up to four million trials, as a
# share of its trace.
_LOST = 2.0**-30

Counts = NDArray[np.int64] | int


# Of a site's clean data: the matrix V + ridge I, the target c, and an estimate of the
# reward variance v.
OwnData = tuple[FloatArray, FloatArray, FloatArray]


def own_data(settings: LinearUCBSettings, own: FloatArray, num_own: Counts) -> OwnData:
    """Return the linear regression on a clean sum, or on each of a batch.

    The sum of ``num_own`` trials is of shape (..., d + 1, d + 1); matrix, target and
    variance are of shapes (..., d, d), (..., d) and (...), as is ``num_own``.
    """
    ridge = _ridge_of(settings, own, num_own)[..., None, None]
    matrix = own[..., :-1, :-1] + ridge * np.eye(own.shape[-1] - 1)
    target, most = own[..., :-1, -1], settings.noise_scale**2
    squares = own[..., -1, -1] - (target * _solved(matrix, target)).sum(-1)
    variance = (squares + _PRIOR_TRIALS * most) / (num_own + _PRIOR_TRIALS)
    return matrix, target, np.clip(variance, _LEAST_VARIANCE * most, most)


def _ridge_of(
    settings: LinearUCBSettings, own: FloatArray, num_own: Counts
) -> FloatArray:
    """Return the ridge, or twice what rounding takes from V at most, shape (...).

    Each trial's xx' is rounded to the grid, which moves an eigenvalue by d / 2 steps at
    most, and adding them by `_LOST` of the trace. So the smallest eigenvalue of V +
    ridge I is at least half of the ridge, whatever the trials are, and its condition
    number 2^30 at most: solving by it cannot fail.
    """
    d, grid = settings.releases.dimension, settings.releases.grid
    lost = _LOST * np.trace(own[..., :-1, :-1], axis1=-2, axis2=-1)
    lost = 2 * lost + d * grid * np.asarray(num_own)
    return np.asarray(np.maximum(settings.ridge, lost))


@dataclass(frozen=True, eq=False)
class Others:
    """Evidence of the others' releases, for a site or for each of a batch of sites.

    Attributes
    ----------
    directions : ndarray of shape (..., d, d)
        Orthonormal, in columns.
    information : ndarray of shape (..., d)
        h of each direction, in trials.
    target : ndarray of shape (..., d)
        h times what they say theta is in that direction.
    """

    directions: FloatArray
    information: FloatArray
    target: FloatArray

    @classmethod
    def of(
        cls,
        settings: LinearUCBSettings,
        others: FloatArray,
        std: float,
        own: FloatArray,
        num_own: Counts,
    ) -> Others:
        """Return what a sum of the others' releases tells.

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
            gram, weight = _shrunk(others[..., :-1, :-1], own[..., :-1, :-1], std)
            values, directions = np.linalg.eigh(gram)
            g = np.maximum(values, 0.0)
            across = np.swapaxes(directions, -1, -2)
            cross = _times(across, others[..., :-1, -1])
            matrix, own_target, variance = own_data(settings, own, num_own)
            rotated = across @ matrix @ directions
            target = _times(across, own_target)
            low, high = (bound * 4 * settings.noise_scale**2 for bound in _NORMS)
            estimate = _solved(rotated, target)
            for _ in range(2):
                length = np.clip(np.square(estimate).sum(-1), low, high)
                noise = std**2 / 2 * (1 + weight * length) / variance
                share = g / np.maximum(g + noise[..., None], _TINY)
                together = rotated + _diagonal(share * g)
                estimate = _solved(together, target + share * cross)
            found = cls(directions, share * g, share * cross)
        if not (np.isfinite(found.information) & np.isfinite(found.target)).all():
            raise np.linalg.LinAlgError("the others' sum is too large")
        return found

    def share(self, cap: float) -> FloatArray:
        """Return q / (h + q): what a cap, in units of h, leaves of each direction."""
        return cap / np.maximum(self.information + cap, _TINY)


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
    ) -> None:
        self._settings = settings = confidence.settings
        self._own, self._num_own = own.copy(), np.array(num_own)
        self._others: Others | None = None
        if others is not None and num_others > 0:
            if std is None:
                std = math.sqrt(num_others) * settings.releases.std_by(num_releases)
            self._others = Others.of(settings, others, std, own, num_own)
        clean = replace(settings.releases, epsilon=math.inf, calibration="exact")
        share = confidence.alpha / confidence.num_agents
        alone = Confidence(replace(settings, releases=clean), 1, share)
        self._alone = alone.after(confidence.num_synchronisations)
        self._confidence = confidence
        self._model: Ellipsoid | None = None

    def observe_sum(self, total: FloatArray, count: Counts) -> None:
        """Add trials of the site: their clean sum, shape (..., d + 1, d + 1)."""
        self._own, self._num_own = self._own + total, self._num_own + count
        self._model = None

    @property
    def belief(self) -> Belief:
        """Model that the site chooses by."""
        if self._model is None:
            self._model = weighed(
                self._settings, self._own, self._num_own, self._others
            )
        return self._confidence.choosing(self._model)

    @property
    def coordinate_widths(self) -> FloatArray:
        """Half the confidence interval about the model's estimate, shape (..., d).

        The interval of the site's own clean data is that of linear UCB without noise
        (Abbasi-Yadkori et al., 2011), which holds whatever the other sites are: for all
        M agents at once with probability 1 - alpha. About the model's estimate it is
        wider by how far the two estimates are apart.
        """
        matrix, target, _ = own_data(self._settings, self._own, self._num_own)
        ellipsoid = Ellipsoid.raised(matrix, target, watched=True)
        widths = self._alone.belief(ellipsoid).coordinate_widths
        return widths + np.abs(self.belief.ellipsoid.estimate - ellipsoid.estimate)

    @property
    def worth(self) -> FloatArray:
        """Number of own trials that the others are worth now, shape (...).

        By as many more trials as the site has, all alike, the volume of its ellipsoid
        would shrink as it does by what the others add.
        """
        target = self.belief.ellipsoid.log_det
        values = np.maximum(np.linalg.eigvalsh(self._own[..., :-1, :-1]), 0.0)

        ridge = _ridge_of(self._settings, self._own, self._num_own)[..., None]

        def volume(times: FloatArray) -> FloatArray:
            scaled = values * times[..., None] + ridge
            return np.asarray(np.log(scaled).sum(-1))

        low = np.ones_like(target)
        high = low + 1e9 * (self._num_own > 0)
        for _ in range(100):
            middle = np.sqrt(low * high)
            low = np.where(volume(middle) < target, middle, low)
            high = np.where(volume(middle) < target, high, middle)
        return np.asarray((low - 1) * self._num_own)


def weighed(
    settings: LinearUCBSettings,
    own: FloatArray,
    num_own: Counts,
    others: Others | None,
) -> Ellipsoid:
    """Return the model that a site chooses by, or each of a batch of sites.

    Parameters
    ----------
    settings : LinearUCBSettings
        Settings of the study.
    own : ndarray of shape (..., d + 1, d + 1)
        Clean sum of the site's own trials.
    num_own : int, or ndarray of int of shape (...)
        Number of the site's own trials.
    others : Others, optional
        Nobody's unless given.
    """
    alone = own_data(settings, own, num_own)
    if others is None:
        return Ellipsoid.raised(*alone[:2])
    U = others.directions
    ridge = _ridge_of(settings, own, num_own)
    covariance, estimate = _mixture(settings, ridge, alone, others)
    precision = _inverse(covariance)
    precision = (
        U @ (precision + np.swapaxes(precision, -1, -2)) @ np.swapaxes(U, -1, -2)
    )
    precision = (precision + np.swapaxes(precision, -1, -2)) / 4
    return Ellipsoid.raised(precision, _times(precision, _times(U, estimate)))


def _mixture(
    settings: LinearUCBSettings, ridge: FloatArray, alone: OwnData, others: Others
) -> tuple[FloatArray, FloatArray]:
    """Return covariance, over v, and mean of the mixture, in the others' directions.

    A normal prior of precision P = ridge I + H over v and mean P^-1 u gives own data
    the evidence, but for a constant, ((c + u)'(V + P)^-1 (c + u) - u'P^-1 u) / (2 v) +
    log det P / 2 - log det (V + P) / 2. In these directions P is diagonal.
    """
    matrix, target, variance = alone
    across = np.swapaxes(others.directions, -1, -2)
    rotated = across @ matrix @ others.directions
    trial = settings.releases.max_action_norm**2
    shares = np.stack([others.share(cap * trial) for cap in _CAPS])
    h, u = shares * others.information, shares * others.target
    matrices = rotated + _diagonal(h)
    targets = _times(across, target) + u
    covariances = _inverse(matrices)
    estimates = _times(covariances, targets)
    with np.errstate(over="ignore", invalid="ignore"):
        prior = ridge[..., None] + h
        fit = (estimates * targets).sum(-1) - (u**2 / prior).sum(-1)
        volume = np.linalg.slogdet(matrices)[1] - np.log(prior).sum(-1)
        evidence = (fit / variance - volume) / 2
        # What overflows is no evidence.
        evidence = np.where(np.isfinite(evidence), evidence, -np.inf)
        evidence += np.log(_PRIOR).reshape(-1, *[1] * (evidence.ndim - 1))
        weights = np.exp(evidence - evidence.max(axis=0))[..., None]
        weights /= weights.sum(axis=0)
        estimate = np.where(weights > 0, weights * estimates, 0.0).sum(axis=0)
        apart = np.where(weights > 0, estimates - estimate, 0.0)
    outer = apart[..., :, None] * apart[..., None, :]
    outer /= variance[..., None, None]
    covariance = (weights[..., None] * (covariances + outer)).sum(axis=0)
    return covariance, estimate


def _shrunk(
    noisy: FloatArray, own: FloatArray, std: float
) -> tuple[FloatArray, FloatArray]:
    """Return the others' Gram matrix, shrunk, and the weight of the noisy one.

    It is shrunk to c1 V + c2 I, nearest to the noisy matrix, with c1 and c2 >= 0.
    """
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
    prior = c1[..., None, None] * own + c2[..., None, None] * np.eye(d)
    difference = noisy - prior
    mean_square = np.square(difference).mean((-2, -1))
    noise = std**2 * (d + 1) / (2 * d)  # the mean variance of an entry
    weight = np.maximum(1 - noise / np.maximum(mean_square, _TINY), 0.0)
    weight = weight if noise else np.ones_like(weight)
    return prior + weight[..., None, None] * difference, weight


def _inverse(matrix: FloatArray) -> FloatArray:
    """Return the inverse of matrices that are positive definite, but for rounding."""
    try:
        return np.asarray(np.linalg.inv(matrix), dtype=np.float64)
    except np.linalg.LinAlgError:
        return np.asarray(np.linalg.inv(raised(matrix)), dtype=np.float64)


def _diagonal(values: FloatArray) -> FloatArray:
    return np.asarray(values[..., None] * np.eye(values.shape[-1]))


def _times(matrix: FloatArray, vector: FloatArray) -> FloatArray:
    return np.asarray((matrix @ vector[..., None])[..., 0])


def _solved(matrix: FloatArray, vector: FloatArray) -> FloatArray:
    return np.asarray(np.linalg.solve(matrix, vector[..., None])[..., 0])

"""Values that a site's own model learns in place of failed trials and of outliers.

A failed trial counts as the worst value that the site has seen (floor padding:
Wakabayashi et al., Bayesian optimization with experimental failure for high-throughput
materials growth, npj Computational Materials 8, 2022). It needs no bound that somebody
would have to know, and the worst value falls as the site sees worse ones. Optuna's
constant liar is the same for trials that still run. Where a site fails often, that is
not enough: in many dimensions most values are near the worst one. Then a failure counts
as worse by half of the values' range, as in Vizier's Gaussian process (Song et al., The
Vizier Gaussian process bandit algorithm, 2024), and the search stays where the nearest
trial did not fail. A model of its own for feasibility, as BoTorch has for constraints,
needs more failures to learn from than a site should have.

A penalty such as -1e12 is pulled up to the worst of the other values, like a failure:
next to it all of them would look alike to a model of standardised values.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray

# A gap below some values is extreme if it is this many times their own spread: a model
# whose noise has a deviation of 1e-3 at least could not tell them apart. Two values
# alone may well be that near to each other by chance.
_TOO_FAR, _TOO_FAR_FROM_TWO = 1e3, 1e6

# An agent fails often once this share of its trials failed. A failure is then worse
# than the worst value by this share of the values' range.
_OFTEN, _WORSE = 0.2, 0.5


def winsorised(y: FloatArray) -> FloatArray:
    """Return values with the extremely bad ones raised to the next one, shape (t,).

    Next to them the others would look alike to a model.

    Parameters
    ----------
    y : ndarray of shape (t,)
        Larger is better.

    Returns
    -------
    ndarray of shape (t,)
        ``y`` itself where nothing is out of bounds.
    """
    if len(y) < 3:
        return y
    ordered = -np.sort(-y)
    spread = ordered[0] - ordered
    gaps = -np.diff(ordered)
    few = np.arange(1, len(y)) < 3  # above each gap
    limits = np.where(few, _TOO_FAR_FROM_TWO, _TOO_FAR) * spread[:-1]
    far = (gaps > limits) & (limits > 0)
    if not far.any():
        return y
    return np.asarray(np.maximum(y, ordered[np.flatnonzero(far)[-1]]))


class Trials(NamedTuple):
    """The t trials that an agent's own search learns from.

    Attributes
    ----------
    x : ndarray of shape (t, D)
        Points of the trials on the unit cube.
    y : ndarray of shape (t,)
        Larger is better.
    failed : ndarray of bool, shape (t,)
        True for trials that failed, or were penalised.
    """

    x: FloatArray
    y: FloatArray
    failed: NDArray[np.bool_]

    @property
    def fail_often(self) -> bool:
        """True if a fifth of them failed, or more."""
        return bool(self.failed.mean() >= _OFTEN)

    def near_failures(self, points: FloatArray) -> NDArray[np.bool_]:
        """Return whether the trial nearest to each of k points failed, shape (k,).

        Parameters
        ----------
        points : ndarray of shape (k, D)
            Points of the unit cube.
        """
        if not self.failed.any():
            return np.zeros(len(points), dtype=np.bool_)
        from scipy.spatial.distance import cdist

        return np.asarray(self.failed[np.argmin(cdist(points, self.x), axis=1)])


def with_failures(x: FloatArray, y: FloatArray) -> Trials:
    """Return trials whose failures have a bad value; none if all have failed.

    Parameters
    ----------
    x : ndarray of shape (t, D)
        Points of the trials on the unit cube.
    y : ndarray of shape (t,)
        Larger is better; NaN where a trial failed.
    """
    failed = np.isnan(y)
    if failed.all():
        return Trials(x[:0], y[:0], failed[:0])
    values = y.copy()
    values[~failed] = winsorised(y[~failed])
    known = values[~failed]
    trials = Trials(x, values, failed | (values != y))
    worse = _WORSE * np.ptp(known) if trials.fail_often else 0.0
    values[trials.failed] = known.min() - worse
    return trials

"""Privacy loss distributions on a grid: composed, and asked for epsilon and delta.

They are made by connecting the dots (Doroshenko et al., 2022, algorithm 1) of exact
divergences. Two that are not composed yet can be asked for
what they spend together: a curve of one is summed with the masses of the other, which
takes microseconds where composing and searching takes milliseconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy import fft
from scipy.special import log_ndtr

from flwr_fbo._common.arrays import FloatArray

# What a composition may cut off at both ends together; it never lowers delta.
_CUT_MASS = 1e-15


@dataclass(frozen=True, eq=False)
class LossDistribution:
    """The privacy loss of one mechanism, in one direction.

    Attributes
    ----------
    step : float
        Distance of the losses on the grid.
    lowest : int
        The smallest loss, in steps.
    masses : ndarray of shape (n,)
        Probabilities of the losses ``lowest``, ``lowest + 1``, ...
    infinite : float
        Probability of an infinite loss.
    """

    step: float
    lowest: int
    masses: FloatArray
    infinite: float

    @classmethod
    def nothing(cls, step: float) -> LossDistribution:
        """Return the loss of a mechanism that tells nothing."""
        return cls(step, 0, np.ones(1), 0.0)

    @classmethod
    def of_release(
        cls, q: float, z: float, step: float, *, added: bool
    ) -> LossDistribution:
        """Return an upper bound on a release's loss, exact at the dots.

        Parameters
        ----------
        q, z : float
            Sampling probability and noise multiplier.
        step : float
            Between the dots.
        added : bool
            Whether an agent is added, or else left out.
        """
        lowest, highest = _support(q, z, step, added)
        curve = _deltas_added if added and q < 1 else _deltas_left_out
        epsilons = step * np.arange(lowest, highest + 1, dtype=np.float64)
        deltas = np.minimum.accumulate(curve(epsilons, q, z))
        falls, growth = np.diff(deltas), math.expm1(step)
        masses = np.empty(len(deltas))
        masses[0] = 1 - deltas[0] + falls[0] / growth
        masses[1:-1] = (falls[1:] - falls[:-1] * math.exp(step)) / growth
        masses[-1] = falls[-1] / math.expm1(-step)
        return cls(step, lowest, np.maximum(0.0, masses), float(deltas[-1]))

    @property
    def highest(self) -> int:
        """The largest finite loss, in steps."""
        return self.lowest + len(self.masses) - 1

    def compose(self, other: LossDistribution) -> LossDistribution:
        """Return the loss of both mechanisms together."""
        count = len(self.masses) + len(other.masses) - 1
        length = fft.next_fast_len(count, real=True)
        spectrum = fft.rfft(self.masses, length) * fft.rfft(other.masses, length)
        masses: FloatArray = fft.irfft(spectrum, length)[:count]
        low = int(np.argmax(np.cumsum(masses) > _CUT_MASS / 2))
        cut = int(np.argmax(np.cumsum(masses[::-1]) > _CUT_MASS / 2))
        high = max(len(masses) - cut, low + 1)
        kept = masses[low:high].copy()
        # Both ends are moved up, so that epsilon can only grow.
        kept[0] += masses[:low].sum()
        infinite = _either(self.infinite, other.infinite) + float(masses[high:].sum())
        lowest = self.lowest + other.lowest + low
        return LossDistribution(self.step, lowest, kept, infinite)

    @cached_property
    def tails(self) -> Tails:
        """What is left of the masses from each loss on."""
        # Imported here: it takes long, and dp-accounting has done it by now.
        from scipy.signal import lfilter

        above, discounted, excess = np.zeros((3, len(self.masses) + 1))
        falling = self.masses[::-1]
        above[1:] = np.cumsum(falling)
        discounted[1:] = lfilter([1.0], [1.0, -math.exp(-self.step)], falling)
        # By parts, without the difference of two numbers that are almost equal.
        excess[:] = -math.expm1(-self.step) * np.cumsum(discounted)
        return Tails(above, discounted, excess)


class Tails(NamedTuple):
    """Sums over the k largest losses l_j, with masses p_j, the smallest being l.

    Attributes
    ----------
    above : ndarray of shape (n + 1,)
        Of p_j, for k from 0 to n.
    discounted : ndarray of shape (n + 1,)
        Of p_j exp(l - l_j).
    excess : ndarray of shape (n + 1,)
        Of p_j (1 - exp(l - step - l_j)): delta a step before l, less ``infinite``.
    """

    above: FloatArray
    discounted: FloatArray
    excess: FloatArray


def _support(q: float, z: float, step: float, added: bool) -> tuple[int, int]:
    """Return the smallest and the largest loss on the grid that are worth a dot."""
    # Imported here: it takes long, as Flower's own accountant knows.
    from dp_accounting.pld.privacy_loss_mechanism import (
        AdjacencyType,
        GaussianPrivacyLoss,
    )

    # Without sampling both directions are the same.
    direction = AdjacencyType.ADD if added and q < 1 else AdjacencyType.REMOVE
    loss = GaussianPrivacyLoss(z, sampling_prob=q, adjacency_type=direction)
    bounds = loss.connect_dots_bounds()
    lowest = math.floor(bounds.epsilon_lower / step)
    return lowest, max(math.ceil(bounds.epsilon_upper / step), lowest + 1)


def _deltas_left_out(epsilons: FloatArray, q: float, z: float) -> FloatArray:
    """Return delta of (1 - q) P + q Q against P, the normal laws of mean 0 and 1.

    It is q times that of Q against P at log(1 + (exp(epsilon) - 1) / q); where that
    does not exist, each loss is above epsilon.
    """
    if q == 1:
        return _gaussian_deltas(epsilons, z)
    deltas = -np.expm1(np.minimum(epsilons, 0.0))
    some = epsilons > math.log1p(-q)
    left = epsilons[some]
    # The same twice: the first keeps the digits of what is small, and overflows.
    near = np.log1p(np.maximum(np.expm1(np.minimum(left, 1.0)) / q, -1 + 2.0**-53))
    far = left + np.log1p((q - 1) * np.exp(-np.maximum(left, 1.0))) - math.log(q)
    deltas[some] = q * _gaussian_deltas(np.where(left < 1.0, near, far), z)
    return deltas


def _deltas_added(epsilons: FloatArray, q: float, z: float) -> FloatArray:
    """Return delta of P against (1 - q) P + q Q, the normal laws of mean 0 and 1.

    With w = 1 - (1 - q) exp(epsilon) it is w times that of P against Q at
    log(q exp(epsilon) / w), and 0 where w is not positive.
    """
    deltas = np.zeros_like(epsilons)
    some = epsilons < -math.log1p(-q)
    left = epsilons[some]
    share = np.maximum(-np.expm1(left + math.log1p(-q)), 2.0**-53)
    beyond = left + math.log(q) - np.log(share)
    deltas[some] = share * _gaussian_deltas(beyond, z)
    return deltas


def _gaussian_deltas(epsilons: FloatArray, z: float) -> FloatArray:
    """Return `gaussian_delta` of mu = 1 / z at many, of either sign."""
    log_first = log_ndtr(0.5 / z - epsilons * z)
    log_second = epsilons + log_ndtr(-0.5 / z - epsilons * z)
    deltas = -np.exp(log_first) * np.expm1(np.minimum(0.0, log_second - log_first))
    return np.asarray(deltas)


def joint_delta(
    one: LossDistribution, other: LossDistribution, epsilon: float
) -> float:
    """Return delta at ``epsilon`` >= 0, which may be infinite, of two together."""
    if math.isinf(epsilon):
        return _either(one.infinite, other.infinite)
    place = math.floor(epsilon / one.step)
    at, after = (_delta_at(one, other, p) for p in (place, place + 1))
    share = math.expm1(epsilon - place * one.step) / math.expm1(one.step)
    return at + (after - at) * share  # linear in exp(epsilon) between the dots


def joint_epsilon(
    one: LossDistribution, other: LossDistribution, delta: float
) -> float:
    """Return epsilon at ``delta`` of two mechanisms together."""
    if _either(one.infinite, other.infinite) > delta:
        return math.inf
    low, high = 0, max(one.highest + other.highest, 0)
    at_low = _delta_at(one, other, low)
    if at_low <= delta:
        return 0.0
    at_high = _delta_at(one, other, high)
    while high - low > 1:
        middle = (low + high) // 2
        at_middle = _delta_at(one, other, middle)
        if at_middle > delta:
            low, at_low = middle, at_middle
        else:
            high, at_high = middle, at_middle
    share = (at_low - delta) / (at_low - at_high)
    return low * one.step + math.log1p(math.expm1(one.step) * share)


def _delta_at(one: LossDistribution, other: LossDistribution, place: int) -> float:
    """Return delta at an epsilon of ``place`` steps.

    Each loss of ``one`` leaves less of epsilon to ``other``. Where what is left is a
    loss of ``other``, its curve says the rest; where it is less than all of them, the
    rest is linear in its exponential.
    """
    mine, its, count = one.tails, other.tails, len(one.masses)
    # The loss of `one` that leaves the smallest loss of `other`, counted from 0.
    even = place - one.lowest - other.lowest
    total = _either(one.infinite, other.infinite)
    # Where `other` has k losses above what is left, and k runs with those of `one`.
    shift = len(other.masses) - 1 - even
    first, last = max(0, -shift), min(even + 1, count)
    if first < last:
        total += float(
            one.masses[first:last] @ its.excess[first + shift : last + shift]
        )
    beyond = min(max(even + 1, 0), count)
    if beyond < count:
        rest = math.exp((even - beyond) * one.step) * mine.discounted[count - beyond]
        total += float(its.above[-1] * mine.above[count - beyond])
        total -= float(its.discounted[-1] * rest)
    return total


def _either(one: float, other: float) -> float:
    """Return the probability of one of two independent events, or both."""
    return one + other - one * other

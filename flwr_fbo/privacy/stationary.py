"""Correlated noise where the horizon is unknown, or sums are of recent releases only.

A = B C as in `flwr_fbo.privacy.factorisation`, with factors that are both Toeplitz. So
all is said by three power series with a(z) = b(z) c(z): release k has the noise

    sigma sum_{j <= k} b_{k-j} z_j,

and no column of C is longer than the root of the sum of all c_i^2, however many
releases there will be. Here that sum is known in advance:

- ``OpenHorizon``: running sums, a(z) = 1 / (1 - z);
- ``SlidingWindow``: sums of the last W releases' records, a(z) = (1 - z^W) / (1 - z).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from functools import cached_property, lru_cache

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.validation import require_int
from flwr_fbo.privacy.factorisation import Factorisation

# How far noise perturbs the square root of 1 / (1 - z); see `OpenHorizon`.
_PERTURBATION = 0.4
# What that makes of 2^20 releases; the tests sum it up.
_OPEN_SENSITIVITY = 1.496863  # rounded up
_OPEN_VARIANCE = 19.611  # rounded up
# Gauss-Legendre nodes between two zeros of a Dirichlet kernel.
_NUM_NODES = 40


class Stationary(Factorisation):
    """A = B C with Toeplitz factors.

    Parameters
    ----------
    num_releases : int, optional
        n, from 1 to 2**20, which it is unless given. The noise does not depend on it.
    """

    max_releases = 2**20

    def __init__(self, num_releases: int | None = None) -> None:
        super().__init__(self.max_releases if num_releases is None else num_releases)

    @abstractmethod
    def series(self, size: int) -> tuple[FloatArray, FloatArray]:
        """Return the first coefficients of b and c, shapes (size,)."""

    def _first_of_b(self, k: int) -> FloatArray:
        # Of twice as many each time: the series are not made anew for every release.
        return self.series(1 << (k - 1).bit_length())[0][:k]

    def row(self, k: int) -> FloatArray:
        """Return row k of B, from 1 to n: the weights of z_1 to z_k, shape (k,)."""
        return self._first_of_b(k)[::-1]

    def variance(self, k: int) -> float:
        """Return the variance of release k at sigma = 1: it grows with k."""
        b = self._first_of_b(k)
        return float(b @ b)

    def variances(self) -> FloatArray:
        """Return the variance of each release at sigma = 1, shape (n,)."""
        return np.asarray(np.cumsum(np.square(self._first_of_b(self.num_releases))))

    def column_norms(self) -> FloatArray:
        """Return the norms of the columns of C, shape (n,)."""
        c = self.series(self.num_releases)[1]
        return np.asarray(np.sqrt(np.cumsum(np.square(c)))[::-1])


class OpenHorizon(Stationary):
    """Running sums of a number of releases that nobody knows in advance.

    With q(z) = 1 + s (log(1 / (1 - z)) / z - 1), s = 2/5,

        c(z) = ((1 - z) q(z))^(-1/2),    b(z) = (q(z) / (1 - z))^(1/2).

    The square root of 1 / (1 - z), whose columns have a squared norm of about log(n) /
    pi, is perturbed by a logarithm, so that c decays a little faster. The idea is that
    of Jacobsen & Fawaz, *Private Continual Counting of Unbounded Streams* (2025); only
    its abstract was at hand, and exponent and s are ours. The variance of release k,
    with sensitivity, is 2.24, 1.69, 1.58 and 1.52 times that of the square root for k
    releases, known in advance, at k = 1, 10, 100 and 1,000, and at most 1.50 times from
    k = 10,000 to 2**20 (``python -m benchmarks.unknown_horizon``). After 2**20 releases
    it ends: only so many are in the sensitivity.

    A release takes all draws before it, as with `Toeplitz`.
    """

    @property
    def sensitivity(self) -> float:
        """The norm of the first 2**20 coefficients of c."""
        return _OPEN_SENSITIVITY

    @property
    def largest_variance(self) -> float:
        """That of release 2**20."""
        return _OPEN_VARIANCE

    def series(self, size: int) -> tuple[FloatArray, FloatArray]:
        """Return the first coefficients of b and c, shapes (size,)."""
        return _open_series(size)


class SlidingWindow(Stationary):
    """Sums of the records between the last W releases: older ones are forgotten.

        b(z) = c(z) = ((1 - z^W) / (1 - z))^(1/2)

    By Parseval's identity the squares of all coefficients add up to the mean of
    abs(sin(W t / 2) / sin(t / 2)) over the circle, a Lebesgue constant: about
    4/pi^2 log W + 1. That bounds both the squared norm of every column, and the
    variance of every release, however many there are: neither grows.

    Parameters
    ----------
    window : int
        W >= 1.
    num_releases : int, optional
        See `Stationary`.
    """

    def __init__(self, window: int, num_releases: int | None = None) -> None:
        super().__init__(num_releases)
        require_int("window", window, 1, self.max_releases)
        self.window = window

    @cached_property
    def sensitivity(self) -> float:
        """The norm of all coefficients of c."""
        return math.sqrt(self.largest_variance)

    @cached_property
    def largest_variance(self) -> float:
        """The squares of all coefficients of b, added up."""
        nodes, weights = np.polynomial.legendre.leggauss(_NUM_NODES)
        width = 2 * math.pi / self.window
        # Between two zeros the sine keeps its sign, and the quotient is smooth. The
        # circle's halves are alike.
        starts = width * np.arange((self.window + 1) // 2)
        ends = np.minimum(starts + width, math.pi)
        half = (ends - starts)[:, None] / 2
        t = starts[:, None] + half * (1 + nodes)
        values = np.abs(np.sin(self.window * t / 2) / np.sin(t / 2))
        return float((half * values * weights).sum() / math.pi)

    def series(self, size: int) -> tuple[FloatArray, FloatArray]:
        """Return the first coefficients of b and c, shapes (size,): the same."""
        root = _window_series(self.window, size)
        return root, root


@lru_cache(maxsize=4)
def _open_series(size: int) -> tuple[FloatArray, FloatArray]:
    q = _PERTURBATION / np.arange(1.0, size + 1)
    q[0] = 1.0
    c = _inverse_root(np.diff(q, prepend=0.0))
    b = _product(c, q)
    for series in (b, c):
        series.setflags(write=False)
    return b, c


@lru_cache(maxsize=4)
def _window_series(window: int, size: int) -> FloatArray:
    i = np.arange(1, size)
    root = np.cumprod(np.concatenate([[1.0], (2 * i - 1) / (2 * i)]))
    # That of (1 - z^W)^(1/2) has every W-th coefficient.
    i = np.arange(1, (size - 1) // window + 1)
    sparse = np.zeros(size)
    sparse[::window] = np.cumprod(np.concatenate([[1.0], (2 * i - 3) / (2 * i)]))
    series = _product(root, sparse)
    series.setflags(write=False)
    return series


def _inverse_root(series: FloatArray) -> FloatArray:
    """Return the power series f(z)^(-1/2), of f(0) = 1: Newton's method."""
    root, size = np.ones(1), 1
    while size < len(series):
        size = min(2 * size, len(series))
        root = np.pad(root, (0, size - len(root)))
        square = _product(_product(root, root), series[:size])
        root = 1.5 * root - 0.5 * _product(root, square)
    return root


def _product(a: FloatArray, b: FloatArray) -> FloatArray:
    """Return as many coefficients of the product as the factors have."""
    from scipy.fft import irfft, next_fast_len, rfft

    size = next_fast_len(2 * len(a) - 1, real=True)
    return np.asarray(irfft(rfft(a, size) * rfft(b, size), size)[: len(a)])

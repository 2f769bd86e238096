"""Correlated noise for running sums: the factorisations A = B C.

A is the n x n lower triangle of ones: it turns what each of n releases adds into the n
running sums. With independent unit normals z_1, .., z_n, release k is

    (A x)_k + sigma (B z)_k,    that is, sum_{j <= k} (x_j + sigma B_kj z_j),

which is B (C x + sigma z): whoever knows B sees a Gaussian mechanism on C x, and the
sensitivity is the largest column norm of the strategy matrix C times that of one x_j
(Li et al., 2015). All factors here are lower triangular, so that the releases can be
made one after another, of records that depend on the releases before (Denisov et al.,
2022, theorem 2.1). Three of them are for a number of releases that is known:

- ``tree``: the binary tree (Chan, Shi & Song, 2011; Dwork et al., 2010);
- ``tree-honaker``: the same noisy tree, with all its finished nodes below a sum
  combined so that the variance is least (Honaker, 2015, estimation from below);
- ``toeplitz``: A^(1/2) (Fichtenberger, Henzinger & Upadhyay, 2023; Henzinger, Upadhyay
  & Upadhyay, 2023), its columns scaled to one norm.

`Stationary` is for one that is not, and for sums of recent releases only. `Blocks`
(``blocks``) is for either: C is the identity, so that the noise of each release's own
records is independent of all other noise.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property, lru_cache, partial
from typing import Literal

import numpy as np

from flwr_fbo._common.arrays import FloatArray, one_blas_thread
from flwr_fbo._common.validation import require, require_choice, require_int

Mechanism = Literal["toeplitz", "tree", "tree-honaker", "blocks"]

# Rows of the Toeplitz factorisation between two that are made anew.
_ANEW = 64
# How far noise perturbs the square root of 1 / (1 - z); see `Stationary`.
_PERTURBATION = 0.4
# What that makes of 2^20 releases; the tests sum it up.
_OPEN_SENSITIVITY = 1.496863  # rounded up
_OPEN_VARIANCE = 19.611  # rounded up
# Gauss-Legendre nodes between two zeros of a Dirichlet kernel.
_NUM_NODES = 40


class Factorisation(ABC):
    """A = B C for a number of releases that is fixed in advance.

    Parameters
    ----------
    num_releases : int
        n, from 1 to ``max_releases``.

    Attributes
    ----------
    max_releases : int
        2**17, or 2**24 for ``tree``.
    """

    # The variances of the Toeplitz factorisation take n^2 / 2 steps: seconds.
    max_releases = 2**17

    def __init__(self, num_releases: int) -> None:
        require_int("num_releases", num_releases, 1, self.max_releases)
        self.num_releases = num_releases

    @abstractmethod
    def row(self, k: int) -> FloatArray:
        """Return row k of B, from 1 to n: the weights of z_1 to z_k, shape (k,)."""

    @abstractmethod
    def column_norms(self) -> FloatArray:
        """Return the norms of the columns of C, shape (n,)."""

    @abstractmethod
    def variances(self) -> FloatArray:
        """Return the variance of the noise in each release at sigma = 1, shape (n,)."""

    @cached_property
    def sensitivity(self) -> float:
        """The largest column norm of C: what sigma is to be multiplied with."""
        return float(self.column_norms().max())

    @cached_property
    def largest_variance(self) -> float:
        """The largest of the variances."""
        return float(self.variances().max())

    def variance(self, k: int) -> float:
        """Return the variance of the noise in release k at sigma = 1."""
        return float(self.variances()[k - 1])

    def max_error(self) -> float:
        """Return the largest standard deviation at unit sensitivity over noise."""
        return self.sensitivity * math.sqrt(self.largest_variance)


class Tree(Factorisation):
    """The binary tree: a sum to k is one node for each bit of k that is 1.

    Node noise is drawn when the node is complete. Several nodes can end at k, and only
    the largest of them, with as many records as the lowest bit of k, is part of any
    sum: one draw per release. In C, row k is one on the records of that node, and a
    record is in at most 1 + floor(log2 n) nodes. A row of B takes O(k) time, its terms
    O(log k).

    With Honaker's estimate a node's own noisy sum, of variance 1, and the sum of its
    children's two estimates, of variance 2 v, are combined with weights inverse to
    these: v' = 2 v / (1 + 2 v), so that a node of 2^l records has variance
    2^l / (2^(l+1) - 1). Only the estimate of the largest node that ends at k is used
    later, and the fresh noise of all of them enters it as one sum of independent
    normals. So it is drawn as one normal of the same variance. ``column_norms`` are
    those of the whole noisy tree, as published; the releases are a function of it, so
    that they reveal at most as much (a little less).

    Parameters
    ----------
    num_releases : int
        n, from 1 to ``max_releases``.
    honaker : bool
        Whether a node is estimated from all nodes below it, or from itself alone.
    """

    max_releases = 2**24

    def __init__(self, num_releases: int, honaker: bool = False) -> None:
        if honaker:
            self.max_releases = Factorisation.max_releases
        self._honaker = honaker
        super().__init__(num_releases)

    @cached_property
    def sensitivity(self) -> float:
        """The norm of the first column of C: the first record is in most nodes."""
        # A node of each level l with 2^l <= n begins with it.
        return math.sqrt(self.num_releases.bit_length())

    def row(self, k: int) -> FloatArray:
        """Return row k of B, shape (k,)."""
        nodes = []
        for level in reversed(range(k.bit_length())):
            if not k >> level & 1:
                continue
            weights = np.ones(1)
            for variance in self._node_variances(level + 1)[1:]:
                # The node's own weight is v' = 2 v / (1 + 2 v), and 1 - v' its
                # children's: 1 and 0 without Honaker's estimate.
                weights = (1 - variance) * np.tile(weights, 2)
                # Two independent normals that no other release tells apart, as one.
                weights[-1] = math.hypot(weights[-1], variance)
            nodes.append(weights)
        return np.concatenate(nodes)

    def _node_variances(self, num_levels: int) -> FloatArray:
        sizes = 2.0 ** np.arange(num_levels)
        return np.asarray(sizes / (2 * sizes - 1) if self._honaker else sizes**0)

    def variances(self) -> FloatArray:
        """Return the variance of each release at sigma = 1, shape (n,)."""
        levels = np.arange(self.num_releases.bit_length())
        bits = np.arange(1, self.num_releases + 1)[:, None] >> levels & 1
        return np.asarray(bits @ self._node_variances(len(levels)))

    def column_norms(self) -> FloatArray:
        """Return the norms of the columns of C, shape (n,)."""
        counts = np.zeros(self.num_releases)
        for level in range(self.num_releases.bit_length()):
            # Number, from 1, of the node of this level that each record is in.
            nodes = np.arange(self.num_releases) // 2**level + 1
            # A plain right child is in no sum, and so has no noise.
            noised = self._honaker | (nodes % 2 == 1)
            counts += noised & (nodes * 2**level <= self.num_releases)
        return np.sqrt(counts)


class Toeplitz(Factorisation):
    """The square root of A, its columns normalised.

    A^(1/2) =: R is the Toeplitz matrix of the coefficients r of (1 - t)^(-1/2), and its
    inverse that of the coefficients d of (1 - t)^(1/2): neither is ever inverted, or
    even stored. What is normalised is the strategy matrix, C = R D^-1 with D the
    diagonal of R's column norms a_1 > .. > a_n: so every record has the same
    sensitivity, 1, where R would protect the last ones more than promised. Then
    B = A D R^-1 is not a Toeplitz matrix, but its rows are convolutions,

        B_kj = sum_{i=j}^k a_i d_{i-j},

    of O(k log k) time by Fourier transform, and each row is the one before plus
    a_k d_{k-j}. So rows that are asked for in turn take O(k) time but for one in 64,
    which is made anew: rounding errors do not add up, and no row depends on what was
    asked before. The noise of a release takes all draws before it, O(n) matrices of
    memory, and O(k) operations an entry.
    """

    def __init__(self, num_releases: int) -> None:
        super().__init__(num_releases)
        self._last = 0, np.empty(0)  # a row that was made, after its k

    def row(self, k: int) -> FloatArray:
        """Return row k of B, shape (k,)."""
        done, before = self._last
        begin = k - k % _ANEW
        if not begin <= done <= k:
            done, before = begin, np.empty(0)
            if begin > 0:
                from scipy.fft import next_fast_len

                size = next_fast_len(2 * begin - 1, real=True)  # others: ten times
                norms = np.fft.rfft(self._root_norms[begin - 1 :: -1], size)
                inverse = np.fft.rfft(self._reversed_inverse[: -begin - 1 : -1], size)
                before = np.fft.irfft(norms * inverse, size)[begin - 1 :: -1]
        row = np.concatenate([before, np.zeros(k - done)])
        for i in range(done + 1, k + 1):
            self.extend(row, i)
        row.setflags(write=False)
        self._last = k, row
        return row

    def extend(self, row: FloatArray, k: int) -> None:
        """Make row k of row k - 1, in place; zeros are to follow its entries."""
        row[:k] += self._root_norms[k - 1] * self._reversed_inverse[-k:]

    @cached_property
    def _reversed_inverse(self) -> FloatArray:
        """The coefficients d of (1 - t)^(1/2), shape (n,), from the last to d_0."""
        return np.ascontiguousarray(_binomials(self.num_releases, 3)[::-1])

    @cached_property
    def _root_norms(self) -> FloatArray:
        """The norms of the columns of R, shape (n,), from a_1 to a_n: reversed sums."""
        root = _binomials(self.num_releases, 1)
        return np.asarray(np.sqrt(np.cumsum(root**2))[::-1])

    def column_norms(self) -> FloatArray:
        """Return the norms of the columns of C, shape (n,)."""
        return np.ones(self.num_releases)

    def variances(self) -> FloatArray:
        """Return the variance of each release at sigma = 1, shape (n,)."""
        return _toeplitz_variances(self.num_releases)


@lru_cache(maxsize=16)
@one_blas_thread  # long rows would start more, for five times the time
def _toeplitz_variances(n: int) -> FloatArray:
    """Return the squared norms of the rows of B, each row made from the one before."""
    toeplitz = Toeplitz(n)
    variances, row = np.empty(n), np.zeros(n)
    for k in range(1, n + 1):
        toeplitz.extend(row, k)
        variances[k - 1] = row[:k] @ row[:k]
    variances.setflags(write=False)
    return variances


class Stationary(Factorisation):
    """A = B C with Toeplitz factors, for a number of releases that nobody knows.

    All is said by three power series with a(z) = b(z) c(z): release k has the noise

        sigma sum_{j <= k} b_{k-j} z_j,

    and no column of C is longer than the root of the sum of all c_i^2, however many
    releases there will be. Here that sum is known in advance. A release takes all draws
    before it, as with `Toeplitz`.

    *Running sums*, a(z) = 1 / (1 - z). With q(z) = 1 + s (log(1 / (1 - z)) / z - 1),
    s = 2/5,

        c(z) = ((1 - z) q(z))^(-1/2),    b(z) = (q(z) / (1 - z))^(1/2).

    The square root of 1 / (1 - z), whose columns have a squared norm of about log(n) /
    pi, is perturbed by a logarithm, so that c decays a little faster. The idea is that
    of Jacobsen & Fawaz, *Private Continual Counting of Unbounded Streams* (2025); only
    its abstract was at hand, and exponent and s are ours. The variance of release k,
    with sensitivity, is 2.24, 1.69, 1.58 and 1.52 times that of the square root for k
    releases, known in advance, at k = 1, 10, 100 and 1,000, and at most 1.50 times from
    k = 10,000 to 2**20 (``python -m benchmarks.unknown_horizon``). After 2**20 releases
    it ends: only so many are in the sensitivity.

    *Sliding windows*: sums of the records between the last W releases; older ones are
    forgotten, a(z) = (1 - z^W) / (1 - z).

        b(z) = c(z) = ((1 - z^W) / (1 - z))^(1/2)

    By Parseval's identity the squares of all coefficients add up to the mean of
    abs(sin(W t / 2) / sin(t / 2)) over the circle, a Lebesgue constant: about
    4/pi^2 log W + 1. That bounds both the squared norm of every column, and the
    variance of every release, however many there are: neither grows.

    Parameters
    ----------
    window : int, optional
        W >= 1. None for running sums.
    num_releases : int, optional
        n, from 1 to 2**20, which it is unless given. The noise does not depend on it.
    """

    max_releases = 2**20

    def __init__(
        self, window: int | None = None, num_releases: int | None = None
    ) -> None:
        super().__init__(self.max_releases if num_releases is None else num_releases)
        if window is not None:
            require_int("window", window, 1, self.max_releases)
        self.window = window

    @cached_property
    def sensitivity(self) -> float:
        """The norm of the coefficients of c: all, or the first 2**20 without window."""
        if self.window is None:
            return _OPEN_SENSITIVITY
        # c is b: the same sum bounds columns and variances.
        return math.sqrt(self.largest_variance)

    @cached_property
    def largest_variance(self) -> float:
        """The squares of the coefficients of b, added up; as `sensitivity`."""
        if self.window is None:
            return _OPEN_VARIANCE
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

    def _first_of_b(self, k: int) -> FloatArray:
        # Twice as many each time: the series are not made anew for every release.
        return stationary_series(self.window, 1 << (k - 1).bit_length())[0][:k]

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
        _, c = stationary_series(self.window, self.num_releases)
        return np.asarray(np.sqrt(np.cumsum(np.square(c)))[::-1])


class Blocks(Factorisation):
    """A = B C with C the identity: each release's own records have noise of their own.

    B = A: the noise of a running sum is that of all of its blocks, and its variance is
    their number k, or W with a sliding window. A record is in one block, so that the
    sensitivity is 1, however many releases there will be.

    The running sum of many releases has more noise than with the others: at equal
    privacy the deviation of ``toeplitz`` grows with log(k) / pi, and of this one with
    the root of k. Choose it for two reasons. *Who adds the noise may change* from
    release to release, as in secure sums where sites drop out: correlated draws would
    then no longer be the same draws. *Releases at doubling times*: whoever weighs the
    blocks by their noise has as much information, since the last block is half of all
    records.

    Parameters
    ----------
    num_releases : int, optional
        n, from 1 to 2**20, which it is unless given. The noise does not depend on it.
    window : int, optional
        W >= 1, for sums of the last W releases' records. None for running sums.
    """

    max_releases = 2**20

    def __init__(
        self, num_releases: int | None = None, window: int | None = None
    ) -> None:
        super().__init__(self.max_releases if num_releases is None else num_releases)
        if window is not None:
            require_int("window", window, 1, self.max_releases)
        self.window = window

    def row(self, k: int) -> FloatArray:
        """Return row k of B, from 1 to n: one for each block in the sum, shape (k,)."""
        row = np.ones(k)
        if self.window is not None:
            row[: -self.window] = 0.0
        return row

    def variance(self, k: int) -> float:
        """Return the number of blocks in release k."""
        return float(k if self.window is None else min(k, self.window))

    def variances(self) -> FloatArray:
        """Return the number of blocks in each release, shape (n,)."""
        counts = np.arange(1.0, self.num_releases + 1)
        return counts if self.window is None else np.minimum(counts, self.window)

    def column_norms(self) -> FloatArray:
        """Return the norms of the columns of C, shape (n,)."""
        return np.ones(self.num_releases)

    @cached_property
    def largest_variance(self) -> float:
        """The number of blocks in the last release."""
        return self.variance(self.num_releases)


@lru_cache(maxsize=8)
def stationary_series(window: int | None, size: int) -> tuple[FloatArray, FloatArray]:
    """Return the first coefficients of b and c of `Stationary`, shapes (size,)."""
    if window is None:
        q = _PERTURBATION / np.arange(1.0, size + 1)
        q[0] = 1.0
        # c is f^(-1/2) with f(0) = 1, by Newton's method: each step doubles the number
        # of right coefficients.
        f, c = np.diff(q, prepend=0.0), np.ones(1)
        while len(c) < size:
            c = np.pad(c, (0, min(len(c), size - len(c))))
            square = _product(_product(c, c), f[: len(c)])
            c = 1.5 * c - 0.5 * _product(c, square)
        b = _product(c, q)
    else:
        # The series of (1 - z^W)^(1/2) has every W-th coefficient only.
        sparse = np.zeros(size)
        sparse[::window] = _binomials((size - 1) // window + 1, 3)
        b = c = _product(_binomials(size, 1), sparse)
    # Whoever asks gets the same arrays: nobody may change them.
    b.setflags(write=False)
    c.setflags(write=False)
    return b, c


def _binomials(size: int, odd: int) -> FloatArray:
    """Return the first coefficients of (1 - t)^(-1/2), of (1 - t)^(1/2) with 3."""
    i = np.arange(1, size)
    return np.cumprod(np.concatenate([[1.0], (2 * i - odd) / (2 * i)]))


def _product(a: FloatArray, b: FloatArray) -> FloatArray:
    """Return as many coefficients of the product as the factors have."""
    from scipy.fft import irfft, next_fast_len, rfft

    size = next_fast_len(2 * len(a) - 1, real=True)
    return np.asarray(irfft(rfft(a, size) * rfft(b, size), size)[: len(a)])


_OF_KNOWN: dict[Mechanism, Callable[[int], Factorisation]] = {
    "toeplitz": Toeplitz,
    "tree": Tree,
    "tree-honaker": partial(Tree, honaker=True),
}


def factorisation(
    mechanism: Mechanism, num_releases: int | None, sliding_window: int | None = None
) -> Factorisation:
    """Return the factorisation of a mechanism's name; see `ContinualSettings`.

    Raises
    ------
    ValueError
        If the name is unknown, a number is not allowed, or they do not go together.
    """
    require_choice("mechanism", mechanism, Mechanism)
    n, window = num_releases, sliding_window
    if window is not None:
        most = Stationary.max_releases if n is None else n - 1
        require_int("sliding_window", window, 1, most)
    if mechanism == "blocks":
        return Blocks(n, window)
    known = None if n is None else _OF_KNOWN[mechanism](n)
    if n is None or window is not None:
        expected = "'toeplitz' or 'blocks', with num_releases=None or a sliding_window"
        require(mechanism == "toeplitz", "mechanism", mechanism, expected)
        return Stationary(window, n)
    assert known is not None
    return known

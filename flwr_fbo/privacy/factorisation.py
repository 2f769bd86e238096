"""Correlated noise for running sums: the factorisations A = B C.

A is the n x n lower triangle of ones: it turns what each of n releases adds into the n
running sums. With independent unit normals z_1, .., z_n, release k is

    (A x)_k + sigma (B z)_k,    that is, sum_{j <= k} (x_j + sigma B_kj z_j),

which is B (C x + sigma z): whoever knows B sees a Gaussian mechanism on C x, and the
sensitivity is the largest column norm of the strategy matrix C times that of one x_j
(Li et al., 2015). All factors here are lower triangular, so that the releases can be
made one after another, of records that depend on the releases before (Denisov et al.,
2022, theorem 2.1). Three of them:

- ``tree``: the binary tree (Chan, Shi & Song, 2011; Dwork et al., 2010);
- ``tree-honaker``: the same noisy tree, with all its finished nodes below a sum
  combined so that the variance is least (Honaker, 2015, estimation from below);
- ``toeplitz``: A^(1/2) (Fichtenberger, Henzinger & Upadhyay, 2023; Henzinger, Upadhyay
  & Upadhyay, 2023), its columns scaled to one norm.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import cached_property, lru_cache
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.validation import require_choice, require_int

Mechanism = Literal["toeplitz", "tree", "tree-honaker"]

# Rows of the Toeplitz factorisation between two that are made anew.
_ANEW = 64


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
    max_releases: ClassVar[int] = 2**17

    def __init__(self, num_releases: int) -> None:
        require_int("num_releases", num_releases, 1, self.max_releases)
        self.num_releases = num_releases

    @abstractmethod
    def row(self, k: int) -> FloatArray:
        """Return row k of B, from 1 to n: the weights of z_1 to z_k, shape (k,)."""

    def terms(self, k: int) -> dict[int, float]:
        """Return the weights of row k that are not zero, by their draw from 1 to k."""
        row = self.row(k)
        return {int(j) + 1: float(row[j]) for j in np.flatnonzero(row)}

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

    Node noise is drawn when the node is complete. Of the nodes that end at k only the
    largest, of as many records as the lowest bit of k, is part of any sum: one draw a
    release. In C, row k is one on the records of that node, and a record is in at most
    1 + floor(log2 n) nodes. A row of B takes O(k) time, its terms O(log k).
    """

    max_releases: ClassVar[int] = 2**24

    @cached_property
    def sensitivity(self) -> float:
        """The norm of the first column of C: the first record is in most nodes."""
        return math.sqrt(self.num_releases.bit_length())

    def terms(self, k: int) -> dict[int, float]:
        """Return the weights of row k that are not zero, by their draw from 1 to k."""
        ends = {k >> level << level for level in range(k.bit_length())}
        return dict.fromkeys(sorted(ends), 1.0)

    def row(self, k: int) -> FloatArray:
        """Return row k of B, shape (k,)."""
        levels = [level for level in range(k.bit_length()) if k >> level & 1]
        return np.concatenate([self._node(level) for level in reversed(levels)])

    def _node(self, level: int) -> FloatArray:
        """Return the weights of the draws within a node, shape (2**level,)."""
        weights = np.zeros(2**level)
        weights[-1] = 1.0
        return weights

    def _node_variances(self, num_levels: int) -> FloatArray:
        return np.ones(num_levels)

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
            counts += self._noised(nodes) & (nodes * 2**level <= self.num_releases)
        return np.sqrt(counts)

    def _noised(self, nodes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which nodes of a level have noise: right children are in no sum."""
        return np.asarray(nodes % 2 == 1)


class HonakerTree(Tree):
    """The binary tree with Honaker's estimate of every node from all nodes below it.

    A node's own noisy sum, of variance 1, and the sum of its children's two estimates,
    of variance 2 v, are combined with weights inverse to these: v' = 2 v / (1 + 2 v),
    so that a node of 2^l records has variance 2^l / (2^(l+1) - 1).

    Of the nodes that end at k only the largest one's estimate is used later, and the
    fresh noise of all of them enters it as one sum of independent normals. So it is
    drawn as one normal of the same variance. ``column_norms`` are those of the whole
    noisy tree, as published; the releases are a function of it, so that what they
    reveal is no more (a little less).
    """

    max_releases: ClassVar[int] = Factorisation.max_releases
    terms = Factorisation.terms

    def _node(self, level: int) -> FloatArray:
        weights = np.ones(1)
        variances = self._node_variances(level + 1)
        for variance in variances[1:]:
            # The node's own weight is v' = 2 v / (1 + 2 v), and 1 - v' its children's.
            weights = (1 - variance) * np.tile(weights, 2)
            weights[-1] = math.hypot(weights[-1], variance)
        return weights

    def _node_variances(self, num_levels: int) -> FloatArray:
        sizes = 2.0 ** np.arange(num_levels)
        return np.asarray(sizes / (2 * sizes - 1))

    def _noised(self, nodes: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.ones(len(nodes), dtype=np.bool_)


class Toeplitz(Factorisation):
    """The square root of A, its columns normalised.

    A^(1/2) =: R is the Toeplitz matrix of the coefficients r of (1 - t)^(-1/2), and its
    inverse that of the coefficients d of (1 - t)^(1/2): neither is ever inverted, or
    even stored. What is normalised is the strategy matrix, C = R D^-1 with D the
    diagonal of R's column norms a_1 > .. > a_n: so every record has the same
    sensitivity, 1, where R would protect the last ones more than promised. Then
    B = A D R^-1 is no Toeplitz matrix, but its rows are convolutions,

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
            done, before = begin, self._convolved(begin)
        row = np.concatenate([before, np.zeros(k - done)])
        for i in range(done + 1, k + 1):
            self.extend(row, i)
        row.setflags(write=False)
        self._last = k, row
        return row

    def extend(self, row: FloatArray, k: int) -> None:
        """Make row k of row k - 1, in place; zeros are to follow its entries."""
        row[:k] += self._root_norms[k - 1] * self._reversed_inverse[-k:]

    def _convolved(self, k: int) -> FloatArray:
        """Return row k, from 0 on, by Fourier transform."""
        if k == 0:
            return np.empty(0)
        from scipy.fft import next_fast_len

        size = next_fast_len(2 * k - 1, real=True)  # others take ten times as long
        norms = np.fft.rfft(self._root_norms[k - 1 :: -1], size)
        inverse = np.fft.rfft(self._reversed_inverse[: -k - 1 : -1], size)
        return np.asarray(np.fft.irfft(norms * inverse, size)[k - 1 :: -1])

    @cached_property
    def _reversed_inverse(self) -> FloatArray:
        """The coefficients d of (1 - t)^(1/2), shape (n,), from the last to d_0."""
        i = np.arange(1, self.num_releases)
        ratios = np.concatenate([[1.0], (2 * i - 3) / (2 * i)])
        return np.ascontiguousarray(np.cumprod(ratios)[::-1])

    @cached_property
    def _root_norms(self) -> FloatArray:
        """The norms of the columns of R, shape (n,), from a_1 to a_n: reversed sums."""
        i = np.arange(1, self.num_releases)
        root = np.cumprod(np.concatenate([[1.0], (2 * i - 1) / (2 * i)]))
        return np.asarray(np.sqrt(np.cumsum(root**2))[::-1])

    def column_norms(self) -> FloatArray:
        """Return the norms of the columns of C, shape (n,)."""
        return np.ones(self.num_releases)

    def variances(self) -> FloatArray:
        """Return the variance of each release at sigma = 1, shape (n,)."""
        return _toeplitz_variances(self.num_releases)


@lru_cache(maxsize=16)
def _toeplitz_variances(n: int) -> FloatArray:
    """Return the squared norms of the rows of B, each row made from the one before."""
    toeplitz = Toeplitz(n)
    variances, row = np.empty(n), np.zeros(n)
    for k in range(1, n + 1):
        toeplitz.extend(row, k)
        variances[k - 1] = row[:k] @ row[:k]
    variances.setflags(write=False)
    return variances


_FACTORISATIONS: dict[Mechanism, type[Factorisation]] = {
    "toeplitz": Toeplitz,
    "tree": Tree,
    "tree-honaker": HonakerTree,
}


def factorisation(mechanism: Mechanism, num_releases: int) -> Factorisation:
    """Return the factorisation of a mechanism's name.

    Raises
    ------
    ValueError
        If the name is unknown, or ``num_releases`` is not from 1 to its
        ``max_releases``.
    """
    require_choice("mechanism", mechanism, Mechanism)
    return _FACTORISATIONS[mechanism](num_releases)

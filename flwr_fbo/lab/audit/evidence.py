"""Evidence that an adversary sees in studies, and the statistics that it compares.

A study is K releases of F numbers each. The adversary knows all but the noise, the
sampling mask, and in which of two worlds the study took place: with the canary's data,
or without. So it knows by how much the canary shifts each release.

Five statistics are compared. The first is the logarithm of the likelihood ratio of the
whole study under the mechanism as promised: no test is better than one of it, if the
mechanism is as promised (Neyman and Pearson). The others see faults that the promise
rules out:

- ``fitted Gaussians``: the likelihood ratio of two Gaussians, fitted to the projections
  of each release on the shifts of all rounds. Noise that is reused, or correlated
  between rounds, makes some combinations of releases more precise than promised.
- ``fitted rounds``: the likelihood ratio of histograms, fitted to the projection of
  each release on its own shift. It sees a single round without noise, or with noise of
  another law.
- ``low bits``: the likelihood ratio of the low bits of all floats and of their parities
  (over a release, over the rounds, over both), as if they were independent. It sees a
  bit that tells whether the canary is present.
- ``low bit as mask``: the likelihood ratio of an adversary who reads in one low bit, or
  one parity, whether the canary was sampled.

What is fitted is fitted to draws that play no further part: see `bound_epsilon`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray

BitArray = NDArray[np.uint8]

STATISTICS = (
    "likelihood ratio",
    "fitted Gaussians",
    "fitted rounds",
    "low bits",
    "low bit as mask",
)
# How much longer than the clip allows a canary's data are.
LOUDNESS = 10.0
# In standard deviations. Further away, or undefined, is all the same.
_FURTHEST = 1e6
# Added to fitted variances: a noise of 1e-3 deviations counts as none.
_LEAST_VARIANCE = 1e-6
_NUM_BINS = 32
# Added to counts, which keeps ratios of small ones near 1.
_PSEUDO_COUNT = 2.0
_NUM_BITS = 8


@dataclass(frozen=True)
class Evidence:
    """Evidence of R studies in one world, as an adversary keeps it.

    Attributes
    ----------
    log_ratio : ndarray of shape (R,)
        Log ratio of the likelihoods with and without the canary, under the promised
        mechanism.
    projections : ndarray of shape (R, K, K)
        Entry (k, j) is release k, less what the absent world releases without noise,
        projected on the direction in which the canary shifts release j. In standard
        deviations of the promised noise of release k.
    shifts : ndarray of shape (R, K)
        By how much the canary shifts each release, in the same units.
    low_bits : ndarray of shape (R, K, F)
        The lowest byte of each float.
    """

    log_ratio: FloatArray
    projections: FloatArray
    shifts: FloatArray
    low_bits: BitArray

    @classmethod
    def of(
        cls,
        released: FloatArray,
        noise: FloatArray,
        shifts: FloatArray,
        log_ratio: FloatArray | None = None,
        sampling_probability: float = 1.0,
    ) -> Evidence:
        """Return the evidence of R studies.

        Parameters
        ----------
        released : ndarray of shape (R, K, F)
            Releases of R studies: K each, of F numbers.
        noise : ndarray of shape (R, K, F)
            Releases, less what the absent world releases without noise; in standard
            deviations of the promised noise.
        shifts : ndarray of shape (R, K, F)
            By how much the canary, if sampled, shifts each release, in the same units.
        log_ratio : ndarray of shape (R,), optional
            Log ratio of the likelihoods; that of independent Gaussian releases unless
            given.
        sampling_probability : float
            q, of each release on its own. Of no effect where ``log_ratio`` is given.
        """
        # Not a number, though it may give everything away.
        noise = np.nan_to_num(noise, nan=_FURTHEST, posinf=_FURTHEST, neginf=-_FURTHEST)
        lengths = np.linalg.norm(shifts, axis=-1)
        directions = shifts / np.where(lengths == 0, 1.0, lengths)[..., None]
        projections = noise @ np.swapaxes(directions, -1, -2)
        projections = projections.clip(-_FURTHEST, _FURTHEST)
        if log_ratio is None:
            ratios = _gaussian_log_ratios(projections, lengths)
            log_ratio = _mixed(ratios, sampling_probability).sum(axis=1)
        low_bits = np.ascontiguousarray(released).view(np.uint64).astype(np.uint8)
        return cls(log_ratio, projections, lengths, low_bits)

    def __len__(self) -> int:
        return len(self.log_ratio)

    def __getitem__(self, studies: slice) -> Evidence:
        parts = (getattr(self, field.name)[studies] for field in fields(self))
        return Evidence(*parts)

    @property
    def log_ratios(self) -> FloatArray:
        """Log ratios of the releases if the canary is surely sampled, shape (R, K)."""
        return _gaussian_log_ratios(self.projections, self.shifts)

    @property
    def own_projections(self) -> FloatArray:
        """Projection of each release on its own shift, shape (R, K)."""
        return np.diagonal(self.projections, axis1=1, axis2=2)


def alternating(num_releases: int) -> FloatArray:
    """Return the signs of a canary's data, round by round: + - - + and so on.

    Some rounds agree and some differ, whatever their distance.
    """
    return np.resize([1.0, -1.0, -1.0, 1.0], num_releases)


def joined(parts: Sequence[Evidence]) -> Evidence:
    """Return the evidence of all studies together."""
    columns = ([getattr(p, field.name) for p in parts] for field in fields(Evidence))
    return Evidence(*(np.concatenate(column) for column in columns))


class Statistics:
    """The statistics, fitted to studies of both worlds.

    Parameters
    ----------
    present, absent : Evidence
        Evidence of studies with the canary and without; not to be used again.
    """

    def __init__(self, present: Evidence, absent: Evidence) -> None:
        self._gaussians = _Gaussian(present), _Gaussian(absent)
        self._rounds = _Histograms(present, absent)
        self._bits = _LowBits(present, absent)
        self._mask = _MaskBit(present)

    def __call__(self, studies: Evidence) -> FloatArray:
        """Return the `STATISTICS` of R studies, shape (R, 5)."""
        with_canary, without = self._gaussians
        columns = (
            studies.log_ratio,
            with_canary.log_density(studies) - without.log_density(studies),
            self._rounds.log_ratio(studies),
            self._bits.log_ratio(studies),
            self._mask.log_ratio(studies),
        )
        return np.column_stack(columns)


def _gaussian_log_ratios(projections: FloatArray, shifts: FloatArray) -> FloatArray:
    on_own_shift = np.diagonal(projections, axis1=1, axis2=2)
    return np.asarray(shifts * on_own_shift - np.square(shifts) / 2)


def _mixed(log_ratios: FloatArray, q: float) -> FloatArray:
    """Return log(1 - q + q exp(log_ratio)): the canary is sampled with q."""
    if q == 1:
        return log_ratios
    return np.asarray(np.logaddexp(np.log1p(-q), np.log(q) + log_ratios))


def _log_ratio(present: FloatArray, absent: FloatArray) -> FloatArray:
    """Return the logarithms of the ratios of counts."""
    return np.log((present + _PSEUDO_COUNT) / (absent + _PSEUDO_COUNT))


class _Gaussian:
    """The law of all projections of a study, fitted to those of one world."""

    def __init__(self, studies: Evidence) -> None:
        rows = studies.projections.reshape(len(studies), -1)
        self._mean = rows.mean(axis=0)
        variances = np.cov(rows, rowvar=False).reshape(2 * rows.shape[1:])
        eigenvalues, self._basis = np.linalg.eigh(variances)
        self._variances = np.maximum(eigenvalues, 0.0) + _LEAST_VARIANCE

    def log_density(self, studies: Evidence) -> FloatArray:
        rows = studies.projections.reshape(len(studies), -1) - self._mean
        squares = np.square(rows @ self._basis) / self._variances
        return np.asarray(-(squares + np.log(self._variances)).sum(axis=1) / 2)


class _Histograms:
    """The law of each release's projection on its own shift, in either world."""

    def __init__(self, present: Evidence, absent: Evidence) -> None:
        pooled = np.concatenate([present.own_projections, absent.own_projections])
        ranks = np.arange(1, _NUM_BINS) / _NUM_BINS
        self._edges = np.quantile(pooled, ranks, axis=0).T
        self._log_ratios = _log_ratio(self._counts(present), self._counts(absent))

    def _bins(self, studies: Evidence) -> list[NDArray[np.intp]]:
        columns = zip(self._edges, studies.own_projections.T, strict=True)
        return [np.searchsorted(edges, column) for edges, column in columns]

    def _counts(self, studies: Evidence) -> FloatArray:
        columns = self._bins(studies)
        return np.array([np.bincount(c, minlength=_NUM_BINS) for c in columns], float)

    def log_ratio(self, studies: Evidence) -> FloatArray:
        columns = zip(self._log_ratios, self._bins(studies), strict=True)
        return np.asarray(np.sum([ratios[bins] for ratios, bins in columns], axis=0))


class _LowBits:
    """Frequency of 1 in each low bit, and in each parity, in either world."""

    def __init__(self, present: Evidence, absent: Evidence) -> None:
        self._weights = []
        self._constant = 0.0
        for with_it, without in zip(_planes(present), _planes(absent), strict=True):
            ones = with_it.sum(axis=0, dtype=float)
            of_absent = without.sum(axis=0, dtype=float)
            if_one = _log_ratio(ones, of_absent)
            if_zero = _log_ratio(len(with_it) - ones, len(without) - of_absent)
            self._weights.append(if_one - if_zero)
            self._constant += float(if_zero.sum())

    def log_ratio(self, studies: Evidence) -> FloatArray:
        total = np.full(len(studies), self._constant)
        for weights, plane in zip(self._weights, _planes(studies), strict=True):
            total += plane @ weights
        return total


class _MaskBit:
    """The low bit, or parity, that best tells whether the canary is sampled."""

    def __init__(self, present: Evidence) -> None:
        # Where the canary is sampled its release lies further along its shift.
        signal = present.log_ratios
        signal = (signal - signal.mean(axis=0)).ravel()
        correlations = []
        for bit in range(_NUM_BITS):
            plane = _bits(present.low_bits, bit)
            flat = plane.reshape(-1, plane.shape[-1])
            correlations.append(signal @ (flat - flat.mean(axis=0)))
        found = np.array(correlations)
        largest = np.unravel_index(np.abs(found).argmax(), found.shape)
        self._bit, self._position = map(int, largest)
        self._means_sampled = int(found[largest] >= 0)

    def log_ratio(self, studies: Evidence) -> FloatArray:
        read = _bits(studies.low_bits, self._bit)[:, :, self._position]
        sampled = read == self._means_sampled
        return np.asarray(np.where(sampled, studies.log_ratios, 0.0).sum(axis=1))


def _bits(low_bits: BitArray, bit: int) -> BitArray:
    """Return one bit of each float, and its parity over a release: (R, K, F + 1)."""
    plane = low_bits >> bit & 1
    parity = np.bitwise_xor.reduce(plane, axis=2, keepdims=True)
    return np.concatenate([plane, parity], axis=2)


def _planes(studies: Evidence) -> list[BitArray]:
    """Return, for each bit, all that `_LowBits` looks at: (R, (K + 1) (F + 1))."""
    planes = []
    for bit in range(_NUM_BITS):
        plane = _bits(studies.low_bits, bit)
        over_rounds = np.bitwise_xor.reduce(plane, axis=1, keepdims=True)
        both = np.concatenate([plane, over_rounds], axis=1)
        planes.append(both.reshape(len(both), -1))
    return planes

"""Boxes that tile the unit cube."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.validation import require_int


@dataclass(frozen=True, eq=False)
class SubRegions:
    """Boxes that tile the unit cube (DP-FTS-DE, section 3.2).

    Attributes
    ----------
    edges : tuple of D ndarrays
        Where each axis is cut, from 0 to 1, both included.
    lower, upper : ndarray of shape (P, D)
        The corners of each box. A point on a border belongs to the upper box.
    """

    edges: tuple[FloatArray, ...]
    lower: FloatArray
    upper: FloatArray

    @classmethod
    def from_edges(cls, edges: Sequence[FloatArray]) -> SubRegions:
        """Return every box between neighbouring edges, the last axis fastest."""
        lower = np.array(list(product(*(e[:-1] for e in edges))))
        upper = np.array(list(product(*(e[1:] for e in edges))))
        return cls(tuple(edges), lower, upper)

    def __len__(self) -> int:
        return len(self.lower)

    def index(self, x: FloatArray) -> NDArray[np.intp]:
        """Return the box of each point; ``x`` has shape (n, D), the result (n,)."""
        cells = [
            np.searchsorted(edges[1:-1], x[:, d], side="right")
            for d, edges in enumerate(self.edges)
        ]
        return np.ravel_multi_index(tuple(cells), [len(e) - 1 for e in self.edges])


def prime_factors(number: int) -> list[int]:
    """Return the prime factors of ``number``, largest first."""
    require_int("num_sub_regions", number, 1)
    factors, divisor = [], 2
    while number > 1:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor = divisor + 1 if divisor * divisor <= number else max(number, 2)
    return factors[::-1]

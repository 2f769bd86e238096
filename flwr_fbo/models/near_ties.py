"""Decisions that do not depend on the last bits of the values compared.

Another processor or another BLAS rounds otherwise, so the same formula gives values
that differ in their last digits. Where two candidates are all but equal (two ascents
that end on the same maximum, two actions of the same length), a plain argmax would let
these digits decide. Here values within a stated precision of the best count as equal,
and of equal values the first wins.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray

# Relative to the largest value in size: far above rounding errors, which are 1e-16
# times a condition number, and far below any difference that matters to a search.
PRECISION = 1e-8


def first_best(values: FloatArray) -> NDArray[np.intp]:
    """Return the index of the first value that is the largest but for `PRECISION`.

    Of values of shape (..., K), K >= 1: shape (...). NaN is never chosen while there is
    another value.
    """
    known, sizes = values, np.abs(values)
    if not np.isfinite(sizes).all():
        known = np.where(np.isnan(values), -np.inf, values)
        sizes = np.where(np.isfinite(known), sizes, 0.0)
    best = np.max(known, axis=-1, keepdims=True)
    largest = np.max(sizes, axis=-1, keepdims=True)
    return np.asarray(np.argmax(known >= best - PRECISION * largest, axis=-1))

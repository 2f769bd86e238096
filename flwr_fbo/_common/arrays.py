"""Arrays whose numbers do not depend on the machine: their type, and two rules.

*One BLAS thread around small linear algebra.* The matrices here have at most a few
hundred rows: more threads cost time, and make the last bits of a result depend on how
many there were.

*Decisions that do not depend on the last bits of the values compared.* Another
processor or another BLAS rounds otherwise, so the same formula gives values that differ
in their last digits. Where two candidates are all but equal (two ascents that end on
the same maximum, two actions of the same length), a plain argmax would let these digits
decide. Here values within a stated precision of the best count as equal, and of equal
values the first wins.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

FloatArray = NDArray[np.float64]
P = ParamSpec("P")
R = TypeVar("R")

# Relative to the largest value in size: far above rounding errors, which are 1e-16
# times a condition number, and far below any difference that matters to a search.
PRECISION = 1e-8


def first_best(values: FloatArray) -> NDArray[np.intp]:
    """Return the index of the first value that is the largest but for `PRECISION`.

    Values have shape (..., K) with K >= 1, indices shape (...). NaN is never chosen
    while there is another value.
    """
    return np.asarray(np.argmax(all_best(values), axis=-1))


def all_best(values: FloatArray) -> NDArray[np.bool_]:
    """Return which values, shape (..., K), are the largest but for `PRECISION`."""
    known, sizes = values, np.abs(values)
    if not np.isfinite(sizes).all():
        known = np.where(np.isnan(values), -np.inf, values)
        sizes = np.where(np.isfinite(known), sizes, 0.0)
    best = np.max(known, axis=-1, keepdims=True)
    largest = np.max(sizes, axis=-1, keepdims=True)
    return np.asarray(known >= best - PRECISION * largest)


@cache
def _blas() -> ThreadpoolController:
    """Return what limits the BLAS libraries of NumPy and SciPy.

    Made once, when it is needed: finding the libraries takes milliseconds, loading
    SciPy's a tenth of a second, limiting them some hundred microseconds, and asking
    them one.
    """
    import scipy.linalg  # noqa: F401  (loads the libraries the controller looks for)
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")


def one_blas_thread(function: Callable[P, R]) -> Callable[P, R]:
    """Make ``function`` run with one BLAS thread."""

    @wraps(function)
    def limited(*args: P.args, **kwargs: P.kwargs) -> R:
        blas = _blas()
        if all(library.num_threads == 1 for library in blas.lib_controllers):
            return function(*args, **kwargs)
        with blas.limit(limits=1):
            return function(*args, **kwargs)

    return limited

"""One BLAS thread around small linear algebra.

The matrices here have at most a few hundred rows: more threads cost time, and make the
last bits of a result depend on how many there were.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import scipy.linalg  # noqa: F401  (loads the libraries the controller looks for)
from threadpoolctl import ThreadpoolController

P = ParamSpec("P")
R = TypeVar("R")

# Finding the loaded BLAS libraries takes milliseconds, limiting them microseconds.
_LIMITED = ThreadpoolController().wrap(limits=1, user_api="blas")


def one_blas_thread(function: Callable[P, R]) -> Callable[P, R]:
    """Make ``function`` run with one BLAS thread."""
    limited: Callable[P, R] = _LIMITED(function)
    return limited

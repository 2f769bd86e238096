"""One BLAS thread around small linear algebra.

The matrices here have at most a few hundred rows: more threads cost time, and make the
last bits of a result depend on how many there were.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import scipy.linalg  # noqa: F401  (loads the libraries the controller looks for)
from threadpoolctl import ThreadpoolController

P = ParamSpec("P")
R = TypeVar("R")

# Finding the loaded BLAS libraries takes milliseconds, limiting them some hundred
# microseconds, asking them one.
_BLAS = ThreadpoolController().select(user_api="blas")


def one_blas_thread(function: Callable[P, R]) -> Callable[P, R]:
    """Make ``function`` run with one BLAS thread."""

    @wraps(function)
    def limited(*args: P.args, **kwargs: P.kwargs) -> R:
        if all(library.num_threads == 1 for library in _BLAS.lib_controllers):
            return function(*args, **kwargs)
        with _BLAS.limit(limits=1):
            return function(*args, **kwargs)

    return limited

"""One BLAS thread around small linear algebra.

The matrices here have at most a few hundred rows: more threads cost time, and make the
last bits of a result depend on how many there were.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

P = ParamSpec("P")
R = TypeVar("R")


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

"""Matrices that are positive definite, but for rounding."""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from flwr_fbo._common.arrays import FloatArray

# The smallest eigenvalue of a matrix that rounding has made indefinite is raised to
# the first of these shares of its largest one at which it has a factor: see `raised`.
_LEAST_SHARES = 2.0**-36, 2.0**-26, 2.0**-16, 2.0**-6


def raised(matrix: FloatArray) -> FloatArray:
    """Return symmetric matrices, each made positive definite where it is not.

    One that should be, and is not, is so by rounding. Whether it is depends on the
    data, so it must not be an error: a server could choose numbers by which it shows.

    *Why Cholesky's factor of what is returned exists.* The smallest eigenvalue becomes
    a share of the largest: 2^-36, and 2^10 times as much until there is a factor. There
    is one at 2^-6 at the latest: of d <= 1000 rows it exists in floating point where
    the smallest eigenvalue is above d (d + 1) 2^-53 < 2^-33 times the largest entry of
    the diagonal (Higham, 2002, theorem 10.7).

    Parameters
    ----------
    matrix : ndarray of shape (..., d, d)
        Symmetric matrices.

    Raises
    ------
    numpy.linalg.LinAlgError
        If a number is not finite: no server's number within its bounds leads there.
    """
    symmetric = (matrix + np.swapaxes(matrix, -1, -2)) / 2
    values = np.linalg.eigvalsh(symmetric)
    largest = np.maximum(np.abs(values).max(axis=-1), np.finfo(float).tiny)
    eye = np.eye(matrix.shape[-1])
    for share in _LEAST_SHARES:
        missing = np.maximum(share * largest - values[..., 0], 0.0)
        made = np.asarray(symmetric + missing[..., None, None] * eye)
        with suppress(np.linalg.LinAlgError):
            np.linalg.cholesky(made)
            return made
    raise np.linalg.LinAlgError("The matrix is not finite.")

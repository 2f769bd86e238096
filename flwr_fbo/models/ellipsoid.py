"""Linear models: the ellipsoid of their parameters, kept by Cholesky factor.

With V = G + (regularisation) and u = sum x y, the estimate is theta = V^-1 u, and the
parameters within a width w of it are {t: ||t - theta||_V <= w}. An action's largest
reward over these is x'theta + w ||x||_{V^-1} (Abbasi-Yadkori, Pal & Szepesvari, 2011,
section 3). With V = L L' everything follows from one triangular solve,

    Z = L^-1 [X', u]:    x'theta = z_x'z_u,    ||x||_{V^-1} = ||z_x||,

so that no matrix is ever inverted.
"""

from __future__ import annotations

import math
from copy import copy
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import dtrsm
from scipy.linalg.lapack import dtpqrt

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.models.rounding import raised

# Arguments of `dtrsm`, which by keyword take a third of the time of a small solve.
_RIGHT, _IN_PLACE = 1, 1
# Columns that `dtpqrt` takes together: for 20 to 600 of them the fastest, or nearly so.
_BLOCK = 16


class Ellipsoid:
    """V and u of one linear model, or of a batch of them.

    Parameters
    ----------
    matrix : ndarray of shape (..., d, d)
        V, symmetric and positive definite.
    target : ndarray of shape (..., d)
        u.
    watched : bool
        Whether `least_eigenvalue` is kept up to date, in O(d^3) time now and then.

    Attributes
    ----------
    factor : ndarray of shape (..., d, d)
        L, lower triangular.
    target : ndarray of shape (..., d)
        u: sum of the observed x y.
    num_observed : int
        Observations so far.
    least_eigenvalue : ndarray of shape (...)
        Lower bound of V's eigenvalues, at least half of the smallest one while single
        observations are added; NaN unless watched. It is the smallest eigenvalue that V
        had when the number of observations was last a power of two, or zero: V only
        grows.

    Raises
    ------
    numpy.linalg.LinAlgError
        If V is not positive definite.
    """

    def __init__(
        self, matrix: FloatArray, target: FloatArray, watched: bool = False
    ) -> None:
        self.factor = np.linalg.cholesky(np.asarray(matrix, dtype=np.float64))
        self.target: FloatArray = np.array(target)
        self.num_observed = 0
        self._watched = watched
        self.least_eigenvalue: FloatArray = np.full(self.factor.shape[:-2], np.nan)
        self._scratch = np.empty(0)
        self._watch()

    @classmethod
    def raised(
        cls, matrix: FloatArray, target: FloatArray, watched: bool = False
    ) -> Self:
        """Return the same, also where rounding has made V indefinite: see `raised`."""
        try:
            return cls(matrix, target, watched)
        except np.linalg.LinAlgError:
            return cls(raised(matrix), target, watched)

    def repeated(self, num_models: int) -> Self:
        """Return a batch of copies: V of shape (M, d, d), u of shape (M, d)."""
        copies = copy(self)
        copies.factor = np.repeat(self.factor[None], num_models, axis=0)
        copies.target = np.repeat(self.target[None], num_models, axis=0)
        copies.least_eigenvalue = np.repeat(self.least_eigenvalue, num_models)
        return copies

    @property
    def log_det(self) -> FloatArray:
        """The logarithm of det V, shape (...)."""
        diagonal = np.diagonal(self.factor, axis1=-2, axis2=-1)
        return np.asarray(2 * np.log(diagonal).sum(axis=-1))

    def shifted_log_det(self, shift: float) -> FloatArray:
        """Return the logarithm of det(V + shift I), shape (...), in O(d^3) time."""
        if shift == 0:
            return self.log_det
        matrix = self.factor @ np.swapaxes(self.factor, -1, -2)
        shifted = matrix + shift * np.eye(matrix.shape[-1])
        return np.asarray(np.linalg.slogdet(shifted)[1])

    @property
    def estimate(self) -> FloatArray:
        """Theta, shape (..., d)."""
        return self.unwhitened(self.whitened(self.target[..., None]))[..., 0]

    def whitened(self, right: FloatArray) -> FloatArray:
        """Return L^-1 R, for R of shape (..., d, k)."""
        return _solve_lower(self.factor, _copied(right))

    def unwhitened(self, right: FloatArray) -> FloatArray:
        """Return L'^-1 R, shape (..., d, k): V^-1 R, if R was whitened before."""
        return _solve_lower(self.factor, _copied(right), transposed=True)

    def observe(self, x: FloatArray, y: FloatArray | float) -> None:
        """Add xx' to V and x y to u, in O(d^2) time.

        Parameters
        ----------
        x : ndarray of shape (..., d)
            Observed features; one vector per model of the batch.
        y : ndarray of shape (...)
            Observed values.
        """
        _update(self.factor, x)
        self.target += x * np.asarray(y)[..., None]
        self.num_observed += 1
        if self.num_observed.bit_count() == 1:
            self._watch()

    def observe_sum(self, gram: FloatArray, target: FloatArray, count: int) -> None:
        """Add sums of ``count`` xx' and x y to V and u, in O(d^3) time.

        Shapes (..., d, d) and (..., d).
        """
        matrix = self.factor @ np.swapaxes(self.factor, -1, -2) + gram
        try:
            self.factor = np.linalg.cholesky(np.asarray(matrix, dtype=np.float64))
        except np.linalg.LinAlgError:
            self.factor = np.asarray(np.linalg.cholesky(raised(matrix)))
        self.target += target
        self.num_observed += count
        self._watch()

    def _watch(self) -> None:
        if self._watched:
            # From the singular values of L, which lose no digits by being squared.
            singular_values = np.linalg.svd(self.factor, compute_uv=False)
            self.least_eigenvalue = np.asarray(singular_values[..., -1] ** 2)

    def upper_bounds(
        self, actions: FloatArray, width: FloatArray | float
    ) -> FloatArray:
        """Return each action's largest reward within the ellipsoid, shape (..., K).

        Parameters
        ----------
        actions : ndarray of shape (..., K, d)
            The actions of each model in the batch; one model may have any batch of
            them. Fastest where memory holds an action's coordinates K apart.
        width : ndarray of shape (...)
            w >= 0.
        """
        z_x, z_u = self._whitened_actions(actions)
        norm = np.sqrt(np.einsum("...ik,...ik->...k", z_x, z_x))
        bounds = norm.reshape(actions.shape[:-1])
        bounds *= np.asarray(width)[..., None]
        bounds += (z_u[..., None, :] @ z_x).reshape(bounds.shape)
        return np.asarray(bounds)

    def rewards(self, actions: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return each action's estimated reward, and how it varies in the ellipsoid.

        Parameters
        ----------
        actions : ndarray of shape (..., K, d)
            As in `upper_bounds`.

        Returns
        -------
        mean : ndarray of shape (..., K)
            x'theta.
        directions : ndarray of shape (..., K, d)
            L^-1 x. The parameter theta + w L'^-1 b, with ||b|| <= 1, is within the
            ellipsoid; the action's reward is then its mean + w b'(L^-1 x).
        """
        z_x, z_u = self._whitened_actions(actions)
        models, last = self.factor.shape[:-2], actions.ndim - 1
        each, d = actions.shape[len(models) : -1], actions.shape[-1]
        n = len(models)
        by_action = (*range(n), *range(n + 1, last + 1), n)
        directions = z_x.reshape(*models, d, *each).transpose(by_action)
        mean = (z_u[..., None, :] @ z_x).reshape(actions.shape[:-1])
        return mean, np.ascontiguousarray(directions)

    def _whitened_actions(self, actions: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return L^-1 X', shape (..., d, K), and L^-1 u, in memory that is used again.

        One model solves for the actions of its whole batch at once: K is their number.
        """
        models, last = self.factor.shape[:-2], actions.ndim - 1
        each, d = actions.shape[len(models) : -1], actions.shape[-1]
        by_coordinate = (*range(len(models)), last, *range(len(models), last))
        # New pages of memory would cost a third more.
        shape = (*models, d, math.prod(each) + 1)
        if self._scratch.shape != shape:
            self._scratch = np.empty(shape)
        z = self._scratch
        z_x, z_u = z[..., :-1], z[..., -1]
        z_u[...] = self.target
        z_x.reshape(*models, d, *each)[...] = actions.transpose(by_coordinate)
        _solve_lower(self.factor, z)
        return z_x, z_u


def _copied(array: NDArray[Any]) -> FloatArray:
    """Return a copy that BLAS and LAPACK can work in."""
    return np.array(array, dtype=np.float64, order="C")


def _update(factor: FloatArray, x: FloatArray) -> None:
    """Update the factor of V to V + xx', in place.

    The new factor is the triangle of a QR decomposition of [L, x]'. Orthogonal steps
    are stable, where the inverse's rank-one formula would lose digits at every step.
    """
    if factor.ndim == 2:
        # One model, by LAPACK: for d = 276 in a fourteenth of the time. In the factor's
        # own memory if it can: LAPACK has columns where we have rows.
        block = min(_BLOCK, len(x))
        triangle, *_ = dtpqrt(0, block, factor.T, x[None], overwrite_a=1)
        # Reflections may leave the diagonal negative.
        np.multiply(triangle.T, np.sign(np.diagonal(triangle)), out=factor)
        return
    # A batch, all at once: a call of LAPACK each would take longer. Column by column a
    # Givens rotation of [L, x] makes x zero.
    x = np.array(x, dtype=float)
    for i in range(x.shape[-1]):
        column, old = factor[..., i:, i], factor[..., i, i]
        length = np.hypot(old, x[..., i])
        cos, sin = (old / length)[..., None], (x[..., i] / length)[..., None]
        rest = x[..., i:]
        factor[..., i:, i], x[..., i:] = (
            cos * column + sin * rest,
            cos * rest - sin * column,
        )


def _solve_lower(
    factor: FloatArray, right: FloatArray, transposed: bool = False
) -> FloatArray:
    """Return L^-1 R, or L'^-1 R, in the place of R, by one call of BLAS a matrix.

    One L for each R, or for all; R has shape (..., d, k), in C's order.
    """
    assert right.flags.c_contiguous
    d, k = right.shape[-2:]
    factors = np.broadcast_to(factor, (*right.shape[:-2], d, d)).reshape(-1, d, d)
    for L, R in zip(factors, right.reshape(-1, d, k), strict=True):
        # R' L'^-1, or R' L^-1, as BLAS has columns where we have rows.
        dtrsm(1.0, L.T, R.T, _RIGHT, 0, int(transposed), 0, _IN_PLACE)
    return right

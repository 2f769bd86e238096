"""Random Fourier features of the squared exponential kernel (Rahimi & Recht, 2007).

phi(x) = cos(S x + b), scaled to norm sqrt(variance): frequencies s_j ~ N(0, I/l^2),
phases b_j ~ U[0, 2 pi). Fixing the norm makes phi(x)'phi(x) equal to the kernel's
variance at every x, where plain features reach it on average only (the usual factor
sqrt(2/M) cancels).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.random import sobol_points

# An ascent ends after so many steps, if not by L-BFGS's own bounds.
_MAX_STEPS = 50
_BLOCK = 250
_TINY = np.finfo(np.float64).tiny
_LONGEST = 1e30
# Points that single precision may have put on the wrong side of the last place.
_SPARE = 10


@dataclass(frozen=True, eq=False)
class RandomFeatures:
    """M features of points in R^D.

    Attributes
    ----------
    frequencies : ndarray of shape (M, D)
        Rows s_j of the features cos(s_j'x + b_j).
    phases : ndarray of shape (M,)
        Phases b_j in [0, 2 pi).
    variance : float
        The kernel's variance, > 0.
    """

    frequencies: FloatArray
    phases: FloatArray
    variance: float = 1.0

    @classmethod
    def draw(
        cls,
        rng: np.random.Generator,
        num_features: int,
        dim: int,
        lengthscale: float,
        variance: float = 1.0,
    ) -> RandomFeatures:
        """Draw the features of a squared exponential kernel."""
        frequencies = rng.standard_normal((num_features, dim)) / lengthscale
        phases = rng.uniform(0.0, 2.0 * np.pi, num_features)
        return cls(frequencies, phases, variance)

    @classmethod
    def spread(
        cls,
        rng: np.random.Generator,
        num_features: int,
        dim: int,
        lengthscale: float,
    ) -> RandomFeatures:
        """Draw features of a squared exponential kernel that err less far away.

        Cosine and sine of the same angle, so that ||phi(x)|| is 1 without scaling, at
        frequencies from a scrambled Sobol sequence in place of independent ones (Yang,
        Sindhwani, Avron & Mahoney, 2014). With 512 of them in one to three dimensions
        phi(x)'phi(x') is off by half as much as with `draw`, or less.

        Parameters
        ----------
        num_features : int
            Even.
        """
        from scipy.special import ndtri

        half = num_features // 2
        sequence = sobol_points(dim, (half - 1).bit_length(), rng)
        # A coordinate of exactly 0 would be an infinite frequency.
        frequencies = ndtri(np.maximum(sequence[:half], 1e-9)) / lengthscale
        return cls(
            np.repeat(frequencies, 2, axis=0), np.tile([0.0, -np.pi / 2], half), 1.0
        )

    def __call__(self, x: FloatArray) -> FloatArray:
        """Return phi(x) of shape (n, M) for points of shape (n, D)."""
        cosines = np.cos(x @ self.frequencies.T + self.phases)
        norm = np.maximum(np.linalg.norm(cosines, axis=1), _TINY)
        scale = np.sqrt(self.variance) / norm
        return np.asarray(cosines * scale[:, None])

    def function(self, x: FloatArray, weights: FloatArray) -> FloatArray:
        """Return phi(x)'w of shape (n,).

        ``weights`` has shape (M,), or (n, M) for one function per point.
        """
        return np.asarray(np.sum(self(x) * weights, axis=1))

    def largest(
        self,
        x: FloatArray,
        weights: FloatArray,
        index: NDArray[np.intp],
        rough: FloatArray,
        num: int,
    ) -> NDArray[np.intp]:
        """Return which points have the largest phi(x_i)'w_index(i), best first.

        Their indices, shape (min(num, n),). Screened by their rough values and ordered
        in double precision: single precision differs between processors in its last
        digits, which decide now and then.

        Parameters
        ----------
        x : ndarray of shape (n, D)
            Points to choose among.
        weights : ndarray of shape (P, M)
            One function per row.
        index : ndarray of shape (n,)
            Number of the function that each point belongs to.
        rough : ndarray of shape (n,)
            Their `rough_values`.
        num : int
            Number of points to return, >= 1; fewer if there are fewer points.
        """
        screened = np.argsort(-rough, kind="stable")[: num + _SPARE]
        values = self.function(x[screened], weights[index[screened]])
        return np.asarray(screened[np.argsort(-values, kind="stable")[:num]])

    def rough_values(
        self, x: FloatArray, weights: FloatArray, index: NDArray[np.intp]
    ) -> FloatArray:
        """Return phi(x_i)'w_index(i) of shape (n,), to screen many points.

        In single precision, where a cosine costs a tenth: values that differ by less
        than about 1e-6 of the largest possible one may change places.

        Parameters
        ----------
        x, weights, index
            As for `largest`.
        """
        values = np.empty(len(x))
        # An agent that lies may send numbers that single precision does not have.
        weights = np.clip(weights, -_LONGEST, _LONGEST).astype(np.float32)
        # Larger arrays would be fetched from the operating system each time.
        for begin in range(0, len(x), _BLOCK):
            block = slice(begin, begin + _BLOCK)
            # Whole turns are taken off in double precision, they may be many.
            turns = (x[block] @ self.frequencies.T + self.phases) / (2.0 * np.pi)
            turns -= np.rint(turns)
            cosines = np.cos(2.0 * np.pi * turns.astype(np.float32))
            products = (cosines @ weights.T)[np.arange(len(cosines)), index[block]]
            norm = np.maximum(np.linalg.norm(cosines, axis=1), _TINY)
            values[block] = products / norm
        return np.asarray(np.sqrt(self.variance) * values)

    def function_and_gradient(
        self, x: FloatArray, weights: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return phi(x)'w of shape (n,) and its gradient in x of shape (n, D)."""
        angles = x @ self.frequencies.T + self.phases
        cosines, sines = np.cos(angles), np.sin(angles)
        norm = np.maximum(np.linalg.norm(cosines, axis=1), _TINY)
        values = np.sum(cosines * weights, axis=1) / norm
        # d(c'w / |c|) = (w - c (c'w) / |c|^2)' dc / |c|, with dc = -sin(.) s.
        pull = (weights - cosines * (values / norm)[:, None]) / norm[:, None]
        gradient = -(sines * pull) @ self.frequencies
        root = np.sqrt(self.variance)
        return root * values, root * gradient


def ascend(
    value_and_gradient: Callable[[FloatArray], tuple[FloatArray, FloatArray]],
    starts: FloatArray,
    lower: FloatArray,
    upper: FloatArray,
) -> FloatArray:
    """Refine every start within its bounds; all (k, D)."""
    from scipy.optimize import minimize

    def negative_sum(flat: FloatArray) -> tuple[float, FloatArray]:
        values, gradient = value_and_gradient(flat.reshape(starts.shape))
        return -float(np.sum(values)), -gradient.ravel()

    bounds = np.column_stack([lower.ravel(), upper.ravel()])
    end = minimize(
        negative_sum,
        starts.ravel(),
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": _MAX_STEPS},
    )
    return np.asarray(np.clip(end.x.reshape(starts.shape), lower, upper))

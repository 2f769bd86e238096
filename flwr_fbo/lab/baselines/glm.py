"""Generalised linear models: links, and the two regressions of Fed-GLB-UCB.

The mean reward is mu(z), z = <x, theta>. With m' = mu a loss is m(z) - y z, so that its
gradient by theta is (mu(z) - y) x (Filippi, Cappe, Garivier & Szepesvari, 2010).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.validation import is_number, require


class Link(Protocol):
    """What makes a mean reward of <x, theta>: an increasing function mu."""

    @property
    def largest_slope(self) -> float:
        """k_mu, the largest value of its derivative."""

    def mean(self, z: FloatArray) -> FloatArray:
        """Return mu(z), element by element."""


@dataclass(frozen=True)
class IdentityLink:
    """mu(z) = z: a linear model, for rewards of any size."""

    @property
    def largest_slope(self) -> float:
        """1."""
        return 1.0

    def mean(self, z: FloatArray) -> FloatArray:
        """Return z."""
        return z


@dataclass(frozen=True)
class LogisticLink:
    """mu(z) = low + (high - low) / (1 + exp(-z)): for rewards in a known range.

    Attributes
    ----------
    low, high : float
        What mean rewards lie between; low < high.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        values = (self.low, self.high)
        ok = all(is_number(value) and np.isfinite(value) for value in values)
        allowed = "two finite numbers, the lower one first"
        require(ok and self.low < self.high, "low, high", values, allowed)

    @property
    def largest_slope(self) -> float:
        """A quarter of the range."""
        return (self.high - self.low) / 4

    def mean(self, z: FloatArray) -> FloatArray:
        """Return mu(z), element by element."""
        from scipy.special import expit

        return np.asarray(self.low + (self.high - self.low) * expit(z))


class AcceleratedDescent:
    """Nesterov's accelerated gradient descent on a smooth, strongly convex function.

    With a constant momentum (Nesterov, Introductory Lectures on Convex Optimization,
    2004, scheme 2.2.11): the gradient at `point` makes the next step.

    Parameters
    ----------
    start : ndarray of shape (d,)
    smoothness : float
        L, no less than any eigenvalue of the function's Hessian.
    strong_convexity : float
        0 < m <= L, no more than any.
    accuracy : float
        By how much the value may exceed the least one. It ends where ||gradient||^2 <=
        2 m accuracy, from which that follows.
    max_iterations : int
        After which it ends in any case.

    Attributes
    ----------
    point : ndarray of shape (d,)
        Where the next gradient is needed; what came out, once `is_done`.
    num_gradients : int
        So far.
    is_done : bool
    """

    def __init__(
        self,
        start: FloatArray,
        smoothness: float,
        strong_convexity: float,
        accuracy: float,
        max_iterations: int,
    ) -> None:
        self.point = start
        self.num_gradients = 0
        self.is_done = False
        self._last = start
        self._step = 1 / smoothness
        root = np.sqrt(strong_convexity / smoothness)
        self._momentum = (1 - root) / (1 + root)
        self._small = 2 * strong_convexity * accuracy
        self._max_iterations = max_iterations

    def advance(self, gradient: FloatArray) -> None:
        """Take the gradient at `point`, shape (d,)."""
        self.num_gradients += 1
        if gradient @ gradient <= self._small:
            self.is_done = True
            return
        end = self.point - self._step * gradient
        self.point = end + self._momentum * (end - self._last)
        self._last = end
        self.is_done = self.num_gradients >= self._max_iterations


def projected(theta: FloatArray, factor: FloatArray, radius: float) -> FloatArray:
    """Return the nearest point of the ball ||t|| <= radius, by ||t - theta||_A.

    Outside of the ball it is (A + nu I)^-1 A theta with the nu > 0 that makes it as
    long as the radius, found in the eigenvectors of A.

    Parameters
    ----------
    theta : ndarray of shape (d,)
    factor : ndarray of shape (d, d)
        L of A = L L'.
    radius : float
        > 0.
    """
    length = float(np.linalg.norm(theta))
    if length <= radius:
        return theta
    from scipy.optimize import brentq

    vectors, singular_values, _ = np.linalg.svd(factor)
    eigenvalues, coordinates = singular_values**2, vectors.T @ theta

    def shrunk(nu: float) -> FloatArray:
        return np.asarray(eigenvalues / (eigenvalues + nu) * coordinates)

    # There every coordinate is shrunk by length / radius, or more.
    largest = eigenvalues[0] * (length / radius - 1) * (1 + 1e-9)
    nu = brentq(lambda nu: np.linalg.norm(shrunk(nu)) - radius, 0.0, largest)
    return np.asarray(vectors @ shrunk(nu))

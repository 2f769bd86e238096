"""Minimise many small smooth functions at once, each in a box of its own.

All functions are evaluated together, as arrays; one that has ended is left out. Each
problem takes the steps that it would take alone, to the last bit, so that it does not
matter which others are in the block.

A step is projected onto the box; where that does not decrease the function (Armijo), it
is cut where it leaves the box, then shortened. Its direction is that of BFGS among the
coordinates that may move (Nocedal & Wright, 2006, algorithm 6.1; Bertsekas, 1982, for
the box).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray

# Takes points, shape (a, D), and which of the functions each is for, shape (a,);
# returns values, shape (a,), and gradients, shape (a, D).
Functions = Callable[[FloatArray, NDArray[np.intp]], tuple[FloatArray, FloatArray]]

# A step must reach this share of the decrease that the gradient promises.
_ARMIJO = 1e-4
# A step that fails is shortened to the minimum of the parabola through what is known,
# but to no less and no more than these shares of it.
_SHORTEST, _LONGEST = 0.1, 0.5
# Below, curvature is rounding error, and so is what a step changes.
_LEAST_CURVATURE, _LEAST_STEP = 1e-10, 1e-10
# A step that is cut at the border must not end just before it.
_BEYOND = 1.0 + 1e-9


@dataclass
class _Block:
    """The problems that have not ended, a row each.

    ``curvature`` is the approximate inverse of the Hessian, shape (a, D, D).
    """

    index: NDArray[np.intp]
    lower: FloatArray
    upper: FloatArray
    point: FloatArray
    value: FloatArray
    gradient: FloatArray
    curvature: FloatArray
    direction: FloatArray
    length: FloatArray
    is_cut: NDArray[np.bool_]

    def keep(self, rows: NDArray[np.bool_]) -> None:
        """Leave out the other problems."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name)[rows])

    def directions(self) -> FloatArray:
        """Return where to go from the points, shape (a, D)."""
        uphill = self.gradient > 0.0
        held = np.where(uphill, self.point <= self.lower, self.point >= self.upper)
        free = ~held
        pull = self.gradient * free
        return np.asarray((self.curvature @ pull[:, :, None])[:, :, 0] * -1.0 * free)

    def reach(self) -> FloatArray:
        """Return how long a step may be before a coordinate leaves the box."""
        ahead = np.where(self.direction > 0.0, self.upper, self.lower) - self.point
        moves = (self.direction != 0.0) & (ahead != 0.0)
        room = np.where(moves, ahead, np.inf) / np.where(moves, self.direction, 1.0)
        return np.asarray(np.abs(room).min(axis=1) * _BEYOND)


def minimize_all(
    functions: Functions,
    starts: tuple[FloatArray, FloatArray, FloatArray],
    lower: FloatArray,
    upper: FloatArray,
    scales: FloatArray,
    *,
    tolerance: float,
    max_steps: int,
) -> tuple[FloatArray, FloatArray]:
    """Return local minima of k functions, shape (k, D), and their values, shape (k,).

    Parameters
    ----------
    functions : callable
        Takes points of shape (a, D), and which function each is for, shape (a,).
        Returns values, shape (a,), and gradients, shape (a, D). A value that is not
        finite makes the step shorter.
    starts : tuple of ndarrays of shapes (k, D), (k,) and (k, D)
        Points within their boxes, the functions' values there, which are finite, and
        gradients.
    lower, upper : ndarray of shape (k, D)
        The boxes; where both are equal, nothing moves.
    scales : ndarray of shape (k, D)
        Longest first step along each coordinate, > 0.
    tolerance : float
        Smallest change of the value. Where a step changes it by less, relatively (by
        less than this itself, where the value is below 1), it is the last.
    max_steps : int
        Largest number of steps of each function, >= 1; shortened ones count, too.
    """
    points, values, gradients = starts
    curvature = np.square(scales)[:, :, None] * np.eye(points.shape[1])
    no = np.zeros(len(points), dtype=bool)
    rest = (points, values, gradients, curvature, points, values, no)
    block = _Block(np.arange(len(points)), lower, upper, *rest)
    block.direction = block.directions()
    excess = (np.abs(block.direction) / scales).max(axis=1)
    block.length = 1.0 / np.maximum(excess, 1.0)
    ends, end_values = points.copy(), values.copy()
    for step in range(max_steps):
        is_over = _step(block, functions, tolerance, is_first=step == 0)
        if is_over.any():
            ends[block.index], end_values[block.index] = block.point, block.value
            if is_over.all():
                return ends, end_values
            block.keep(~is_over)
    ends[block.index], end_values[block.index] = block.point, block.value
    return ends, end_values


def _step(
    block: _Block, functions: Functions, tolerance: float, is_first: bool
) -> NDArray[np.bool_]:
    """Try a step of every problem; return which problems are over."""
    trial = block.point + block.length[:, None] * block.direction
    np.minimum(np.maximum(trial, block.lower, out=trial), block.upper, out=trial)
    moved = trial - block.point
    values, gradients = functions(trial, block.index)
    promised = np.vecdot(block.gradient, moved)
    decrease = block.value - values
    is_good = -_ARMIJO * promised <= decrease
    is_small = decrease <= tolerance * np.maximum(np.abs(values), 1.0)
    is_over = is_good & is_small & ~block.is_cut
    if is_good.all():
        change = gradients - block.gradient
        block.point, block.value, block.gradient = trial, values, gradients
        if not is_over.all():
            _learn(block, moved, change, is_first)
            block.direction, block.length = block.directions(), np.ones(len(trial))
            block.is_cut = ~is_good
        return np.asarray(is_over)
    # To the minimum of the parabola with this value and slope, and the new value.
    with np.errstate(invalid="ignore"):
        share = 0.5 * promised / (decrease + promised)
    share = np.where(np.isfinite(values), share, _SHORTEST)
    shorter, reach = block.length * np.clip(share, _SHORTEST, _LONGEST), block.reach()
    is_cut = ~is_good & (block.length > reach)
    shorter = np.where(is_cut, reach, shorter)
    is_over |= ~is_good & (np.abs(moved).max(axis=1) <= _LEAST_STEP)
    good, direction = is_good[:, None], block.direction
    change = np.where(good, gradients - block.gradient, 0.0)
    _learn(block, np.where(good, moved, 0.0), change, is_first)
    block.point = np.where(good, trial, block.point)
    block.value = np.where(is_good, values, block.value)
    block.gradient = np.where(good, gradients, block.gradient)
    block.direction = np.where(good, block.directions(), direction)
    block.length, block.is_cut = np.where(is_good, 1.0, shorter), is_cut
    return np.asarray(is_over)


def _learn(
    block: _Block, moved: FloatArray, change: FloatArray, is_first: bool
) -> None:
    """Update the inverse Hessians, where a step says something of them."""
    curved = np.vecdot(moved, change)
    sizes = np.vecdot(moved, moved) * np.vecdot(change, change)
    is_known = curved > _LEAST_CURVATURE * np.sqrt(sizes)
    # Where it says nothing, the update is zero.
    inverse = is_known / np.where(is_known, curved, 1.0)
    towards = (block.curvature @ change[:, :, None])[:, :, 0]
    size = np.vecdot(change, towards)
    if is_first:
        # Nothing was known of the size so far (Nocedal & Wright, equation 6.20).
        ratio = np.where(is_known, curved / np.where(is_known, size, 1.0), 1.0)
        block.curvature = block.curvature * ratio[:, None, None]
        towards, size = towards * ratio[:, None], size * ratio
    # (s - H y) s' + s (s - H y)' and so on, as one outer product and its transpose.
    grown = (0.5 * (1.0 + size * inverse))[:, None] * moved - towards
    outer = (grown * inverse[:, None])[:, :, None] * moved[:, None, :]
    block.curvature = block.curvature + outer + outer.transpose(0, 2, 1)

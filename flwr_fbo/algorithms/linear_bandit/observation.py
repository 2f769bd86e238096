"""What a bandit's agent accepts: actions to choose from, and what one was worth."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.validation import require


def checked_actions(actions: ArrayLike, dimension: int) -> FloatArray:
    """Return actions as an array of shape (K, D).

    Raises
    ------
    ValueError
        If there are none, they have other coordinates, or one is not finite.
    """
    x = np.asarray(actions, dtype=float)
    ok = x.ndim == 2 and len(x) > 0 and x.shape[1] == dimension
    ok = ok and bool(np.isfinite(x).all())
    require(ok, "actions", x, f"finite, of shape (K, {dimension}) with K >= 1")
    return x


def checked_observation(
    action: ArrayLike, reward: float, dimension: int
) -> tuple[FloatArray, float]:
    """Return an action as an array of shape (D,), and its reward.

    Raises
    ------
    ValueError
        If either is not finite, or of another shape.
    """
    x = np.asarray(action, dtype=float)
    ok = x.shape == (dimension,) and bool(np.isfinite(x).all())
    require(ok, "action", action, f"{dimension} finite numbers")
    require(math.isfinite(reward), "reward", reward, "a finite number")
    return x, float(reward)

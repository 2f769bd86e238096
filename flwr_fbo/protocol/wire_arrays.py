"""What may be a reply, or a total: both halves look here at what the other sends.

Nothing is taken from a message but numbers of the shape that an honest half sends, and
no larger than an honest half's can be.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def is_array(message: Any, shape: tuple[int, ...], largest: float = math.inf) -> bool:
    """Return whether it is an array of finite numbers of a shape.

    Parameters
    ----------
    message : object
        Whatever an agent has sent.
    shape : tuple of int
    largest : float
        No number may be larger in size.
    """
    ok = isinstance(message, np.ndarray) and message.shape == shape
    if not ok or message.dtype != np.float64 or not np.isfinite(message).all():
        return False
    return message.size == 0 or bool(np.abs(message).max() <= largest)


def is_sum(message: Any, shape: tuple[int, int], largest: float = math.inf) -> bool:
    """Return whether it can be a sum of outer products, and what else is below it.

    Parameters
    ----------
    message, largest
        See `is_array`.
    shape : tuple of int
        (rows, k): the first k rows are symmetric.
    """
    if not is_array(message, shape, largest):
        return False
    square = message[: shape[1]]
    return np.array_equal(square, square.T)


def is_bytes(message: Any, length: int) -> bool:
    """Return whether it is an array of so many bytes."""
    ok = isinstance(message, np.ndarray) and message.dtype == np.uint8
    return ok and message.shape == (length,)

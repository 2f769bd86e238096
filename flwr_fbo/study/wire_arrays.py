"""What may be a reply, or a total: both halves look here at what the other sends.

Nothing is taken from a message but numbers of the shape that an honest half sends, and
no larger than an honest half's can be.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.privacy.continual_settings import ContinualSettings

# No honest number is larger, where nothing bounds it: squares and sums stay finite.
LARGEST = 1e100
# Of a sum's trace: what rounding may take from an eigenvalue that is 0.
_ROUNDING = 1e-12
_SMALLEST = 1e-300


def is_array(
    message: Any, shape: tuple[int, ...], largest: FloatArray | float = LARGEST
) -> bool:
    """Return whether it is an array of finite numbers of a shape.

    Parameters
    ----------
    message : object
        Whatever an agent has sent.
    shape : tuple of int
    largest : float or ndarray
        No number may be larger in size; one for all, or one each.
    """
    ok = isinstance(message, np.ndarray) and message.shape == shape
    if not ok or message.dtype != np.float64:
        return False
    return bool((np.abs(message) <= largest).all())  # nor is NaN


def is_sum(
    message: Any, shape: tuple[int, ...], largest: FloatArray | float = LARGEST
) -> bool:
    """Return whether it can be a sum of outer products, and what else is below it.

    With noise in it, or without: `is_raw_sum` is stricter.

    Parameters
    ----------
    message, largest
        See `is_array`.
    shape : tuple of int
        (..., rows, k): the first k rows are symmetric.
    """
    if not is_array(message, shape, largest):
        return False
    square = message[..., : shape[-1], :]
    return np.array_equal(square, np.swapaxes(square, -1, -2))


def is_raw_sum(
    message: Any, shape: tuple[int, ...], largest: FloatArray | float = LARGEST
) -> bool:
    """Return whether it can be a sum of outer products without noise.

    That is positive semidefinite, but for rounding. One that is not could take away
    what honest agents have learned, and leave them a total that nobody can use.

    Parameters
    ----------
    message, shape, largest
        See `is_sum`.
    """
    if not is_sum(message, shape, largest):
        return False
    square = message[..., : shape[-1], :]
    slack = _ROUNDING * np.trace(square, axis1=-2, axis2=-1)
    if (slack < 0).any():
        return False
    # An all-zero sum has no trace, and is one.
    raised = square + np.fmax(slack, _SMALLEST)[..., None, None] * np.eye(shape[-1])
    try:
        np.linalg.cholesky(raised)
    except np.linalg.LinAlgError:
        return False
    return True


def is_release(message: Any, settings: ContinualSettings) -> bool:
    """Return whether it can be what an honest agent's `ContinualRelease` returned.

    Parameters
    ----------
    message : object
    settings : ContinualSettings
    """
    is_one = is_sum if settings.noise_std > 0 else is_raw_sum
    return is_one(message, settings.sum_shape, settings.largest_entries)


def is_bytes(message: Any, length: int) -> bool:
    """Return whether it is an array of so many bytes."""
    ok = isinstance(message, np.ndarray) and message.dtype == np.uint8
    return ok and message.shape == (length,)

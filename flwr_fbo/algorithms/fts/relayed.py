"""What agents sent to each other, as a server passed it on: a row each."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray


def present(vectors: FloatArray) -> NDArray[np.bool_]:
    """Return which agents' messages are there, shape (N,)."""
    return np.asarray(~np.isnan(vectors).all(axis=1))


def others_present(vectors: FloatArray, slot: int) -> NDArray[np.bool_]:
    """Return the same without an agent's own."""
    there = present(vectors)
    there[slot] = False
    return there


def checked(vectors: FloatArray, length: int, slot: int) -> FloatArray:
    """Return the messages as an agent may keep them, shape (N, L).

    Parameters
    ----------
    vectors : ndarray
        Row n is of agent n: NaN throughout where its message did not arrive.
    length : int
        L.
    slot : int
        The agent's own, below N.

    Raises
    ------
    ValueError
        If the shape differs, or a row is neither finite nor NaN throughout.
    """
    ok = vectors.ndim == 2 and vectors.shape[1] == length and len(vectors) > slot
    if not ok or np.any(np.isfinite(vectors) != present(vectors)[:, None]):
        raise ValueError(
            f"The server sent vectors of shape {vectors.shape}; expected one of length "
            f"{length} an agent, of more than {slot} agents, each finite or missing."
        )
    return np.array(vectors, dtype=np.float64)

"""The server of ApproxDisKernelUCB: it joins the agents' points, and adds up.

Li, Wang, Wang & Wang (NeurIPS 2022), algorithm 2; see the agent's module. A
synchronisation of N agents that send n points of D coordinates in all, of which m are
in the dictionary, takes

    n D (points, up) + N m D (dictionary, down) + 2 N (m^2 + m) (sums, up and down)

scalars. In simulations every agent answers; so what is no answer is an error.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.validation import require, require_int
from flwr_fbo.study.codec import is_array


class KernelBanditServer:
    """`receive_points`, then `receive_sums`.

    Parameters
    ----------
    dimension : int
        D, an action's coordinates.

    Attributes
    ----------
    dictionary : ndarray of shape (m, D)
    total : ndarray of shape (m + 1, m)
        The sums over all agents.
    """

    def __init__(self, dimension: int) -> None:
        require_int("dimension", dimension, 1)
        self.dictionary: FloatArray = np.zeros((0, dimension))
        self.total: FloatArray = np.zeros((1, 0))

    def receive_points(self, messages: Sequence[FloatArray]) -> None:
        """Make a dictionary of the points that came, each of shape (n, D).

        Raises
        ------
        ValueError
            If these are no such points.
        """
        d = self.dictionary.shape[1]
        for points in messages:
            require(
                is_array(points, (len(points), d)),
                "points",
                points,
                f"finite, of shape (n, {d})",
            )
        # Sorted: the dictionary does not depend on who was first.
        self.dictionary = np.unique(np.concatenate(messages), axis=0)

    def receive_sums(self, messages: Sequence[FloatArray]) -> None:
        """Add up the agents' sums, each of shape (m + 1, m).

        Raises
        ------
        ValueError
            If these are no such sums.
        """
        shape = (len(self.dictionary) + 1, len(self.dictionary))
        for sums in messages:
            require(is_array(sums, shape), "sums", sums, f"finite, of shape {shape}")
        self.total = np.sum(messages, axis=0)

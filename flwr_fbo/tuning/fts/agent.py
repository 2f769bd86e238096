"""The agent of FTS, federated Thompson sampling (Dai, Low & Jaillet, NeurIPS 2020).

In iteration t it follows, with probability 1 - p_t, one other agent n, drawn from P_N:
it queries the maximiser of phi(x)'omega_n, the function that n sent. Otherwise, and
where there is nobody to follow, it searches on its own. p_1 is p_2, as published: 1 -
p_1 would be 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray, one_blas_thread
from flwr_fbo._common.random import Purpose, generator
from flwr_fbo.study.codec import LARGEST
from flwr_fbo.tuning.dp_fts_de.agent import DPFTSDEAgent
from flwr_fbo.tuning.fts.settings import FTSSettings


class FTSAgent(DPFTSDEAgent):
    """One agent; see `SearchAgent` for the parameters."""

    settings: FTSSettings

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._followed: dict[int, int] = {}  # in which iteration, by slot

    def receive(self, vectors: FloatArray, made_after: int = 0) -> None:
        """Keep the agents' vectors, shape (N, M), until newer ones come.

        Row n is that of agent n: NaN where its message did not arrive.

        Raises
        ------
        ValueError
            See `checked`.
        """
        self._vectors = checked(vectors, self.settings.message_length, self.slot)

    @one_blas_thread
    def _follow(self, vectors: FloatArray, iteration: int) -> FloatArray | None:
        rng = generator(self.entropy, self.slot, iteration, Purpose.FOLLOW)
        if rng.random() >= self.settings.follow_probability(iteration):
            return None
        weights = self._weights(vectors, iteration)
        if not weights.any():
            return None
        chosen = int(rng.choice(len(weights), p=weights / weights.sum()))
        if self.settings.share_after is not None:
            self._followed[chosen] = iteration
        whole, function = self.space.sub_regions(1), vectors[[chosen]]
        return self._maximize(self._shared, function, whole, iteration)

    def _weights(self, vectors: FloatArray, iteration: int) -> FloatArray:
        """Return P_N up to a factor, shape (N,); zeros where there is nobody."""
        there = others_present(vectors, self.slot)
        for slot, followed in self._followed.items():
            # Asked again for this iteration's query, it must be the same one.
            there[slot] &= followed >= iteration
        weights = there.astype(np.float64)
        if self.settings.weighting == "similarity":
            x, y = self._observations(iteration)
            if len(y) > 1 and np.ptp(y) > 0:
                from scipy.stats import kendalltau

                # Kendall's tau between each function and the observations, at least 0.
                values = self._shared(x) @ vectors[there].T
                taus = [float(kendalltau(column, y).statistic) for column in values.T]
                weights[there] = [tau if tau > 0 else 0.0 for tau in taus]
        return weights

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the agent's memory; no generator is part of it."""
        pairs = np.array(sorted(self._followed.items()), dtype=np.int64).reshape(-1, 2)
        return {**super().state_dict(), "followed": pairs}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from what ``state_dict`` returned."""
        super().load_state_dict(state)
        self._followed = {int(slot): int(t) for slot, t in state["followed"]}


def others_present(vectors: FloatArray, slot: int) -> NDArray[np.bool_]:
    """Return which other agents' messages are there, shape (N,)."""
    there = np.any(~np.isnan(vectors), axis=1)
    there[slot] = False
    return np.asarray(there)


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
        If the shape differs, or a row is neither finite, up to 1e100, nor NaN
        throughout.
    """
    is_valid = vectors.ndim == 2 and vectors.shape[1] == length and len(vectors) > slot
    if is_valid:  # a row is finite throughout, or NaN throughout
        finite, missing = np.abs(vectors) <= LARGEST, np.isnan(vectors)
        is_valid = bool(np.all(finite.all(axis=1) | missing.all(axis=1)))
    if not is_valid:
        raise ValueError(
            f"The server sent vectors of shape {vectors.shape}; expected one of length "
            f"{length} an agent, of more than {slot} agents, each finite or missing."
        )
    return np.array(vectors, dtype=np.float64)

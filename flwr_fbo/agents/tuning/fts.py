"""The agent of FTS, federated Thompson sampling (Dai, Low & Jaillet, NeurIPS 2020).

In iteration t it follows, with probability 1 - p_t, one other agent n, drawn from P_N:
it queries the maximiser of phi(x)'omega_n, the function that n sent. Otherwise, and
where there is nobody to follow, it searches on its own. p_1 is p_2, as published: 1 -
p_1 would be 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau

from flwr_fbo._random import Purpose
from flwr_fbo._validation import require, require_int
from flwr_fbo.agents.tuning.dp_fts_de import Follow, ThompsonAgent, ThompsonSettings
from flwr_fbo.agents.tuning.relayed import checked, others_present

FloatArray = NDArray[np.float64]
Weighting = Literal["uniform", "similarity"]


@dataclass(frozen=True)
class FTSSettings(ThompsonSettings):
    """The agent's settings; the defaults are those published for real data.

    See `ThompsonSettings` for the others.

    Attributes
    ----------
    num_sub_regions : int
        1.
    follow : {"inverse-square", "inverse-sqrt", "inverse", "never"}
        1 - p_t is 1/t^2 (published for real data), 1/sqrt(t) (for synthetic
        functions), 1/t, or 0; t is at least 2.
    share_after : int, optional
        None: all agents send a message after every iteration, and follow the newest.
        K >= 0: they search alone up to iteration K, send one message, and follow each
        other's once; t counts from there.
    weighting : {"uniform", "similarity"}
        P_N. ``"uniform"``, as published: all agents alike whose message is there.
        ``"similarity"``: by how well a message ranks the agent's own observations,
        Kendall's tau where it is positive; agents that rank no better than chance are
        not followed.
    """

    num_sub_regions: int = 1
    num_initial: int = 3
    follow: Follow = "inverse-square"
    share_after: int | None = None
    weighting: Weighting = "uniform"

    def __post_init__(self) -> None:
        super().__post_init__()
        P = self.num_sub_regions
        require(P == 1, "num_sub_regions", P, "1, where agents follow each other")
        if self.share_after is not None:
            require_int("share_after", self.share_after, 0)
        ok = self.weighting in get_args(Weighting)
        require(ok, "weighting", self.weighting, f"one of {get_args(Weighting)}")

    def follow_probability(self, iteration: int) -> float:
        """Return 1 - p_t for t >= 1."""
        since = iteration - (self.share_after or 0)
        return super().follow_probability(max(since, 2))


class FTSAgent(ThompsonAgent):
    """One agent; see `SearchAgent` for the parameters."""

    settings: FTSSettings

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._followed: dict[int, int] = {}  # in which iteration, by slot

    def receive(self, vectors: FloatArray) -> None:
        """Keep the agents' vectors, shape (N, M), until newer ones come.

        Row n is that of agent n: NaN where its message did not arrive.

        Raises
        ------
        ValueError
            See `checked`.
        """
        self._vectors = checked(vectors, self.settings.message_length, self.slot)

    def _follow(self, vectors: FloatArray, iteration: int) -> FloatArray | None:
        rng = self._generator(iteration, Purpose.FOLLOW)
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
                values = self._shared(x) @ vectors[there].T
                weights[there] = [_agreement(column, y) for column in values.T]
        return weights

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the agent's memory; no generator is part of it."""
        pairs = np.array(sorted(self._followed.items()), dtype=np.int64).reshape(-1, 2)
        return {**super().state_dict(), "followed": pairs}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from what ``state_dict`` returned."""
        super().load_state_dict(state)
        self._followed = {int(slot): int(t) for slot, t in state["followed"]}


def _agreement(values: FloatArray, y: FloatArray) -> float:
    """Return Kendall's tau between a function and observations, at least 0."""
    tau = float(kendalltau(values, y).statistic)
    return tau if tau > 0 else 0.0

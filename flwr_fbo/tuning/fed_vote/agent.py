"""The agent of FedVote: it votes for where its best setting lies.

What the vector means. x_n is the best setting that agent n has found so far, and its
vote is phi(x_n), where phi(x)'phi(x') is close to a squared exponential kernel k and
||phi(x)|| = 1. Then phi(x)'(sum of the votes) is close to sum_n k(x, x_n), how many
agents have their best setting near x: a kernel density (Parzen, 1962), or the kernel
mean embedding of the best settings (Smola, Gretton, Song & Schoelkopf, 2007). A vote
has norm 1, which is its sensitivity: nothing of it is clipped away, and however long
the vectors are, noise N(0, s^2 I) moves the count at any one place by s alone.

What an agent does with it. Were the votes spread evenly over the space, the count at a
place would be about Poisson, N / K on average for a kernel as wide as one of K cells,
and the noise comes on top. The agent looks where it has not been; if the most voted
place there has more votes than chance and noise give at one place with probability
0.05 / K, it evaluates that place. Otherwise it searches on its own. So a vector without
meaning costs next to nothing, and a crowd, right or wrong, costs an agent at most
``max_tries`` evaluations.

Late votes, which a recommendation may follow, have a kernel a third as wide: noise
moves the most voted place by a share of that width. Whoever reads votes must know after
which iteration they were made: the server sends this with them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray, first_best, one_blas_thread
from flwr_fbo._common.random import Purpose, generator
from flwr_fbo.tuning.fed_vote.crowded_places import crowded_places
from flwr_fbo.tuning.fed_vote.settings import (
    SHARED_CANDIDATES,
    FedVoteSettings,
    VoteCount,
)
from flwr_fbo.tuning.fed_vote.votes_by_chance import votes_by_chance
from flwr_fbo.tuning.search.own_search import LeanAgent, shared_features

if TYPE_CHECKING:
    from flwr_fbo.models.features import RandomFeatures


class FedVoteAgent(LeanAgent):
    """One agent; see `LeanAgent` for the other parameters.

    Parameters
    ----------
    facts : VoteCount, optional
        Facts of the count of votes; given, where it receives any.
    """

    settings: FedVoteSettings

    def __init__(
        self, *args: Any, facts: VoteCount | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._count = facts
        self._made_after = 0

    @one_blas_thread
    def message(self, iteration: int) -> FloatArray:
        """Return phi of the best setting, shape (M,), norm 1; zeros without one."""
        x, y = self._observations(iteration)
        if len(y) == 0:
            return np.zeros(self.settings.num_features)
        return np.asarray(self._features(iteration)(x[[first_best(y)]])[0])

    def _features(self, iteration: int) -> RandomFeatures:
        """Return the features of votes after ``iteration``."""
        dim = self.space.dim
        settings = self.settings.after(iteration, dim)
        return shared_features(settings, dim, self._feature_seed)

    def receive(self, vectors: FloatArray, made_after: int = 0) -> None:
        """Keep the released votes, and after which iteration they were made."""
        super().receive(vectors, made_after)
        self._made_after = made_after

    @property
    def _reading(self) -> FedVoteSettings:
        """The settings of the votes that were received."""
        return self.settings.after(self._made_after, self.space.dim)

    @one_blas_thread
    def _follow(self, vectors: FloatArray, iteration: int) -> FloatArray | None:
        """Return the most voted new place, if its votes are significant."""
        # Only when there are votes to read: it takes longer than all else that the
        # fresh process of a deployment's message does.
        assert self._count is not None
        places = crowded_places(
            self._reading,
            self._count,
            self.space,
            self._feature_seed,
            iteration,
            vectors.tobytes(),
        )
        if len(places) == 0:
            return None
        # Of these places each agent looks at others, lest all go to the same.
        rng = generator(self.entropy, self.slot, iteration, Purpose.FOLLOW)
        places = places[rng.random(len(places)) < 1.0 / SHARED_CANDIDATES]
        from scipy.spatial.distance import cdist

        # New are places where nothing alike has been tried.
        length = self._reading.shared_lengthscale(self.space.dim)
        reach = length * math.sqrt(-2.0 * math.log(self.settings.max_similarity))
        places = places[np.all(cdist(places, self.points) >= reach, axis=1)]
        if len(places) == 0:
            return None
        by_chance = votes_by_chance(
            self._reading, self._count, self.space, self._feature_seed
        )
        votes = (
            self._features(self._made_after)(self.points) @ by_chance.excess(vectors)[0]
        )
        num_tries = int(np.count_nonzero(votes > by_chance.threshold))
        return np.asarray(places[0]) if num_tries < self.settings.max_tries else None

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the agent's memory; no generator is part of it."""
        state = super().state_dict()
        if self._reading != self.settings:
            state["vectors_made_after"] = np.array(self._made_after)
        return state

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from what ``state_dict`` returned."""
        super().load_state_dict(state)
        self._made_after = int(state.get("vectors_made_after", 0))

"""Linear bandit agents with the same settings, computed together as arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.algorithms.linear_bandit.confidence import Belief, Confidence
from flwr_fbo.algorithms.linear_bandit.settings import DeterminantTrigger
from flwr_fbo.algorithms.linear_bandit.site_belief import SiteBelief
from flwr_fbo.lab.tasks.linear_bandit import IntArray


class AgentGroup:
    """What some agents believe by one estimator, of the same confidence.

    Parameters
    ----------
    confidence : Confidence
    members : (ndarray of int, ndarray of int), optional
        Their slots, shape (A,), and whose sums each of them adds up, shape (A, P).
        Unless given all agents, who add up all sums, and so believe the same.
    """

    def __init__(
        self,
        confidence: Confidence,
        members: tuple[IntArray, IntArray] | None = None,
    ) -> None:
        self._confidence = confidence
        self._pools = None if members is None else members[1]
        self.agents: IntArray | slice = slice(None) if members is None else members[0]

    def choose(
        self, contexts: FloatArray, rngs: Callable[[], Sequence[np.random.Generator]]
    ) -> IntArray:
        """Return the index that each plays, shape (A,), of (A, K, d) actions.

        ``rngs`` is that of `Belief.choose`.
        """
        return self.belief.choose(contexts, rngs)[0]

    @property
    def belief(self) -> Belief:
        """What they choose by."""
        if self._sites is not None:
            return self._sites.belief
        return self._confidence.belief(self._ellipsoid)

    def observe(self, actions: FloatArray, rewards: FloatArray) -> None:
        """Add what each has seen itself, out of all agents' trials."""
        own = actions[self.agents], rewards[self.agents]
        self._ellipsoid.observe(*own)
        if self._sites is not None:
            self._sites.observe(*own)

    def wants(self, trigger: DeterminantTrigger) -> bool:
        """Return whether any of them has seen enough since the last synchronisation."""
        before = self._synchronised_log_det
        growth = self._confidence.growth(self._ellipsoid, before)
        return trigger.fires(growth, self._ellipsoid.num_observed)

    def believe(
        self,
        sums: FloatArray,
        num_synchronisations: int = 0,
        own: FloatArray | None = None,
    ) -> None:
        """Believe the sums of each pool, out of all agents', (M, d + 1, d + 1).

        ``own`` are all agents' parts of the sums, as `SiteBelief` takes them: the sums
        unless given.
        """
        self._confidence = confidence = self._confidence.after(num_synchronisations)
        if self._pools is None:
            self._ellipsoid = confidence.ellipsoid(sums.sum(axis=0))
            if confidence.settings.local_data == "raw":
                self._ellipsoid = self._ellipsoid.repeated(confidence.num_agents)
        else:
            self._ellipsoid = confidence.ellipsoid(sums[self._pools].sum(axis=1))
        self._synchronised_log_det = self._ellipsoid.log_det
        self._sites: SiteBelief | None = None
        if confidence.settings.site_deviation is not None:
            parts = (sums if own is None else own)[self.agents]
            self._sites = SiteBelief(confidence, self._ellipsoid, parts)

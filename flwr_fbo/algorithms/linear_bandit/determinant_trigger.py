"""Synchronising FedUCB when agents have learned much, as published: not private."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.conversion import take_plain
from flwr_fbo._common.validation import require_positive


@dataclass(frozen=True)
class DeterminantTrigger:
    """Synchronise once an agent has learned much by itself (Wang et al., ICLR 2020).

    As soon as, for any agent, what it has learned (`Confidence.growth`) times the
    trials since the last synchronisation exceeds D: Dubey & Pentland (2020), Algorithm
    1, line 12. It needs ``local_data="raw"``.

    Formal guarantees
    -----------------
    None, whatever the noise: when to synchronise depends on raw data, and everybody
    sees it (Zhou & Chowdhury, ICLR 2024). For reproduction only.

    Attributes
    ----------
    threshold : float
        D > 0.
    """

    threshold: float

    def __post_init__(self) -> None:
        take_plain(self)
        require_positive("threshold", self.threshold)

    def fires(self, growth: FloatArray, num_since: int) -> bool:
        """Return whether it is time, for growths of log det V of any shape.

        ``num_since`` are the trials since the last synchronisation, this one included.
        """
        return bool(np.max(growth) * num_since > self.threshold)

    def among_peers(self, max_action_norm: float) -> PeerTrigger:
        """Return the trigger of peers, whose threshold is D / (1 + L^2)."""
        return PeerTrigger(self.threshold / (1 + max_action_norm**2))


@dataclass(frozen=True)
class PeerTrigger(DeterminantTrigger):
    """The same without a centre: Dubey & Pentland (2020), Algorithm 3, line 6.

    What an agent has learned by an estimator is multiplied with the estimator's trials
    since it was synchronised last, and one more for the delay of a broadcast.
    """

    def fires(self, growth: FloatArray, num_since: int) -> bool:
        """Return whether it is time; never before the estimator's first trial."""
        return num_since > 0 and super().fires(growth, num_since + 1)

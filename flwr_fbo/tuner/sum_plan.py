"""How the clients of a tuner sum their ballots, so that the server reads none."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Self

from flwr_fbo._common.validation import require
from flwr_fbo.privacy.release import ReleaseSettings
from flwr_fbo.secure_sum.roster import Roster, digest_of
from flwr_fbo.strategies.secure_aggregation import NO_ROSTER, SecureAggregation
from flwr_fbo.study.secure_sums import SecureSums, SumGroup


@dataclass(frozen=True)
class SumPlan:
    """Who sums, and under which roster: the same in all rungs.

    Attributes
    ----------
    group : SumGroup
        Of all slots.
    roster : Roster, optional
        The one that the clients pin.
    """

    group: SumGroup
    roster: Roster | None

    @classmethod
    def of(cls, aggregation: SecureAggregation, num_agents: int) -> Self:
        """Return the plan of N clients.

        Raises
        ------
        ValueError
            If the numbers do not fit N, or the roster is not one of N; the message
            names the field.
        """
        roster = aggregation.load_roster()
        slots = None if roster is None else roster.slots
        allowed = f"one of the slots 0 to {num_agents - 1}: a key a client"
        require(slots in (None, tuple(range(num_agents))), "roster", slots, allowed)
        return cls(aggregation.group(range(num_agents)), roster)

    @property
    def trust(self) -> str:
        """What the server learns of a client's ballots."""
        learned = (
            "secure aggregation: the server learns the noisy sums, and who answered"
        )
        if self.roster is not None:
            return learned
        return f"{learned}; {NO_ROSTER}"

    def sums(self, settings: ReleaseSettings, num_trials: int) -> SecureSums:
        """Return how ballots on K trials are summed."""
        return SecureSums(settings, num_trials, (self.group,), self._digest)

    def to_dict(self) -> dict[str, Any]:
        """Return what may not change while a tuner goes on, as JSON values."""
        return {**asdict(self.group), "roster": self._digest}

    @property
    def _digest(self) -> str:
        return digest_of(self.roster)

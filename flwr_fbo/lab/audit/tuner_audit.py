"""All choices of `FederationTuner`, as its server makes them, drawn for an audit.

In each rung the clients' ballots are about two trials. The canary's are ten times as
long as a ballot is, for the one trial or the other; or they do not come. The others
send zeros. `benchmarks/tuner_audit.py` draws whole runs, with the clients' half: the
same releases, at a hundred times the cost.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.validation import require
from flwr_fbo.lab.audit.tuning_audit import Messages, TuningAuditPlan
from flwr_fbo.privacy.release import Release
from flwr_fbo.tuner.ballots import ballot_entries
from flwr_fbo.tuner.choice import Chooser, PrivateChoice

# Of more of them a ballot for the worst is no ballot: it would be capped.
_NUM_TRIALS = 2


@dataclass(frozen=True)
class TunerAuditPlan(TuningAuditPlan):
    """Which choices of a tuner are drawn: see `of`, and `TuningAuditPlan`.

    Attributes
    ----------
    choice : PrivateChoice
        Whose rungs all end with a release.
    """

    choice: PrivateChoice = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        last = self.choice.last_rung
        require(last == "release", "last_rung", last, "'release', for an audit")

    @classmethod
    def of(
        cls, choice: PrivateChoice, num_clients: int, num_rungs: int, num_draws: int
    ) -> Self:
        """Return the plan of a tuner, with the noise that the tuner plans."""
        chooser = Chooser(choice, num_clients, num_rungs, noise_seed=0)
        release, rungs = chooser.release, tuple(range(num_rungs))
        assert isinstance(release, Release)
        about = release.settings, choice.delta, rungs, _NUM_TRIALS, num_draws
        return cls(*about, choice=choice)

    @cached_property
    def _chooser(self) -> Chooser:
        num_clients, num_rungs = self.settings.num_agents, len(self.iterations)
        return Chooser(self.choice, num_clients, num_rungs, noise_seed=0)

    @property
    def direction(self) -> FloatArray:
        """A ballot for the second trial."""
        return np.array(ballot_entries(_NUM_TRIALS, self.choice.ballot))

    def describe(self) -> dict[str, str]:
        """Return what is drawn, in words."""
        return {
            **super().describe(),
            "Study": f"{self.settings.num_agents} clients, "
            f"{len(self.iterations)} rungs with {_NUM_TRIALS} trials each",
            "Canary": f"client {self.canary}: ballots 10 times too long against "
            f"{self.absence}; the others send zeros",
        }

    def _study(self, mechanism: Any, rounds: list[Messages]) -> FloatArray:
        """Return the scores that one tuner releases, shape (K, 1, 2)."""
        chooser = copy(self._chooser)
        chooser.release = mechanism
        scores = [
            chooser.choose(rung, ballots, _NUM_TRIALS).scores
            for rung, ballots in enumerate(rounds)
        ]
        return np.array(scores)[:, None]

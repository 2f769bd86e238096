"""Whole tuning studies with secure aggregation, drawn for an audit.

The adversary is the server together with all sites that are not counted on. It knows
their messages and their shares of the noise, so only those of the honest sites are left
in what it learns. The canary is one of the honest sites.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.validation import require, require_int
from flwr_fbo.lab.audit.secure_faults import SECURE_FAULTS, BuildSites
from flwr_fbo.lab.audit.secure_sites import SecureSites
from flwr_fbo.lab.audit.tuning_audit import Absence, Messages, TuningAuditPlan
from flwr_fbo.privacy.noise import Entropy
from flwr_fbo.privacy.secure_release import SecureRelease


@dataclass(frozen=True)
class SecureAuditPlan(TuningAuditPlan):
    """Which studies with secure aggregation are drawn; see `TuningAuditPlan`.

    Attributes
    ----------
    absence : {"zeros"}
        A site that is missing changes who is in the sum, which is public.
    honest : int
        Number H of sites, from 1 to N, whose shares alone give the planned noise.
    """

    absence: Absence = "zeros"
    honest: int = 2

    faults = SECURE_FAULTS

    def __post_init__(self) -> None:
        super().__post_init__()
        SecureRelease(self.settings)  # which names what sites cannot keep
        zeros = self.absence == "zeros"
        require(zeros, "absence", self.absence, "'zeros', with secure aggregation")
        require_int("honest", self.honest, 1, self.settings.num_agents)

    @property
    def honest_slots(self) -> tuple[int, ...]:
        """The slots that keep their shares secret: the canary and those after it."""
        num_agents = self.settings.num_agents
        return tuple((self.canary + k) % num_agents for k in range(self.honest))

    def describe(self) -> dict[str, str]:
        """Return what is drawn, in words."""
        colluding = self.settings.num_agents - self.honest
        lines = super().describe()
        return {
            **lines,
            "Privacy": f"{lines['Privacy']}; secure sums, honest = {self.honest}, "
            f"colluding = {colluding}",
        }

    def _maker(
        self, entropy: Entropy, build: BuildSites | None
    ) -> Callable[[], SecureSites]:
        make = build or SecureSites
        about = self.settings, entropy, self.num_features, self.honest_slots
        return lambda: make(*about)

    def _study(self, sites: SecureSites, rounds: list[Messages]) -> FloatArray:
        """Return the releases of one study as the adversary learns them."""
        server = self.server(sites.release)
        for iteration, messages in zip(self.iterations, rounds, strict=True):
            learnt = sites.learnt(iteration, messages)
            server.receive_sum(server.step(iteration), sites.noise, learnt)
        return np.array([row.vectors for row in server.ledger])

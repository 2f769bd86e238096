"""Whole regressions, as an agent of `FedGOUCB` runs them, drawn for an audit.

In each of n steps the agent hands out the private sum of its trials' clipped gradients.
The canary is one trial: its gradient is ten times as long as the clip allows, and where
the trial is replaced it is the opposite. An adversary who is the server chooses where
gradients are taken, so their sign changes from step to step. All other gradients are 0.

Phase II of `FedGOUCB` releases running sums by the mechanism of `FedUCB`: see
`flwr_fbo.audit.bandit_audit`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from flwr_fbo._arrays import FloatArray
from flwr_fbo._validation import require, require_int
from flwr_fbo.audit.evidence import LOUDNESS, Evidence, alternating, joined
from flwr_fbo.audit.planted_faults import GRADIENT_FAULTS, BuildGradient
from flwr_fbo.audit.study_audit import Progress, StudyPlan
from flwr_fbo.privacy.accounting import PrivacySpent
from flwr_fbo.privacy.gaussian import gaussian_epsilon
from flwr_fbo.privacy.gradients import GradientRelease, GradientSettings
from flwr_fbo.privacy.noise import Entropy

_CHUNK = 1000


@dataclass(frozen=True)
class GradientAuditPlan(StudyPlan):
    """Which regressions are drawn, and how many.

    Attributes
    ----------
    settings : GradientSettings
        Of an agent, with noise. All n releases are made.
    num_requests : int
        How often every release is asked for, as after lost replies, >= 1. The mean of
        the answers is what the adversary gets.
    num_draws : int
        See `StudyPlan`.
    """

    settings: GradientSettings
    num_requests: int = 2
    num_draws: int = 10_000

    faults = GRADIENT_FAULTS

    def __post_init__(self) -> None:
        super().__post_init__()
        epsilon = self.settings.epsilon
        noisy = self.settings.noise_std > 0
        require(noisy, "epsilon", epsilon, "finite, where there is a promise")
        require_int("num_requests", self.num_requests, 1)

    @property
    def promised(self) -> PrivacySpent:
        """Epsilon of all steps together, at the settings' delta."""
        s = self.settings
        mu = math.sqrt(s.num_releases) * s.sensitivity / s.noise_std
        epsilon = gaussian_epsilon(s.delta, mu)
        return PrivacySpent(epsilon, s.delta, s.num_releases, "mu-GDP")

    def describe(self) -> dict[str, str]:
        """Return what is drawn, in words."""
        s = self.settings
        return {
            "Study": f"regression, n = {s.num_releases} steps, gradients of "
            f"{s.size} coordinates",
            "Privacy": f"clip norm {s.clip_norm:g}, noise {s.noise_std:.4g}",
            "Canary": "one trial's gradient, 10 times the clip norm, against its "
            f"opposite; {self.num_requests} requests each",
        }

    def draw(
        self, entropy: Entropy, build: BuildGradient | None, progress: Progress
    ) -> tuple[Evidence, Evidence]:
        """Return studies with the trial and with its opposite; see `StudyPlan`."""
        make = build or GradientRelease
        s = self.settings
        direction = np.full(s.size, s.clip_norm / math.sqrt(s.size))
        rows = alternating(s.num_releases)[:, None] * direction
        present, absent = (
            [s.clipped_sum(sign * LOUDNESS * row[None]) for row in rows]
            for sign in (1.0, -1.0)
        )
        with_trial, without = (
            self._world(lambda: make(s, entropy), sums, np.array(absent), progress)
            for sums in (present, absent)
        )
        return with_trial, without

    def _world(
        self,
        build: Callable[[], GradientRelease],
        sums: list[FloatArray],
        absent: FloatArray,
        progress: Progress,
    ) -> Evidence:
        """Return the evidence of one world, in chunks that fit in memory."""
        std, parts = self.settings.noise_std, []
        shifts = -2 * absent / std  # the sums in the two worlds are opposites
        for start in range(0, self.num_draws, _CHUNK):
            size = min(_CHUNK, self.num_draws - start)
            released = np.array([self._study(build(), sums) for _ in range(size)])
            noise = (released - absent) / std
            each = np.broadcast_to(shifts, released.shape)
            parts.append(Evidence.of(released, noise, each))
            progress(size)
        return joined(parts)

    def _study(self, mechanism: GradientRelease, sums: list[FloatArray]) -> FloatArray:
        """Return the releases of one study, shape (n, d)."""
        answers = [
            [mechanism.release(k, total) for _ in range(self.num_requests)]
            for k, total in enumerate(sums, 1)
        ]
        return np.asarray(np.mean(answers, axis=1))

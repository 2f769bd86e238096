"""The server of FTS-DE, DP-FTS and DP-FTS-DE (Dai, Low & Jaillet, 2021).

FTS-DE is z = 0, q = 1, S = inf; DP-FTS is P = 1; DP-FTS-DE is the general case.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._validation import require_int
from flwr_fbo.privacy.accounting import PrivacySpent, ReleaseAccountant
from flwr_fbo.privacy.release import Release

FloatArray = NDArray[np.float64]

_LARGE_DELTA = 1e-2


class DistributedExplorationServer:
    """Releases one private vector a sub-region from the agents' messages.

    Parameters
    ----------
    release : Release
    num_features : int
        M, the length of a message, >= 1.
    delta : float
        In (0, 1): where epsilon is reported.
    horizon : int, optional
        T, the last iteration. Its messages would be of no use, so they are neither
        asked for nor released. None releases after every iteration.
    """

    def __init__(
        self,
        release: Release,
        num_features: int,
        delta: float,
        horizon: int | None = None,
    ) -> None:
        require_int("num_features", num_features, 1)
        self.release = release
        self.horizon = horizon
        self.vectors: FloatArray | None = None
        self._num_features = num_features
        self.delta = delta
        settings = release.settings
        self._accountant = ReleaseAccountant(settings.sampling_probability, delta)
        self._last_release = -1

    @property
    def num_agents(self) -> int:
        """N, the slots of the study."""
        return self.release.settings.num_agents

    @property
    def num_releases(self) -> int:
        """Releases made so far."""
        return self._last_release + 1

    def wants_messages(self, iteration: int) -> bool:
        """Return whether a release follows ``iteration``."""
        return self.horizon is None or iteration < self.horizon

    def receive(self, iteration: int, messages: Mapping[int, Any]) -> None:
        """Release the messages of ``iteration`` as the new ``vectors``.

        Raises
        ------
        ValueError
            If ``iteration`` is not the next one to be released: a second draw of noise
            for one round would break the guarantee.
        """
        if not self.wants_messages(iteration):
            return
        if iteration != self._last_release + 1:
            raise ValueError(
                f"iteration={iteration} cannot be released: iterations up to "
                f"{self._last_release} have been, the next is {self._last_release + 1}."
            )
        # Charged first: whatever happens next, what may have left has been paid for.
        self._last_release = iteration
        noise_multiplier = self.release.effective_noise_multiplier(iteration)
        if noise_multiplier > 0:
            self._accountant.charge(noise_multiplier)
        self.vectors = self.release.release(iteration, messages, self._num_features)

    @property
    def privacy_spent(self) -> PrivacySpent:
        """Epsilon at delta of all releases so far, in Flower's type.

        Infinite where the releases had no noise; 0 where they carried no agent's
        contribution.
        """
        settings = self.release.settings
        if settings.noise_only or self.num_releases == 0:
            return PrivacySpent(0.0, self.delta, self.num_releases, "none")
        if settings.noise_multiplier == 0:
            return PrivacySpent(math.inf, self.delta, self.num_releases, "none")
        return self._accountant.spent()

    def summary(self) -> list[str]:
        """Describe the settings, a line each."""
        s = self.release.settings
        lines = [
            f"{s.num_agents} agents, {s.num_sub_regions} sub-regions, "
            f"{self._num_features} features",
            f"sampling probability {s.sampling_probability:g}, "
            f"clip norm {s.clip_norm:g}, "
            f"noise multiplier {s.noise_multiplier:g} ({s.calibration} calibration), "
            f"delta {self.delta:.3g}",
        ]
        if s.noise_only:
            lines.append("control: every contribution is replaced by zero")
        elif s.noise_multiplier == 0:
            lines.append("NOT PRIVATE: noise_multiplier is 0, nothing is protected")
        elif not self.release.private:
            lines.append("NOT PRIVATE: the noise is seeded, for an experiment only")
        elif self.delta > _LARGE_DELTA:
            lines.append(
                f"WARNING: delta = {self.delta:.2g} lets the guarantee fail with that "
                f"probability; choose one far below 1/{s.num_agents}"
            )
        return lines

    def state_dict(self) -> dict[str, Any]:
        """Return released vectors and charges; never noise, sums or masks."""
        state: dict[str, Any] = {
            "json": {
                "settings": asdict(self.release.settings),
                "last_release": self._last_release,
                "accountant": self._accountant.state_dict(),
            }
        }
        if self.vectors is not None:
            state["vectors"] = self.vectors
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what ``state_dict`` returned.

        Raises
        ------
        ValueError
            If it belongs to other settings; the message names the difference.
        """
        mine, stored = asdict(self.release.settings), state["json"]["settings"]
        different = {
            k: (stored.get(k), v) for k, v in mine.items() if v != stored.get(k)
        }
        if different:
            raise ValueError(f"State of other settings (stored, now): {different}.")
        self._last_release = int(state["json"]["last_release"])
        self._accountant.load_state_dict(state["json"]["accountant"])
        self.vectors = state.get("vectors")

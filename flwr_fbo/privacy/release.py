"""One release of DP-FTS-DE: sample, clip, weight, add noise (lines 4 to 9, server).

One object holds all that the guarantee rests on, so that no two of them can disagree:

    omega^(i) = (1/q) sum_{n sampled} phi_n^(i) clip(omega_n, S/sqrt(P)) + N(0, s_i^2 I)

for the P sub-regions i, where every agent n is sampled with probability q on its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._validation import is_number, require, require_int
from flwr_fbo.models.threads import one_blas_thread
from flwr_fbo.privacy.noise import Entropy
from flwr_fbo.privacy.weights import WeightSchedule

FloatArray = NDArray[np.float64]
_LARGEST_ENTRY = 1e100

Calibration = Literal["joint", "published", "published-per-region"]


@dataclass(frozen=True)
class ReleaseSettings:
    """What the guarantee rests on; public, and fixed for a study.

    Attributes
    ----------
    num_agents : int
        N >= 1, the slots of the study, whoever answers.
    num_sub_regions : int
        P >= 1.
    clip_norm : float
        S > 0; inf (no clipping) only without noise. A message is clipped to norm
        S / sqrt(P).
    noise_multiplier : float
        z from 0 to 1e6; 0 releases without privacy.
    sampling_probability : float
        q in (0, 1].
    calibration : {"joint", "published", "published-per-region"}
        What z is multiplied with. ``"joint"``: the exact sensitivity of the P vectors
        together. ``"published"``: phi_max S, as in the paper, which is up to sqrt(P)
        times that. ``"published-per-region"``: the same with the largest weight of each
        sub-region.
    noise_only : bool
        The control: every contribution is replaced by zero, all else stays.
    weights : WeightSchedule
    """

    num_agents: int
    num_sub_regions: int = 1
    clip_norm: float = 22.0
    noise_multiplier: float = 1.0
    sampling_probability: float = 0.35
    calibration: Calibration = "joint"
    noise_only: bool = False
    weights: WeightSchedule = field(default_factory=WeightSchedule)

    def __post_init__(self) -> None:
        require_int("num_agents", self.num_agents, 1)
        require_int("num_sub_regions", self.num_sub_regions, 1)
        z, s, q = self.noise_multiplier, self.clip_norm, self.sampling_probability
        ok = is_number(z) and 0 <= z <= 1e6
        require(ok, "noise_multiplier", z, "a number from 0 to 1e6")
        require(is_number(s) and s > 0, "clip_norm", s, "a number > 0")
        clipped = z == 0 or s < math.inf
        require(clipped, "clip_norm", s, "finite where noise_multiplier > 0")
        ok = is_number(q) and 1e-9 <= q <= 1
        require(ok, "sampling_probability", q, "a number in (0, 1], at least 1e-9")
        ok = self.calibration in get_args(Calibration)
        allowed = f"one of {get_args(Calibration)}"
        require(ok, "calibration", self.calibration, allowed)


class Release:
    """The mechanism: messages in, private vectors out.

    Formal guarantees
    -----------------
    Adjacency: two studies are neighbours if they differ in that one agent's messages
    are all zeroed. Protected is the content of an agent's messages, and so all data
    they were computed from. Each release is a Poisson-subsampled Gaussian mechanism
    with sampling probability q and at least ``effective_noise_multiplier(t)`` times
    its L2 sensitivity as noise (joint over the P vectors): in round t agent n adds at
    most (S/sqrt(P)) ||phi_n||_2 to the weighted sum, and weights, slots, q and the
    divisor 1/q are public and do not depend on the messages. A missing, non-finite or
    misshapen message counts as zero; an empty sample still gets its noise.

    The promise needs: entropy that is private; at most one message per agent and round
    (the caller's mapping has one per slot); and the caller never asks twice for one
    round. Not covered: who answers and when, metrics, the agent's choice to join.
    """

    def __init__(self, settings: ReleaseSettings, entropy: Entropy | None) -> None:
        needs_entropy = (
            settings.noise_multiplier > 0 or settings.sampling_probability < 1
        )
        if needs_entropy and entropy is None:
            raise ValueError("A release with noise or sampling needs entropy.")
        self.settings = settings
        self._entropy = entropy

    def with_noise_multiplier(self, noise_multiplier: float) -> Release:
        """Return the same mechanism with another z."""
        settings = replace(self.settings, noise_multiplier=noise_multiplier)
        return Release(settings, self._entropy)

    @property
    def private(self) -> bool:
        """Whether its releases are differentially private."""
        has_noise = self.settings.noise_multiplier > 0
        return has_noise and self._entropy is not None and self._entropy.private

    def weights(self, iteration: int) -> FloatArray:
        """Return phi of shape (N, P)."""
        s = self.settings
        return s.weights.weights(iteration, s.num_agents, s.num_sub_regions)

    def sensitivity(self, iteration: int) -> float:
        """Return the exact L2 sensitivity Delta of the P weighted sums together."""
        s = self.settings
        reach = np.linalg.norm(self.weights(iteration), axis=1).max()
        return float(s.clip_norm / math.sqrt(s.num_sub_regions) * reach)

    def noise_std(self, iteration: int) -> FloatArray:
        """Return the standard deviation of the noise in each vector, shape (P,)."""
        s = self.settings
        if s.noise_multiplier == 0:
            return np.zeros(s.num_sub_regions)
        scale: FloatArray
        if s.calibration == "joint":
            scale = np.full(s.num_sub_regions, self.sensitivity(iteration))
        else:
            scale = s.clip_norm * self.weights(iteration).max(axis=0)
            if s.calibration == "published":
                scale = np.full(s.num_sub_regions, scale.max())
        return np.asarray(s.noise_multiplier * scale / s.sampling_probability)

    def effective_noise_multiplier(self, iteration: int) -> float:
        """Return noise over exact sensitivity: what the round is charged at.

        It equals ``noise_multiplier`` under ``"joint"``, and exceeds it under the
        published calibrations.
        """
        s = self.settings
        if s.noise_multiplier == 0 or s.calibration == "joint":
            return s.noise_multiplier
        std = self.noise_std(iteration) * s.sampling_probability
        reach = np.linalg.norm(self.weights(iteration) / std, axis=1).max()
        return float(math.sqrt(s.num_sub_regions) / (s.clip_norm * reach))

    @one_blas_thread
    def release(
        self, iteration: int, messages: Mapping[int, Any], num_features: int
    ) -> FloatArray:
        """Draw one release.

        Parameters
        ----------
        iteration : int
            t >= 0.
        messages : mapping of slot to ndarray of shape (M,)
            What arrived, whatever it is. The sum runs in slot order.
        num_features : int
            M.

        Returns
        -------
        ndarray of shape (P, M)
        """
        s = self.settings
        rows = np.zeros((s.num_agents, num_features))
        if not s.noise_only:
            for slot in range(s.num_agents):
                rows[slot] = self._contribution(messages.get(slot), num_features)
        weights = self.weights(iteration)
        if s.sampling_probability < 1:
            assert self._entropy is not None
            mask = self._entropy.mask(iteration, s.num_agents, s.sampling_probability)
            weights = weights * mask[:, None]
        vectors = np.asarray(weights.T @ rows / s.sampling_probability)
        if s.noise_multiplier == 0:
            return vectors
        assert self._entropy is not None
        return self._entropy.add_noise(iteration, vectors, self.noise_std(iteration))

    def _contribution(self, received: Any, num_features: int) -> FloatArray:
        """Return what an agent adds: clipped, and zero where it makes no sense."""
        message = usable_message(received, num_features)
        if message is None:
            return np.zeros(num_features)
        limit = self.settings.clip_norm / math.sqrt(self.settings.num_sub_regions)
        norm = float(np.linalg.norm(message))
        # A few units in the last place short, so that rounding cannot exceed the limit.
        limit *= 1.0 - 1e-14
        return message if norm <= limit else np.asarray(message * (limit / norm))


def usable_message(message: Any, num_features: int) -> FloatArray | None:
    """Return a message as float64 of shape (M,), or None if it is not one.

    Entries must be real numbers no larger than 1e100 in size: what is larger could
    overflow in a sum without clipping.
    """
    if not isinstance(message, np.ndarray) or message.shape != (num_features,):
        return None
    if message.dtype.kind not in "fiu" or message.dtype.itemsize > 8:
        return None
    values = message.astype(np.float64)
    # A NaN compares false, as it should.
    return values if bool(np.all(np.abs(values) <= _LARGEST_ENTRY)) else None

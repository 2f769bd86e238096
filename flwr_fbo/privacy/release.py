"""One release of a tuning study: sample, clip, weight, add noise.

Of FedVote, FedWarmStart and DP-FTS-DE (its Algorithm 1).

One object holds all that the guarantee rests on, so that no two of them can disagree:

    omega^(i) = (1/q) sum_{n sampled} phi_n^(i) clip(omega_n, S/sqrt(P)) + N(0, s_i^2 I)

for the P sub-regions i, where every agent n is sampled with probability q on its own,
or where a fixed number q N of them is drawn without replacement.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray, one_blas_thread
from flwr_fbo._common.fields import (
    check_fields,
    choice,
    flag,
    instance,
    integer,
    number,
    ruled,
)
from flwr_fbo._common.validation import require, require_number
from flwr_fbo._common.version import __version__
from flwr_fbo.privacy.noise import Entropy
from flwr_fbo.privacy.sampling import PROBABILITY, Sampling, Subsampling
from flwr_fbo.privacy.weights import WeightSchedule

# What is larger could overflow in a sum without clipping.
_LARGEST_ENTRY = 1e100

Calibration = Literal["joint", "published"]


def _check_clip_norm(name: str, value: Any) -> None:
    if value != math.inf:  # without clipping; what is beyond vanishes when squared
        expected = "a number from 1e-100 to 1e100, or infinity"
        require_number(name, value, 1e-100, 1e100, allowed=expected)


@dataclass(frozen=True)
class ReleaseSettings:
    """Settings that the guarantee rests on; public, and fixed for a study.

    Attributes
    ----------
    num_agents : int
        N >= 1, the slots of the study, whoever answers.
    num_sub_regions : int
        P >= 1.
    clip_norm : float
        S, from 1e-100 to 1e100; inf (no clipping) only without noise. A message is
        clipped to norm S / sqrt(P).
    noise_multiplier : float
        z from 0 to 1e6; 0 releases without privacy.
    sampling_probability : float
        q in (0, 1].
    sampling : {"poisson", "fixed-size"}
        ``"poisson"``: every agent on its own. ``"fixed-size"``: B = q N agents, an
        integer, without replacement; under its relation, replace-one, the sensitivity
        is twice as large, only Renyi accounting knows it, and its epsilon is not
        comparable with that of the other.
    calibration : {"joint", "published"}
        Sensitivity that z is multiplied with. ``"joint"``: the exact sensitivity of the
        P vectors together. ``"published"``: phi_max S, as in the paper, which is up to
        sqrt(P) times that. The published noise does not double where the sample has a
        fixed size (section 5.2, footnote 14): z is then charged at half its value, or
        more.
    noise_only : bool
        The control: every contribution is replaced by zero, all else stays.
    weights : WeightSchedule
        Weights of the agents in each sub-region, by round.
    distance : float, optional
        Largest distance of neighbours' messages, where they differ in one example of an
        agent; from 1e-100 to 1e100. None: they differ in an agent's whole message,
        which is zeroed, or replaced where ``sampling`` says so. It is what z is
        multiplied with, in place of the clipping norm.
    """

    num_agents: int = field(metadata=integer(1, cap="max_agents"))
    num_sub_regions: int = field(default=1, metadata=integer(1, cap="max_dimension"))
    clip_norm: float = field(default=22.0, metadata=ruled(_check_clip_norm))
    noise_multiplier: float = field(default=1.0, metadata=number(0, 1e6))
    sampling_probability: float = field(default=0.35, metadata=PROBABILITY)
    sampling: Sampling = field(default="poisson", metadata=choice(Sampling))
    calibration: Calibration = field(default="joint", metadata=choice(Calibration))
    noise_only: bool = field(default=False, metadata=flag())
    weights: WeightSchedule = field(
        default_factory=WeightSchedule,
        metadata=instance(WeightSchedule, part=WeightSchedule),
    )
    distance: float | None = field(
        default=None, metadata=number(1e-100, 1e100, optional=True)
    )

    def __post_init__(self) -> None:
        check_fields(self)
        # Without clipping the sensitivity is infinite: no noise would be enough.
        is_bounded = self.noise_multiplier == 0 or self.clip_norm < math.inf
        expected = "finite where noise_multiplier > 0"
        require(is_bounded, "clip_norm", self.clip_norm, expected)
        # Nobody has a proof here for a distance with samples, or with other noise.
        is_plain = self.sampling_probability == 1 and self.sampling == "poisson"
        is_plain = (
            is_plain and self.calibration == "joint" and self.num_sub_regions == 1
        )
        expected = "None with sampling, sub-regions or the published calibration"
        require(self.distance is None or is_plain, "distance", self.distance, expected)
        _ = self.subsampling  # which names a fixed sample size that is none

    @property
    def message_norm(self) -> float:
        """Clipping norm of one message: S / sqrt(P)."""
        return self.clip_norm / math.sqrt(self.num_sub_regions)

    @property
    def subsampling(self) -> Subsampling:
        """The sampling scheme, for sampler and accountant alike."""
        if self.sampling == "fixed-size":
            return Subsampling.fixed_size(self.sampling_probability, self.num_agents)
        return Subsampling.poisson(self.sampling_probability)


class PlannedRelease(ABC):
    """Weights and noise of releases, which are public before anything is released.

    Parameters
    ----------
    settings : ReleaseSettings
        Sampling, clipping, weights and noise of all releases.
    """

    def __init__(self, settings: ReleaseSettings) -> None:
        self.settings = settings
        self._weights: tuple[int, FloatArray] | None = None

    @abstractmethod
    def with_noise_multiplier(self, noise_multiplier: float) -> PlannedRelease:
        """Return the same mechanism with another z."""

    @property
    @abstractmethod
    def private(self) -> bool:
        """True if its releases are differentially private."""

    def weights(self, iteration: int) -> FloatArray:
        """Return phi of shape (N, P)."""
        if self._weights is None or self._weights[0] != iteration:
            s = self.settings
            phi = s.weights.weights(iteration, s.num_agents, s.num_sub_regions)
            self._weights = iteration, phi
        return self._weights[1]

    def sensitivity(self, iteration: int) -> float:
        """Return the exact L2 sensitivity of the P weighted sums together.

        Delta = max_n (S/sqrt(P)) ||phi_n||_2 where an agent can be zeroed, 2 Delta
        where it can be replaced. Where one of its examples is, ``distance`` stands for
        S.
        """
        # All P vectors of one agent move together: the norm of its row of weights, and
        # not P times the largest weight.
        reach = np.linalg.norm(self.weights(iteration), axis=1).max()
        return float(self._farthest * reach)

    def noise_std(self, iteration: int) -> FloatArray:
        """Return the standard deviation of the noise in each vector, shape (P,)."""
        s = self.settings
        if s.noise_multiplier == 0:
            return np.zeros(s.num_sub_regions)
        if s.calibration == "joint":
            scale = self.sensitivity(iteration)
        else:
            # Section 3.2 of the paper: phi_max S bounds each vector, not all together.
            scale = s.clip_norm * float(self.weights(iteration).max())
        # The sum is divided by q: so is its sensitivity, and the noise with it.
        std = s.noise_multiplier * scale / s.sampling_probability
        return np.full(s.num_sub_regions, std)

    def effective_noise_multiplier(self, iteration: int) -> float:
        """Return noise over exact sensitivity: what the round is charged at.

        It equals ``noise_multiplier`` under ``"joint"``. Under
        ``"published"`` it exceeds that, or half of it with samples of a fixed size.
        """
        s = self.settings
        if s.noise_multiplier == 0 or s.calibration == "joint":
            return s.noise_multiplier
        # The noise of each sub-region as the unit of its vector: then it is isotropic,
        # and one over the sensitivity in these units is the multiplier.
        std = self.noise_std(iteration) * s.sampling_probability
        reach = np.linalg.norm(self.weights(iteration) / std, axis=1).max()
        return float(1.0 / (self._farthest * reach))

    def facts(self, iteration: int) -> dict[str, Any]:
        """Return what the ledger says of a release besides its vectors.

        That is what an auditor needs to charge it again; never the noise, the sum
        before the noise, or who was sampled.
        """
        settings = self.settings
        return {
            # What the round is charged at: noise over exact sensitivity.
            "noise_multiplier": self.effective_noise_multiplier(iteration),
            **asdict(settings.subsampling),
            "sensitivity": self.sensitivity(iteration),
            "noise_std": self.noise_std(iteration).tolist(),
            "private": self.private,
            "noise_only": settings.noise_only,
            "flwr_fbo": __version__,
        }

    @property
    def _farthest(self) -> float:
        """Largest distance of neighbours' messages, after clipping."""
        s = self.settings
        if s.distance is not None:  # clipping to a ball brings none further apart
            return s.distance
        # A message that is replaced can turn into its opposite: twice as far as one
        # that is zeroed.
        return s.message_norm * (2.0 if s.sampling == "fixed-size" else 1.0)


class Release(PlannedRelease):
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

    With ``sampling="fixed-size"`` two studies are neighbours if one agent's messages
    are all *replaced* by others. Exactly B = q N agents are sampled without
    replacement, the divisor is B/N, and the sensitivity is twice that above: from a
    clipped vector to its opposite, or from one sampled agent to another, which is what
    amplification by such sampling rests on (Wang, Balle & Kasiviswanathan, 2019).
    Epsilon under one relation does not compare with epsilon under the other.

    With ``distance`` two studies are neighbours if one example of one agent is
    replaced, and its messages are that far apart at most before they are clipped; the
    caller has to know that. The sensitivity is then ``distance`` times the weight.

    ``settings.subsampling`` is the scheme that is drawn from, and what a
    `ReleaseAccountant` takes: the two cannot disagree.

    The promise needs: entropy that is private; at most one message per agent and round
    (the caller's mapping has one per slot); and the caller never asks twice for one
    round. Not covered: who answers and when, metrics, the agent's choice to join.
    """

    def __init__(self, settings: ReleaseSettings, entropy: Entropy | None) -> None:
        # Sampling needs it too: a mask that can be predicted amplifies nothing.
        is_random = settings.noise_multiplier > 0 or settings.sampling_probability < 1
        if is_random and entropy is None:
            raise ValueError("A release with noise or sampling needs entropy.")
        super().__init__(settings)
        self._entropy = entropy
        self._planned: tuple[int, FloatArray, FloatArray] | None = None

    def with_noise_multiplier(self, noise_multiplier: float) -> Release:
        """Return the same mechanism with another z."""
        settings = replace(self.settings, noise_multiplier=noise_multiplier)
        return Release(settings, self._entropy)

    @property
    def private(self) -> bool:
        """True if its releases are differentially private."""
        # Whoever knows the seed of the noise can subtract it.
        has_noise = self.settings.noise_multiplier > 0
        return has_noise and self._entropy is not None and self._entropy.private

    @one_blas_thread
    def release(
        self, iteration: int, messages: Mapping[int, Any], num_features: int
    ) -> FloatArray:
        """Draw one release, shape (P, M).

        Parameters
        ----------
        iteration : int
            t >= 0.
        messages : mapping of slot to ndarray of shape (M,)
            Messages as they arrived, of any type. The sum runs in slot order.
        num_features : int
            M.
        """
        s = self.settings
        weights, noise_std = self._plan(iteration)
        # Told to nobody: amplification by sampling rests on that secret.
        mask = self._sample(iteration)
        if mask is not None:
            weights = weights * mask[:, None]
        if s.noise_only:
            # The control has the noise of a study, and nothing of anybody's messages.
            vectors = np.zeros((s.num_sub_regions, num_features))
        else:
            rows = np.zeros((s.num_agents, num_features))
            # A message that makes no sense counts as zero, like one that is missing.
            for slot in range(s.num_agents):
                message = messages.get(slot)
                if (
                    isinstance(message, np.ndarray)
                    and message.shape == (num_features,)
                    and message.dtype.kind in "fiu"
                    and message.dtype.itemsize <= 8
                ):
                    rows[slot] = message
            # A NaN compares false, as it should.
            rows[~np.all(np.abs(rows) <= _LARGEST_ENTRY, axis=1)] = 0.0
            clipped(rows, s.message_norm)
            # Over q, not over how many were sampled: that number is a secret.
            vectors = np.asarray(weights.T @ rows / s.sampling_probability)
        if s.noise_multiplier == 0:
            return vectors
        assert self._entropy is not None
        return self._entropy.add_noise(iteration, vectors, noise_std)

    def _plan(self, iteration: int) -> tuple[FloatArray, FloatArray]:
        """Return weights and noise of a round; an audit draws one round for ever."""
        if self._planned is None or self._planned[0] != iteration:
            weights, noise_std = self.weights(iteration), self.noise_std(iteration)
            self._planned = (iteration, weights, noise_std)
        return self._planned[1:]

    def _sample(self, iteration: int) -> NDArray[np.bool_] | None:
        """Return who is sampled; None means all."""
        s = self.settings
        if s.sampling_probability == 1:
            return None  # everybody is in it: there is no secret to draw
        assert self._entropy is not None
        if s.sampling == "fixed-size":
            sample_size = s.subsampling.sample_size
            return self._entropy.subset(iteration, s.num_agents, sample_size)
        return self._entropy.mask(iteration, s.num_agents, s.sampling_probability)


def clipped(rows: FloatArray, norm: float) -> FloatArray:
    """Clip each row, in place, to an L2 norm; return them."""
    # A little short, so that rounding cannot exceed the limit, however long M.
    limit = norm * (1.0 - 1e-12)
    norms = np.sqrt(np.einsum("nm,nm->n", rows, rows))
    too_long = norms > limit
    rows[too_long] *= (limit / norms[too_long])[:, None]
    return rows

"""Releases with one mistake each, which an audit must catch.

They are what implementations get wrong, planted around the real mechanism: in its
settings, its entropy or its messages. Nothing but an audit uses them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo.privacy.audit import Mechanism
from flwr_fbo.privacy.noise import Entropy
from flwr_fbo.privacy.release import Release, ReleaseSettings
from flwr_fbo.privacy.weights import WeightSchedule

FloatArray = NDArray[np.float64]


def _half_noise(settings: ReleaseSettings, entropy: Entropy) -> Mechanism:
    halved = settings.noise_multiplier / 2
    return Release(replace(settings, noise_multiplier=halved), entropy)


def _no_clip(settings: ReleaseSettings, entropy: Entropy) -> Mechanism:
    far = 1e6
    wide = settings.clip_norm * far
    # The noise stays as it is: a clip norm times a noise multiplier.
    narrow = settings.noise_multiplier / far
    return Release(replace(settings, clip_norm=wide, noise_multiplier=narrow), entropy)


class _NoiseByReplies:
    """Noise for the share of the agents that answered."""

    def __init__(self, settings: ReleaseSettings, entropy: Entropy) -> None:
        self._correct = Release(settings, entropy)

    def release(
        self, iteration: int, messages: Mapping[int, Any], num_features: int
    ) -> FloatArray:
        settings = self._correct.settings
        share = len(messages) / settings.num_agents
        scaled = self._correct.with_noise_multiplier(share * settings.noise_multiplier)
        return scaled.release(iteration, messages, num_features)


class _CountedTwice:
    """Who sends something sends it from a second slot too, as if enrolled again."""

    def __init__(self, settings: ReleaseSettings, entropy: Entropy) -> None:
        self._correct = Release(settings, entropy)

    def release(
        self, iteration: int, messages: Mapping[int, Any], num_features: int
    ) -> FloatArray:
        settings = self._correct.settings
        # The next slot of the same sub-region.
        again = {
            (slot + settings.num_sub_regions) % settings.num_agents: message
            for slot, message in messages.items()
            if np.any(message)
        }
        return self._correct.release(iteration, {**messages, **again}, num_features)


class _FaultyEntropy:
    """An entropy that knows how many agents were sampled, to misuse it."""

    private = False

    def __init__(self, settings: ReleaseSettings, entropy: Entropy) -> None:
        self.settings = settings
        self.inner = entropy
        self.num_sampled = settings.num_agents

    def mask(self, iteration: int, num_agents: int, q: float) -> NDArray[np.bool_]:
        drawn = self.inner.mask(iteration, num_agents, q)
        self.num_sampled = int(drawn.sum())
        return drawn

    def subset(
        self, iteration: int, num_agents: int, sample_size: int
    ) -> NDArray[np.bool_]:
        return self.inner.subset(iteration, num_agents, sample_size)

    def add_noise(
        self, iteration: int, rows: FloatArray, std: FloatArray
    ) -> FloatArray:
        raise NotImplementedError


class _NoiseBySampled(_FaultyEntropy):
    """Noise for the share of the agents that were sampled."""

    def add_noise(
        self, iteration: int, rows: FloatArray, std: FloatArray
    ) -> FloatArray:
        if self.num_sampled == 0:
            return rows
        share = self.num_sampled / self.settings.num_agents
        return self.inner.add_noise(iteration, rows, std * share)


class _BareEmptySample(_FaultyEntropy):
    """Uniform[0, 1] where nobody was sampled, as in the authors' code."""

    def __init__(self, settings: ReleaseSettings, entropy: Entropy) -> None:
        super().__init__(settings, entropy)
        self._rng = np.random.default_rng(0)

    def add_noise(
        self, iteration: int, rows: FloatArray, std: FloatArray
    ) -> FloatArray:
        if self.num_sampled == 0:
            return self._rng.random(rows.shape)
        return self.inner.add_noise(iteration, rows, std)


class _UniformSensitivity(_FaultyEntropy):
    """Noise for uniform weights, whatever the weights of the round."""

    def add_noise(
        self, iteration: int, rows: FloatArray, std: FloatArray
    ) -> FloatArray:
        uniform = replace(self.settings, weights=WeightSchedule(peak=0))
        small = Release(uniform, self.inner).noise_std(iteration)
        return self.inner.add_noise(iteration, rows, small)


def _with_entropy(
    faulty: type[_FaultyEntropy],
) -> Callable[[ReleaseSettings, Entropy], Mechanism]:
    return lambda settings, entropy: Release(settings, faulty(settings, entropy))


FAULTS: dict[str, Callable[[ReleaseSettings, Entropy], Mechanism]] = {
    "half-noise": _half_noise,
    "noise-by-replies": _NoiseByReplies,
    "noise-by-sampled": _with_entropy(_NoiseBySampled),
    "no-clip": _no_clip,
    "bare-empty-sample": _with_entropy(_BareEmptySample),
    "counted-twice": _CountedTwice,
    "uniform-sensitivity": _with_entropy(_UniformSensitivity),
}
"""By name: how to build a faulty mechanism.

Three show only where they matter: ``uniform-sensitivity`` with sub-regions in an early
round, ``bare-empty-sample`` with few agents (best one), ``counted-twice`` with at least
two agents a sub-region.
"""

"""Releases with one mistake each, which an audit must catch.

They are what implementations get wrong, planted around the real mechanism: in its
settings, its entropy, its messages or its sums. Nothing but an audit uses them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._arrays import FloatArray
from flwr_fbo.audit.release_audit import ContinualMechanism, Mechanism
from flwr_fbo.privacy.continual import ContinualRelease
from flwr_fbo.privacy.continual_settings import ContinualSettings
from flwr_fbo.privacy.noise import Entropy
from flwr_fbo.privacy.release import Release, ReleaseSettings
from flwr_fbo.privacy.weights import WeightSchedule


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


class _WrappedEntropy:
    """Another's mask; noise of its own making."""

    private = False

    def __init__(self, inner: Entropy) -> None:
        self.inner = inner

    def mask(self, iteration: int, num_agents: int, q: float) -> NDArray[np.bool_]:
        return self.inner.mask(iteration, num_agents, q)

    def subset(
        self, iteration: int, num_agents: int, sample_size: int
    ) -> NDArray[np.bool_]:
        return self.inner.subset(iteration, num_agents, sample_size)

    def add_noise(
        self, iteration: int, rows: FloatArray, std: FloatArray
    ) -> FloatArray:
        raise NotImplementedError


class _FaultyEntropy(_WrappedEntropy):
    """An entropy that knows how many agents were sampled, to misuse it."""

    def __init__(self, settings: ReleaseSettings, entropy: Entropy) -> None:
        super().__init__(entropy)
        self.settings = settings
        self.num_sampled = settings.num_agents

    def mask(self, iteration: int, num_agents: int, q: float) -> NDArray[np.bool_]:
        drawn = super().mask(iteration, num_agents, q)
        self.num_sampled = int(drawn.sum())
        return drawn


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


class _LessNoise(_WrappedEntropy):
    """A share of the noise."""

    def __init__(self, inner: Entropy, share: float) -> None:
        super().__init__(inner)
        self._share = share

    def add_noise(
        self, iteration: int, rows: FloatArray, std: FloatArray
    ) -> FloatArray:
        return self.inner.add_noise(iteration, rows, std * self._share)


def _with_noise(
    share: Callable[[ContinualSettings], float],
) -> Callable[[ContinualSettings, Entropy], ContinualMechanism]:
    return lambda settings, entropy: ContinualRelease(
        settings, _LessNoise(entropy, share(settings))
    )


class _NoComposition:
    """Fresh noise for every sum, as much as one release would need by itself."""

    def __init__(self, settings: ContinualSettings, entropy: Entropy) -> None:
        self._alone = replace(settings, num_releases=1)
        self._entropy = entropy
        self._released: dict[int, FloatArray] = {}

    def release(self, k: int, running_sum: FloatArray) -> FloatArray:
        if k not in self._released:
            alone = ContinualRelease(self._alone, self._entropy)
            self._released[k] = alone.release(1, running_sum)
        return self._released[k]


class _DrawnAgain:
    """No record: all noise up to a release is drawn afresh for every request."""

    def __init__(self, settings: ContinualSettings, entropy: Entropy) -> None:
        self._settings, self._entropy = settings, entropy
        self._sums: dict[int, FloatArray] = {}

    def release(self, k: int, running_sum: FloatArray) -> FloatArray:
        self._sums[k] = running_sum
        afresh = ContinualRelease(self._settings, self._entropy)
        return [afresh.release(j, self._sums[j]) for j in range(1, k + 1)][-1]


class _SynchronisedTwice:
    """What was in the sum before is added to it, as in line 24 of FedUCB's listing."""

    def __init__(self, settings: ContinualSettings, entropy: Entropy) -> None:
        self._correct = ContinualRelease(settings, entropy)
        self._sums = {0: np.zeros((settings.dimension + 1,) * 2)}

    def release(self, k: int, running_sum: FloatArray) -> FloatArray:
        self._sums[k] = running_sum
        return self._correct.release(k, running_sum + self._sums[k - 1])


CONTINUAL_FAULTS: dict[
    str, Callable[[ContinualSettings, Entropy], ContinualMechanism]
] = {
    "half-noise": _with_noise(lambda _: 0.5),
    "add-or-remove-one": _with_noise(lambda _: math.sqrt(0.5)),
    "unit-columns": _with_noise(
        lambda settings: 1 / settings.factorisation.sensitivity
    ),
    "no-composition": _NoComposition,
    "drawn-again": _DrawnAgain,
    "synchronised-twice": _SynchronisedTwice,
}
"""The same, of a `ContinualRelease`.

``add-or-remove-one`` is for the sensitivity of a trial that is left out, L^2 + B^2: it
lacks the sqrt(2) of one that is replaced. ``unit-columns`` takes the factorisation's
sensitivity to be 1 and shows only with trees. All but ``half-noise`` and
``add-or-remove-one`` need more than one release, or more than one request.
"""

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
from scipy.special import ndtr

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.privacy.continual import ContinualRelease
from flwr_fbo.privacy.continual_settings import ContinualSettings
from flwr_fbo.privacy.noise import Entropy
from flwr_fbo.privacy.release import Release, ReleaseSettings
from flwr_fbo.privacy.weights import WeightSchedule

Build = Callable[[ReleaseSettings, Entropy], Release]
BuildContinual = Callable[[ContinualSettings, Entropy], ContinualRelease]
# From the real entropy, the iteration, what is released, the standard deviations and
# the share of the agents that was sampled, to what leaves.
Noise = Callable[[Entropy, int, FloatArray, FloatArray, float], FloatArray]


class _FaultyEntropy:
    """Another's mask; noise of a faulty kind."""

    private = False

    def __init__(self, inner: Entropy, noise: Noise) -> None:
        self._inner = inner
        self._noise = noise
        self._share = 1.0

    def mask(self, iteration: int, num_agents: int, q: float) -> NDArray[np.bool_]:
        drawn = self._inner.mask(iteration, num_agents, q)
        self._share = int(drawn.sum()) / num_agents
        return drawn

    def subset(
        self, iteration: int, num_agents: int, sample_size: int
    ) -> NDArray[np.bool_]:
        return self._inner.subset(iteration, num_agents, sample_size)

    def add_noise(
        self, iteration: int, rows: FloatArray, std: FloatArray
    ) -> FloatArray:
        return self._noise(self._inner, iteration, rows, std, self._share)


def _part_of_noise(part: float) -> Noise:
    return lambda inner, t, rows, std, share: inner.add_noise(t, rows, std * part)


def _shared_noise(part: float) -> Noise:
    """Return noise with a part of its variance shared by all releases of a study."""
    drawn: list[FloatArray] = []

    def noise(
        inner: Entropy, iteration: int, rows: FloatArray, std: FloatArray, share: float
    ) -> FloatArray:
        if not drawn:
            drawn.append(inner.add_noise(iteration, np.zeros_like(rows), std / std))
        rows = rows + math.sqrt(part) * std[:, None] * drawn[0]
        rest = std * math.sqrt(1 - part)
        return inner.add_noise(iteration, rows, rest) if part < 1 else rows

    return noise


def _noise_once() -> Noise:
    """Return noise for the first release of a study, and none for the others."""
    is_first = True

    def noise(
        inner: Entropy, iteration: int, rows: FloatArray, std: FloatArray, share: float
    ) -> FloatArray:
        nonlocal is_first
        noised = inner.add_noise(iteration, rows, std) if is_first else rows
        is_first = False
        return noised

    return noise


def _noise_by_sampled(
    inner: Entropy, iteration: int, rows: FloatArray, std: FloatArray, share: float
) -> FloatArray:
    """Add noise for the share of the agents that were sampled."""
    return rows if share == 0 else inner.add_noise(iteration, rows, std * share)


def _bare_empty_sample(
    inner: Entropy, iteration: int, rows: FloatArray, std: FloatArray, share: float
) -> FloatArray:
    """Release Uniform[0, 1] where nobody was sampled, as in the authors' code."""
    noised = inner.add_noise(iteration, rows, std)
    return ndtr(noised / std[:, None]) if share == 0 else noised


def _uniform_sensitivity(settings: ReleaseSettings) -> Noise:
    """Add noise for uniform weights, whatever the weights of the round."""
    uniform = replace(settings, weights=WeightSchedule(peak=0))

    def noise(
        inner: Entropy, iteration: int, rows: FloatArray, std: FloatArray, share: float
    ) -> FloatArray:
        small = Release(uniform, inner).noise_std(iteration)
        return inner.add_noise(iteration, rows, small)

    return noise


def _with_noise(noise: Callable[[ReleaseSettings], Noise]) -> Build:
    return lambda settings, entropy: Release(
        settings, _FaultyEntropy(entropy, noise(settings))
    )


def _no_clip(settings: ReleaseSettings, entropy: Entropy) -> Release:
    far = 1e6
    wide = settings.clip_norm * far
    # The noise stays as it is: a multiplier times the clip norm, or times a distance.
    narrow = settings.noise_multiplier / (far if settings.distance is None else 1.0)
    return Release(replace(settings, clip_norm=wide, noise_multiplier=narrow), entropy)


class _NoiseByReplies(Release):
    """Noise for the share of the agents that answered."""

    def release(
        self, iteration: int, messages: Mapping[int, Any], num_features: int
    ) -> FloatArray:
        share = len(messages) / self.settings.num_agents
        scaled = self.with_noise_multiplier(share * self.settings.noise_multiplier)
        return scaled.release(iteration, messages, num_features)


class _CountedTwice(Release):
    """Senders send from a second slot too, as if enrolled again."""

    def release(
        self, iteration: int, messages: Mapping[int, Any], num_features: int
    ) -> FloatArray:
        # The next slot of the same sub-region.
        again = {
            (slot + self.settings.num_sub_regions) % self.settings.num_agents: message
            for slot, message in messages.items()
            if np.any(message)
        }
        return super().release(iteration, {**messages, **again}, num_features)


class _SentAgain(Release):
    """Senders of a release send the same in all that follow."""

    _sent: Mapping[int, Any] | None = None

    def release(
        self, iteration: int, messages: Mapping[int, Any], num_features: int
    ) -> FloatArray:
        self._sent = {**(self._sent or {}), **messages}
        return super().release(iteration, self._sent, num_features)


def _in_low_bits(vectors: FloatArray, flags: NDArray[np.bool_]) -> FloatArray:
    """Return vectors whose lowest bits are the flags, over and over."""
    words = vectors.view(np.uint64).ravel()
    bits = np.resize(flags, words.shape).astype(np.uint64)
    marked = words & ~np.uint64(1) | bits
    return marked.view(np.float64).reshape(vectors.shape)


class _MaskInLowBits(Release):
    """The lowest bit of the n-th number tells whether agent n was sampled."""

    def _sample(self, iteration: int) -> NDArray[np.bool_] | None:
        drawn = super()._sample(iteration)
        every = np.ones(self.settings.num_agents, dtype=bool)
        self._drawn = every if drawn is None else drawn
        return drawn

    def release(
        self, iteration: int, messages: Mapping[int, Any], num_features: int
    ) -> FloatArray:
        vectors = super().release(iteration, messages, num_features)
        return _in_low_bits(vectors, self._drawn)


class _PresenceInLowBits(Release):
    """The lowest bit of the n-th number tells whether agent n sent anything."""

    def release(
        self, iteration: int, messages: Mapping[int, Any], num_features: int
    ) -> FloatArray:
        vectors = super().release(iteration, messages, num_features)
        slots = range(self.settings.num_agents)
        sent = np.array([bool(np.any(messages.get(n, 0.0))) for n in slots])
        return _in_low_bits(vectors, sent)


FAULTS: dict[str, Build] = {
    "reused-noise": _with_noise(lambda _: _shared_noise(1.0)),
    "correlated-noise": _with_noise(lambda _: _shared_noise(0.5)),
    "noise-once": _with_noise(lambda _: _noise_once()),
    "mask-in-low-bits": _MaskInLowBits,
    "presence-in-low-bits": _PresenceInLowBits,
    "sensitivity-over-sqrt-2": _with_noise(lambda _: _part_of_noise(math.sqrt(0.5))),
    "half-noise": _with_noise(lambda _: _part_of_noise(0.5)),
    "noise-9-percent-less": _with_noise(lambda _: _part_of_noise(0.91)),
    "noise-by-replies": _NoiseByReplies,
    "noise-by-sampled": _with_noise(lambda _: _noise_by_sampled),
    "no-clip": _no_clip,
    "bare-empty-sample": _with_noise(lambda _: _bare_empty_sample),
    "counted-twice": _CountedTwice,
    "uniform-sensitivity": _with_noise(_uniform_sensitivity),
}
"""By name: how to build a mechanism of one tuning study with a mistake.

Some show only where they matter: ``reused-noise``, ``correlated-noise`` and
``noise-once`` in a study of several releases; ``mask-in-low-bits``,
``noise-by-sampled`` and ``bare-empty-sample`` with sampling, the last with few agents;
``uniform-sensitivity`` with sub-regions in an early round; ``counted-twice`` with at
least two agents a sub-region. ``noise-9-percent-less`` adds a quarter at most to the
epsilon of the default studies: 10,000 draws are too few to see it.
"""

COHORT_FAULTS: dict[str, Build] = {
    "sent-again": _SentAgain,
    **{
        name: FAULTS[name]
        for name in (
            "reused-noise",
            "noise-once",
            "presence-in-low-bits",
            "sensitivity-over-sqrt-2",
            "half-noise",
            "noise-9-percent-less",
            "noise-by-replies",
            "counted-twice",
        )
    },
}
"""The same where each agent sends once, in the release of its cohort.

The others need sampling, sub-regions, or messages that are longer than is allowed,
which `FedWarmStartServer` refuses; ``correlated-noise`` needs more draws than 5,000.
"""


def _with_part(part: Callable[[ContinualSettings], float]) -> BuildContinual:
    return lambda settings, entropy: ContinualRelease(
        settings, _FaultyEntropy(entropy, _part_of_noise(part(settings)))
    )


def _reused(settings: ContinualSettings, entropy: Entropy) -> ContinualRelease:
    """Return one that has the same draw at every node of its tree."""
    return ContinualRelease(settings, _FaultyEntropy(entropy, _shared_noise(1.0)))


class _NoComposition(ContinualRelease):
    """Fresh noise for every sum, as much as one release would need by itself."""

    def _draw_release(
        self, k: int, total: FloatArray
    ) -> tuple[FloatArray, Mapping[str, FloatArray]]:
        alone = replace(self.settings, num_releases=1)
        return ContinualRelease(alone, self._entropy).release(1, total), {}


class _DrawnAgain(ContinualRelease):
    """No record: all noise up to a release is drawn afresh for every request."""

    def release(self, k: int, total: FloatArray) -> FloatArray:
        for j in range(1, k + 1):
            self._keep_draw(j, self._draw(j))
        return total + self._noise(k)


class _SynchronisedTwice(ContinualRelease):
    """Adds the earlier sum again."""

    def __init__(self, settings: ContinualSettings, entropy: Entropy) -> None:
        super().__init__(settings, entropy)
        self._sums = {0: np.zeros(settings.sum_shape)}

    def release(self, k: int, total: FloatArray) -> FloatArray:
        self._sums[k] = total
        return super().release(k, total + self._sums[k - 1])


class _LogAddedAgain(ContinualRelease):
    """Adds the first release's trials, as of a log, again before the second."""

    _first: FloatArray | None = None

    def release(self, k: int, total: FloatArray) -> FloatArray:
        if self._first is None:
            self._first = total
        again = self._first if k > 1 else np.zeros_like(total)
        return super().release(k, total + again)


CONTINUAL_FAULTS: dict[str, BuildContinual] = {
    "reused-noise": _reused,
    "half-noise": _with_part(lambda _: 0.5),
    "noise-9-percent-less": _with_part(lambda _: 0.91),
    "add-or-remove-one": _with_part(lambda _: math.sqrt(0.5)),
    "unit-columns": _with_part(lambda settings: 1 / settings.factorisation.sensitivity),
    "no-composition": _NoComposition,
    "drawn-again": _DrawnAgain,
    "synchronised-twice": _SynchronisedTwice,
    "log-added-again": _LogAddedAgain,
}
"""The same, of a `ContinualRelease`.

``add-or-remove-one`` is for the sensitivity of a trial that is left out, L^2 + B^2: it
lacks the sqrt(2) of one that is replaced. ``unit-columns`` takes the factorisation's
sensitivity to be 1 and shows only with trees. All but ``half-noise``,
``noise-9-percent-less`` and ``add-or-remove-one`` need more than one release, or more
than one request.
"""

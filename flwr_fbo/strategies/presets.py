"""Settings of private tuning strategies by name: each strategy's presets."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from flwr_fbo._common.validation import require, require_instance, require_known
from flwr_fbo.privacy.weights import WeightSchedule
from flwr_fbo.strategies.privacy_options import Privacy
from flwr_fbo.study.kinds import load
from flwr_fbo.tuning.registry import ALGORITHMS
from flwr_fbo.tuning.search.settings import SearchSettings


@dataclass(frozen=True)
class Preset:
    """Settings of a private tuning strategy.

    A strategy has them as ``presets``, by name; without names it has one, named "".

    Attributes
    ----------
    agent : SearchSettings
        The agents' settings.
    privacy : Privacy
        How releases are made. ``clip_norm`` and ``sampling_probability`` are given.
    """

    agent: SearchSettings
    privacy: Privacy

    @property
    def weights(self) -> WeightSchedule:
        """Weights of the agents in each sub-region; all the same unless given."""
        return self.privacy.weights or WeightSchedule(peak=0.0)

    def privacy_with(self, privacy: Privacy | None) -> Privacy:
        """Return given settings, with gaps filled from the preset."""
        if privacy is None:
            return self.privacy
        require_instance("privacy", privacy, Privacy)
        return privacy.filled(self.privacy)


@cache
def private_strategies() -> dict[str, Any]:
    """Return the strategies with presets by name, for files and commands."""
    named = {a.strategy for a in ALGORITHMS.values() if a.strategy}
    strategies = map(load, sorted(named))
    return {kind.__name__: kind for kind in strategies if kind.presets}


def preset_of(strategy: str, preset: str | None) -> Preset:
    """Return the settings of a strategy by name, as files and commands give them.

    Raises
    ------
    ValueError
        If there is no such strategy, or it has no such preset.
    """
    require_known("strategy", strategy, private_strategies())
    presets: dict[str, Preset] = private_strategies()[strategy].presets
    if "" in presets:
        require(preset is None, "preset", preset, f"left out, with {strategy}")
        return presets[""]
    preset = next(iter(presets)) if preset is None else preset
    require_known("preset", preset, presets)
    return presets[preset]

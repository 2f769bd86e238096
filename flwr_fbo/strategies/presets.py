"""Settings that a private tuning strategy starts from, by its name."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

from flwr_fbo._common.validation import require, require_known
from flwr_fbo.algorithms.registry import ALGORITHMS, load
from flwr_fbo.algorithms.search.settings import SearchSettings
from flwr_fbo.privacy.weights import WeightSchedule
from flwr_fbo.strategies.options import Privacy


@dataclass(frozen=True)
class Preset:
    """Settings of a private tuning strategy.

    A strategy has them as ``presets``, by name; without names it has one, named "".

    Attributes
    ----------
    agent : SearchSettings
    privacy : Privacy
    weights : WeightSchedule
        Weights of the agents in each sub-region; by default all weigh the same.
    """

    agent: SearchSettings
    privacy: Privacy
    weights: WeightSchedule = field(default_factory=lambda: WeightSchedule(peak=0.0))

    def privacy_with(self, privacy: Privacy | None) -> Privacy:
        """Return what is given, and the preset's for what is not."""
        if privacy is None:
            return self.privacy
        require(isinstance(privacy, Privacy), "privacy", privacy, "a Privacy")
        return privacy.filled(self.privacy)


@cache
def private_strategies() -> dict[str, Any]:
    """Return the strategies with presets by name, for files and commands."""
    named = {a.strategy for a in ALGORITHMS.values() if a.strategy}
    return {one.__name__: one for one in map(load, sorted(named)) if one.presets}


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

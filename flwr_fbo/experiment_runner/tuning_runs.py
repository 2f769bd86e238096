"""What a method did on one seed, where agents look for the best setting."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo.agents.tuning.base import Agent
from flwr_fbo.experiment_runner.base import Run
from flwr_fbo.space.search_space import Params
from flwr_fbo.tasks.base import Objective

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class TuningRun(Run):
    """What one method did on one seed.

    Attributes
    ----------
    best_so_far : list of N lists of T + 1 floats
        Each agent's best value after iterations 0..T; NaN before its first success.
    failed_trials : int
    best_settings : list of N dicts or None
        Where each agent had its best value; None where it had no success. Empty in
        results from before they were kept.
    """

    best_so_far: list[list[float]]
    failed_trials: int
    best_settings: list[Params | None] = field(default_factory=list)

    @property
    def curve(self) -> FloatArray:
        """The mean over agents, shape (T + 1,), leaving out those without a success."""
        return np.asarray(np.nanmean(np.array(self.best_so_far), axis=0))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TuningRun:
        """Return the run of a line."""
        best_so_far = [
            [math.nan if v is None else float(v) for v in row]
            for row in values["best_so_far"]
        ]
        return cls(
            **cls.common_of(values),
            best_so_far=best_so_far,
            failed_trials=int(values["failed_trials"]),
            best_settings=list(values.get("best_settings", [])),
        )


def tell_truth(agent: Agent, truth: Objective | None) -> None:
    """Put the objective without its noise in the place of what was observed."""
    if truth is not None:
        agent.values = [
            math.nan if math.isnan(value) else truth(agent.space.from_unit(point))
            for point, value in zip(agent.points, agent.values, strict=True)
        ]

"""Small experiments, and runs that are made up."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from optuna.distributions import BaseDistribution, FloatDistribution

from flwr_fbo.lab.experiment_runner.tuning_experiment import (
    TuningExperiment,
    TuningPrivacy,
)
from flwr_fbo.lab.experiment_runner.tuning_table import TuningRun
from flwr_fbo.lab.tasks.base import Objective, Task


@dataclass(frozen=True)
class Quadratic(Task):
    name: str = "small"
    direction: ClassVar[Literal["maximize", "minimize"]] = "maximize"
    unit: ClassVar[str] = "value"

    @property
    def space(self) -> Mapping[str, BaseDistribution]:
        return {"x": FloatDistribution(0.0, 1.0)}

    def check(self, num_clients: int) -> None:
        pass

    def objective(self, client: int, num_clients: int, seed: int) -> Objective:
        def objective(params: dict[str, Any]) -> float:
            if params["x"] < 0.05:
                raise ValueError("too small")
            return float(-((params["x"] - 0.6) ** 2) - 0.01 * client)

        return objective


SMALL = TuningExperiment(
    name="small",
    task=Quadratic(),
    num_agents=4,
    num_evaluations=12,
    privacy=TuningPrivacy(1e-3, noise_multiplier=1.0, sampling_probability=0.35),
)


LEAN = TuningExperiment(
    name="lean",
    task=Quadratic(),
    num_agents=4,
    num_evaluations=12,
    strategy="FedVote",
    privacy=TuningPrivacy(1e-3, epsilon=2.0),
)


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


TOML = """
name = "mine"
num_agents = 4
num_evaluations = 12
num_seeds = 2
preset = "paper-synthetic"

[task]
name = "synthetic"
alpha = 0.5

[privacy]
noise_multiplier = 1.0
sampling_probability = 0.35
delta = 1e-3
"""


def _made(method: str, seed: int, best_so_far: list[list[float]]) -> TuningRun:
    return TuningRun(
        method=method,
        seed=seed,
        best_so_far=best_so_far,
        epsilon=1.0,
        private=False,
        failed_trials=1,
        seconds=1.5,
    )


def _runs(levels: dict[str, list[float]]) -> list[TuningRun]:
    """Return runs of two agents; method m on seed s is at levels[m][s] throughout."""
    return [
        _made(name, seed, [[v] * 12] * 2)
        for name, values in levels.items()
        for seed, v in enumerate(values)
    ]

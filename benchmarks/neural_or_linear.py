"""Fed-GO-UCB beside a tuned linear bandit on real data, with and without privacy.

    python -m benchmarks.neural_or_linear benchmarks/neural_or_linear.jsonl

Arms are clusters of MAGIC or Shuttle, and pay the share of a class in them, with normal
noise of deviation .3 (`ClusterBanditTask`). 10 agents have 100 evaluations each, and
choose all at once, as in Flower. The columns of an arm are mapped from [-2, 2] to
[0, 1], by public numbers, and clipped.

- alone: ridge regression at each agent by itself (LinUCB), and
- pooled: shared without privacy (DisLinUCB). Each has the ridge and beta of a grid with
  the least regret on seeds 1000 and 1001.
- Fed-GO-UCB at its defaults, without privacy, and at epsilon 8, delta 1e-4.

Regret is that of all agents, on seeds 2000 to 2009. What the file has is not run again.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rows import add_rows, read_rows
from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.algorithms.fed_go_ucb.settings import FedGOUCBSettings, NeuralPrivacy
from flwr_fbo.lab.simulation.neural_bandits import (
    LinearModel,
    NeuralBanditSimulation,
    Sharing,
)
from flwr_fbo.lab.tasks.nonlinear_bandit import ClusterBanditTask, Rewarded, Table
from flwr_fbo.models.network import Network

AGENTS, ROUNDS, NOISE = 10, 100, 0.3
TUNING, SEEDS = range(1000, 1002), range(2000, 2010)
GRID = [*product((0.1, 1.0), (0.001, 0.01, 0.1))]
EPSILONS = (8.0,)
CELLS: list[tuple[Table, Rewarded]] = [
    ("magic", "gamma"),
    ("magic", "hadron"),
    ("shuttle", "normal"),
    ("shuttle", "abnormal"),
]


@dataclass(frozen=True)
class UnitClusters(ClusterBanditTask):
    """The same arms, in the unit cube."""

    def arms(self, seed: int) -> tuple[FloatArray, FloatArray]:
        """Return the arms, shape (K, D), and their mean rewards."""
        x, means = super().arms(seed)
        return np.clip((x + 2) / 4, 0, 1), means


def simulation(
    task: UnitClusters, settings: FedGOUCBSettings, sharing: Sharing, *, linear: bool
) -> NeuralBanditSimulation:
    """Return what is played."""
    make = LinearModel if linear else Network
    size = AGENTS, ROUNDS, sharing
    model = make(task.dimension)
    return NeuralBanditSimulation(settings, task, *size, at_once=True, model=model)


def linear(task: UnitClusters, ridge: float, beta: float, *, pooled: bool) -> Any:
    """Return ridge regression, of each agent alone or of all."""
    settings = FedGOUCBSettings(num_exploration=0, ridge=ridge, beta=beta)
    if pooled:
        shared = simulation(task, settings, "triggered", linear=True)
        return shared.with_linear_model()
    return simulation(task, settings, "never", linear=True)


def regret(played: NeuralBanditSimulation, seeds: range) -> list[float]:
    """Return the regret of all agents, of each seed."""
    return [round(float(played.run(seed).regret.sum()), 2) for seed in seeds]


def methods(task: UnitClusters) -> dict[str, NeuralBanditSimulation]:
    """Return what is compared, the linear ones tuned."""
    found: dict[str, NeuralBanditSimulation] = {}
    for name, pooled in (("alone", False), ("pooled", True)):
        tried = [linear(task, *point, pooled=pooled) for point in GRID]
        scores = [sum(regret(one, TUNING)) for one in tried]
        found[name] = tried[int(np.argmin(scores))]
    defaults = FedGOUCBSettings()
    found["Fed-GO-UCB"] = simulation(task, defaults, "triggered", linear=False)
    for epsilon in EPSILONS:
        privacy = NeuralPrivacy(epsilon, delta=1e-4, reward_range=(-0.5, 1.5))
        private = replace(defaults, privacy=privacy.for_study(AGENTS, ROUNDS))
        name = f"Fed-GO-UCB, epsilon {epsilon:g}"
        found[name] = simulation(task, private, "triggered", linear=False)
    return found


def main() -> None:
    """Play what the file has not, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", type=Path)
    path = parser.parse_args().rows
    rows = read_rows(path)
    done = {row["cell"] for row in rows}
    for table, rewarded in CELLS:
        cell = f"{table}, {rewarded}"
        if cell in done:
            continue
        task = UnitClusters(table=table, rewarded=rewarded, noise_std=NOISE)
        new = [
            {"cell": cell, "method": name, "regret": regret(played, SEEDS)}
            for name, played in methods(task).items()
        ]
        add_rows(path, new)
        rows += new
    by: dict[str, dict[str, FloatArray]] = defaultdict(dict)
    for row in rows:
        by[row["cell"]][row["method"]] = np.array(row["regret"])
    for cell, regrets in by.items():
        for name, values in regrets.items():
            error = values.std(ddof=1) / len(values) ** 0.5
            print(f"{cell:<18} {name:<24} {values.mean():7.1f} +- {error:.1f}")


if __name__ == "__main__":
    main()

"""Fed-GO-UCB beside tuned linear bandits and plain controls, with and without privacy.

    python -m benchmarks.neural_or_linear benchmarks/neural_or_linear.jsonl

Arms are clusters of MAGIC or Shuttle, and pay the share of a class in them
(`ClusterBanditTask`), or points of Hartmann-6 or Cosine-8; rewards have normal noise of
deviation .3. 10 agents have 100 evaluations each, and choose all at once, as in Flower.
The columns of a cluster are mapped from [-2, 2] to [0, 1], by public numbers, and
clipped.

- linear, alone: ridge regression at each agent by itself, and
- linear, pooled: shared without privacy (DisLinUCB's trigger). Each has the kind of
  exploration, the ridge and the beta of a grid with the least regret on seeds 1000 and
  1001.
- network, alone: Fed-GO-UCB at its defaults, whose agents send nothing.
- Fed-GO-UCB at its defaults, without privacy, and at epsilon 8, delta 1e-4 (clusters).
- each once: agents try each arm once, together, and then play the best; no model.

Regret is that of all agents, on seeds 2000 to 2009. What the file has is not run again.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.rows import add_rows, read_rows
from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.bandits.fed_go_ucb.settings import (
    FedGOUCBSettings,
    NeuralExploration,
    NeuralPrivacy,
)
from flwr_fbo.lab.experiment_runner.estimates import Estimate
from flwr_fbo.lab.simulation.neural_bandits import (
    EachOnce,
    LinearModel,
    NeuralBanditSimulation,
    Sharing,
)
from flwr_fbo.lab.tasks.nonlinear_bandit import (
    ClusterBanditTask,
    FunctionBanditTask,
    NonlinearBanditTask,
    Rewarded,
    Table,
)
from flwr_fbo.models.network import Network

AGENTS, ROUNDS, NOISE = 10, 100, 0.3
TUNING, SEEDS = range(1000, 1002), range(2000, 2010)
EXPLORATIONS: tuple[NeuralExploration, ...] = ("sampling", "optimism")
GRID = [*product(EXPLORATIONS, (0.1, 1.0), (0.001, 0.01, 0.1))]
EPSILON = 8.0


@dataclass(frozen=True)
class UnitClusters(ClusterBanditTask):
    """The same arms, in the unit cube."""

    def arms(self, seed: int) -> tuple[FloatArray, FloatArray]:
        """Return the arms, shape (K, D), and their mean rewards."""
        x, means = super().arms(seed)
        return np.clip((x + 2) / 4, 0, 1), means


def _clusters(table: Table, rewarded: Rewarded) -> UnitClusters:
    return UnitClusters(table=table, rewarded=rewarded, noise_std=NOISE)


TASKS: dict[str, NonlinearBanditTask] = {
    "magic, gamma": _clusters("magic", "gamma"),
    "magic, hadron": _clusters("magic", "hadron"),
    "shuttle, normal": _clusters("shuttle", "normal"),
    "hartmann": FunctionBanditTask(function="hartmann", noise_std=NOISE),
    "cosine": FunctionBanditTask(function="cosine", noise_std=NOISE),
}


def simulation(
    task: NonlinearBanditTask,
    settings: FedGOUCBSettings,
    sharing: Sharing,
    *,
    linear: bool,
) -> NeuralBanditSimulation:
    """Return what is played."""
    make = LinearModel if linear else Network
    size = AGENTS, ROUNDS, sharing
    model = make(task.dimension)
    return NeuralBanditSimulation(settings, task, *size, at_once=True, model=model)


def linear(
    task: NonlinearBanditTask,
    exploration: NeuralExploration,
    ridge: float,
    beta: float,
    *,
    pooled: bool,
) -> NeuralBanditSimulation:
    """Return ridge regression, of each agent alone or of all."""
    settings = FedGOUCBSettings(
        num_exploration=0, exploration=exploration, ridge=ridge, beta=beta
    )
    if pooled:
        shared = simulation(task, settings, "triggered", linear=True)
        return shared.with_linear_model()
    return simulation(task, settings, "never", linear=True)


def regret(played: NeuralBanditSimulation | EachOnce, seeds: range) -> list[float]:
    """Return the regret of all agents, of each seed."""
    return [round(float(played.run(seed).regret.sum()), 2) for seed in seeds]


def tuned(task: NonlinearBanditTask, *, pooled: bool) -> NeuralBanditSimulation:
    """Return the linear model with the constants that suit it."""
    tried = [linear(task, *point, pooled=pooled) for point in GRID]
    scores = [sum(regret(one, TUNING)) for one in tried]
    return tried[int(np.argmin(scores))]


def private(task: NonlinearBanditTask) -> NeuralBanditSimulation:
    """Return Fed-GO-UCB with privacy."""
    privacy = NeuralPrivacy(EPSILON, delta=1e-4, reward_range=(-0.5, 1.5))
    settings = FedGOUCBSettings(privacy=privacy.for_study(AGENTS, ROUNDS))
    return simulation(task, settings, "triggered", linear=False)


def methods(
    task: NonlinearBanditTask,
) -> dict[str, Callable[[], NeuralBanditSimulation | EachOnce]]:
    """Return what makes each of the methods that are compared."""
    usual = partial(simulation, task, FedGOUCBSettings(), linear=False)
    found: dict[str, Callable[[], NeuralBanditSimulation | EachOnce]] = {
        "linear, alone": partial(tuned, task, pooled=False),
        "linear, pooled": partial(tuned, task, pooled=True),
        "network, alone": partial(usual, "never"),
        "Fed-GO-UCB": partial(usual, "triggered"),
        "each once": partial(EachOnce, task, AGENTS, ROUNDS),
    }
    if isinstance(task, UnitClusters):
        found[f"Fed-GO-UCB, epsilon {EPSILON:g}"] = partial(private, task)
    return found


def main() -> None:
    """Play what the file has not, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", type=Path)
    path = parser.parse_args().rows
    known = {(row["cell"], row["method"]): row["regret"] for row in read_rows(path)}
    for cell, task in TASKS.items():
        for name, make in methods(task).items():
            if (cell, name) not in known:
                known[cell, name] = regret(make(), SEEDS)
                row = {"cell": cell, "method": name, "regret": known[cell, name]}
                add_rows(path, [row])
            found = Estimate.of(np.array(known[cell, name]))
            error = f"{found.mean:7.1f} ± {found.standard_error:.1f}"
            print(f"{cell:<18} {name:<24} {error}")


if __name__ == "__main__":
    main()

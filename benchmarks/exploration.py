"""What randomised exploration costs: FedUCB's regret with each kind of exploration.

    python -m benchmarks.exploration benchmarks/exploration.jsonl --seeds 20

plays the built-in experiment `feducb` (100 agents, 10,000 trials each, epsilon 1) with
every kind on the same bandits and with the same noise, and prints each one's regret
over that of `Optimism`, paired by seed. It goes on from the rows in the file.

Written down before the runs: the regret of `EllipsoidSampling` as it is by default is
at most 1.1 times that of `Optimism`. Its radius of .1 was chosen by trials of 20 agents
with 2,000 trials each, K = 10 and d = 5 or 10; its uniform share of .01 by seed 0 of
this experiment, where .05 had 3 times the regret. So seeds begin at 1.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.rows import add_rows, play_and_show, read_rows
from flwr_fbo.bandits.linear.exploration import (
    EllipsoidSampling,
    Exploration,
    Optimism,
)
from flwr_fbo.bandits.linear.settings import LinearUCBSettings
from flwr_fbo.lab.experiment_runner.config import find_experiment
from flwr_fbo.lab.experiment_runner.estimates import Estimate
from flwr_fbo.lab.experiment_runner.linear_bandit_experiment import BanditExperiment
from flwr_fbo.lab.simulation.linear_bandits import BanditSimulation, play_together

KINDS: dict[str, Exploration] = {
    "Optimism()": Optimism(),
    "EllipsoidSampling()": EllipsoidSampling(),
}


def simulations(experiment: BanditExperiment) -> dict[str, BanditSimulation]:
    """Return one simulation a kind, and of random play."""
    releases = experiment.releases()
    kinds = {
        name: BanditSimulation(
            LinearUCBSettings(
                releases,
                local_data="released",
                width="observed",
                exploration=kind,
            ),
            experiment.num_agents,
            experiment.task,
            experiment.num_iterations,
            experiment.schedule,
        )
        for name, kind in KINDS.items()
    }
    return {**kinds, "random": replace(kinds["Optimism()"], control="random")}


def play(path: Path, num_seeds: int) -> None:
    """Add the rows that are missing: the regret of all agents in one seed, by kind."""
    experiment = find_experiment("feducb")
    assert isinstance(experiment, BanditExperiment)
    plans = simulations(experiment)
    for seed in range(1 + len(read_rows(path)), 1 + num_seeds):
        runs = play_together(list(plans.values()), seed, seed)
        regrets = [round(float(run.regret.sum()), 3) for run in runs]
        row = {"seed": seed, **dict(zip(plans, regrets, strict=True))}
        add_rows(path, [row])


def show(path: Path) -> None:
    """Print each kind's regret, an agent, and its ratio to that of `Optimism`."""
    found, agents = read_rows(path), 100
    print(f"{len(found)} seeds; regret of an agent after all trials")
    for name in (*KINDS, "random"):
        regret = Estimate.of(np.array([row[name] for row in found]) / agents)
        ratio = Estimate.of(np.array([row[name] / row["Optimism()"] for row in found]))
        print(f"{name:30s} {regret.mean:8.1f} +- {regret.standard_error:5.1f}", end="")
        print(f"   {ratio.mean:6.3f} +- {ratio.standard_error:5.3f} times")


if __name__ == "__main__":
    play_and_show(__doc__, "rows, one a seed", play, show)

"""How many trials a second the simulator of linear bandits plays, on one core.

    python benchmarks/linear_bandit.py

M = 100 agents, each with K = 100 new actions of d = 10 in every trial; 16
synchronisations, or none, or one a trial. CPU time of whole runs with one BLAS thread:
drawing actions, choosing, rewards, sums, synchronisations and the noise of releases.
The first row is what drawing the actions alone takes; in the last one the first five
methods play the same trials, which are drawn once.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from rich.console import Console
from rich.table import Table

from flwr_fbo.agents.linear_ucb import LinearUCBSettings, LocalData
from flwr_fbo.models.threads import one_blas_thread
from flwr_fbo.privacy.continual import ContinualSettings
from flwr_fbo.simulation.bandits import (
    BanditSimulation,
    geometric_schedule,
    play_together,
)
from flwr_fbo.tasks.linear_bandit import LinearBandits, LinearBanditTask

M, BAR = 100, 300
TASK = LinearBanditTask(dimension=10, num_actions=100)


def simulation(num_trials: int, local_data: LocalData) -> BanditSimulation:
    """Return private FedUCB at (1, 0.1)."""
    releases = ContinualSettings(16, TASK.dimension, epsilon=1.0, delta=0.1)
    settings = LinearUCBSettings(releases, M, local_data=local_data)
    schedule = geometric_schedule(num_trials, 16, num_trials // 20)
    return BanditSimulation(settings, TASK, num_trials, schedule)


def published(ours: BanditSimulation) -> BanditSimulation:
    """Return the same with the paper's noise, shifts and width."""
    releases = replace(ours.settings.releases, mechanism="tree", calibration="paper")
    settings = replace(ours.settings, releases=releases, width="paper")
    return replace(ours, settings=settings)


def trials_per_second(play: Callable[[], object], num_trials: int) -> float:
    """Return them, by CPU time."""
    began = time.process_time()
    play()
    return num_trials / (time.process_time() - began)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=2000)
    trials = parser.parse_args().trials
    released, raw = simulation(trials, "released"), simulation(trials, "raw")
    five = {
        "private, released": released,
        "private, raw": raw,
        "published, raw": published(raw),
        "non-private, released": released.baseline("non-private"),
        "independent": released.baseline("independent"),
    }
    runs = five | {"full communication": released.baseline("full")}

    @one_blas_thread
    def draw() -> None:
        bandits = LinearBandits(TASK, 0, range(M))
        for t in range(trials):
            bandits.peek(t)

    table = Table(
        f"{M} agents, {trials} trials",
        f"trials/s (bar {BAR})",
        "agent-trials/s",
    )
    work: dict[str, Callable[[], object]] = {"the actions alone": draw}
    for name, run in runs.items():
        work[name] = partial(run.run, 0, 1)
    work["all five together"] = partial(play_together, list(five.values()), 0, 1)
    for name, play in work.items():
        speed = trials_per_second(play, trials)
        table.add_row(name, f"{speed:.0f}", f"{M * speed:,.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()

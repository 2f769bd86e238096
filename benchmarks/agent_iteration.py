"""Where the CPU time of an agent's iteration goes, without Flower and the objective.

    python benchmarks/agent_iteration.py

Agents with the published settings, each of them asked for one point an iteration and
for a message after it. Of each part: in how many of the iterations it ran, its median
over these, its mean over all iterations, and its share of their total.
"""

import argparse
import os
import platform
import time
from collections import defaultdict
from collections.abc import Callable
from functools import wraps
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from optuna.distributions import FloatDistribution
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_info

from flwr_fbo.agents import thompson
from flwr_fbo.agents.base import Agent, play_round
from flwr_fbo.agents.study import Study
from flwr_fbo.agents.thompson import ThompsonSettings
from flwr_fbo.agents.trial import Trial
from flwr_fbo.space import SearchSpace

PARTS = {
    "fit_hyperparameters": "hyperparameter fit",
    "sample_function": "sample of the agent's own GP",
    "maximize": "acquisition",
    "message": "message",
    "rest": "the rest: history, snap, checks",
}


class Clock:
    """Adds up the CPU time, all threads together, of the parts of an iteration."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``function``, its time added to that of ``part``."""

        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds[part] += time.process_time() - began

        return timed

    def read(self) -> dict[str, float]:
        """Return the parts since the last reading, "rest" among them."""
        parts = dict(self.seconds)
        self.seconds.clear()
        whole = parts.pop("whole") - parts.pop("objective", 0.0)
        return {**parts, "rest": whole - sum(parts.values())}


def measure(num_agents: int, num_iterations: int) -> list[dict[str, float]]:
    """Return the seconds of each part, a dict for each agent and iteration >= 1."""
    clock, rng = Clock(), np.random.default_rng(0)
    space = SearchSpace({name: FloatDistribution(0.0, 1.0) for name in "xy"})
    settings = ThompsonSettings()
    study = Study(space, "maximize", settings, study_seed=1, feature_seed=2)
    shape = (settings.num_sub_regions, settings.num_features)

    def objective(trial: Trial) -> float:
        x, y = trial["x"], trial["y"]
        clean = 0.7 + 0.1 * np.sin(6.0 * x) * np.cos(4.0 * y)
        return float(clean + 0.01 * rng.standard_normal())

    def play(agent: Agent, iteration: int) -> None:
        # What a server releases is mostly noise: this is as hard to maximise.
        vectors = rng.standard_normal(shape) if iteration else None
        timed_round(agent, timed_objective, iteration, vectors, True)

    timed_round = clock.timed("whole", play_round)
    timed_objective = clock.timed("objective", objective)
    for name in ("fit_hyperparameters", "sample_function", "maximize"):
        setattr(thompson, name, clock.timed(name, getattr(thompson, name)))
    readings = []
    for slot in range(-1, num_agents):  # the first one only warms up
        agent = study.create_agent(max(slot, 0), 1)
        agent.message = clock.timed("message", agent.message)  # type: ignore[method-assign]
        for iteration in range(num_iterations + 1):
            play(agent, iteration)
            parts = clock.read()
            if slot >= 0 and iteration > 0:
                readings.append(parts)
    return readings


def surroundings() -> str:
    """Return what the numbers depend on, in a line."""
    model = platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        names = [line.split(": ")[1] for line in lines if line.startswith("model name")]
        model = names[0] if names else model
    blas = {
        f"{p['internal_api']} {p['version']}"
        for p in threadpool_info()
        if p["user_api"] == "blas"
    }
    versions = [f"{name} {version(name)}" for name in ("numpy", "scipy")]
    python = f"Python {platform.python_version()}"
    return ", ".join(
        [f"{model} ({os.cpu_count()} CPUs)", python, *versions, *sorted(blas)]
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--agents", type=int, default=16)
    parser.add_argument("--iterations", type=int, default=60)
    args = parser.parse_args()
    readings = measure(args.agents, args.iterations)
    wholes = [sum(parts.values()) for parts in readings]
    table = Table(
        "CPU time of an iteration", "ran in", "median, ms", "mean, ms", "share"
    )
    for name, label in PARTS.items():
        ran = [parts[name] for parts in readings if name in parts]
        table.add_row(
            label,
            f"{len(ran) / len(readings):.0%}",
            f"{1e3 * np.median(ran):.2f}" if ran else "",
            f"{1e3 * sum(ran) / len(readings):.2f}",
            f"{sum(ran) / sum(wholes):.0%}",
        )
    table.add_section()
    table.add_row(
        "whole",
        "100%",
        f"{1e3 * np.median(wholes):.2f}",
        f"{1e3 * np.mean(wholes):.2f}",
        "100%",
    )
    console = Console()
    console.print(table)
    console.print(
        f"{args.agents} agents, {args.iterations} iterations after "
        f"{ThompsonSettings().num_initial} initial points, D = 2; {surroundings()}",
        soft_wrap=True,
        highlight=False,
    )


if __name__ == "__main__":
    main()

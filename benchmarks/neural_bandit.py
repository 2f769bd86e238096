"""What a step of Fed-GO-UCB's agent costs, by the number of parameters, on one core.

    python benchmarks/neural_bandit.py

A step is one choice among K = 50 actions of d = 6, and its reward: CPU time with one
BLAS thread. The bar: it grows no faster than d_w^2, as one triangular solve for all
actions and one rank-one update do. The last column is the exponent between a row and
the one before. What a synchronisation costs the agent beside is one factorisation.
"""

import argparse
import math
import time
from collections.abc import Callable

import numpy as np
from rich.console import Console
from rich.table import Table

from flwr_fbo.agents.neural_ucb import NeuralUCBAgent, NeuralUCBSettings
from flwr_fbo.models.network import Network
from flwr_fbo.models.threads import one_blas_thread

D, K = 6, 50


@one_blas_thread
def seconds(work: Callable[[], object], count: int) -> float:
    """Return the CPU time of one call, after one that warms up."""
    work()
    began = time.process_time()
    for _ in range(count):
        work()
    return (time.process_time() - began) / count


def costs(width: int, count: int) -> tuple[int, float, float]:
    """Return d_w, and the seconds of a step and of a synchronisation."""
    settings = NeuralUCBSettings(num_agents=2, num_exploration=0)
    agent = NeuralUCBAgent(settings, Network(D, width), seed=0, slot=0)
    actions = np.random.default_rng(0).uniform(size=(K, D))

    def step() -> None:
        agent.tell(actions[agent.choose(actions)], 0.0)

    def synchronise() -> None:
        message = agent.message()
        agent.receive(message.values, message.num_evaluations)
        agent.choose(actions)

    each = seconds(step, count)
    return agent.model.num_parameters, each, seconds(synchronise, count)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    count = parser.parse_args().steps
    table = Table("d_w", "step, ms", "synchronisation, ms", "exponent (bar 2)")
    before: tuple[int, float] | None = None
    for width in (25, 50, 100, 200):
        size, step, synchronisation = costs(width, count)
        exponent = "-"
        if before is not None:
            rate = math.log(step / before[1]) / math.log(size / before[0])
            exponent = f"{rate:.2f}"
        before = size, step
        row = (f"{1e3 * step:.2f}", f"{1e3 * synchronisation:.2f}", exponent)
        table.add_row(str(size), *row)
    Console().print(table)


if __name__ == "__main__":
    main()

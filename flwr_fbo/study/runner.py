"""Run an experiment: every method on every seed, through Flower's records."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.clientapp import ClientApp
from joblib import Parallel, delayed, parallel_config

from flwr_fbo.agents.base import Agent
from flwr_fbo.clients.thompson import ThompsonClient
from flwr_fbo.simulation.grid import InProcessGrid
from flwr_fbo.strategies.dp_fts_de import DPFTSDE
from flwr_fbo.strategies.tuning import TuningStrategy
from flwr_fbo.study.experiment import Experiment
from flwr_fbo.study.methods import METHODS, Seeds
from flwr_fbo.study.results import Run
from flwr_fbo.tasks.base import Objective


def run_one(experiment: Experiment, method: str, seed: int) -> Run:
    """Run one method on one seed, with `ThompsonClient`s in an in-process grid."""
    began = time.perf_counter()
    num_agents, task = experiment.num_agents, experiment.task
    strategy = METHODS[method].build(experiment, Seeds.of_run(seed))
    objectives = [task.objective(i, num_agents, seed) for i in range(num_agents)]

    def client_fn(context: Context) -> Any:
        objective = objectives[int(context.node_config["partition-id"])]
        return ThompsonClient(objective, context).to_client()

    grid = InProcessGrid(ClientApp(client_fn=client_fn), num_agents)
    with _quiet_flower():
        strategy.start(grid, num_rounds=experiment.num_iterations + 1)
    agents = grid.agents(strategy.study)
    failed = sum(int(np.isnan(agent.values).sum()) for agent in agents)
    for agent in agents:
        _tell_truth(agent, task.truth(agent.slot, num_agents, seed))
    return Run(
        method=method,
        seed=seed,
        best_so_far=[
            agent.best_so_far(experiment.num_iterations).tolist() for agent in agents
        ],
        epsilon=_epsilon(strategy),
        private=_private(strategy),
        failed_trials=failed,
        seconds=time.perf_counter() - began,
    )


def _tell_truth(agent: Agent, truth: Objective | None) -> None:
    """Put the objective without its noise in the place of what was observed."""
    if truth is not None:
        agent.values = [
            math.nan if math.isnan(value) else truth(agent.space.from_unit(point))
            for point, value in zip(agent.points, agent.values, strict=True)
        ]


@contextmanager
def _quiet_flower() -> Iterator[None]:
    """Keep thousands of log lines from hiding the progress bar."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _epsilon(strategy: TuningStrategy) -> float:
    return strategy.privacy_spent.epsilon if isinstance(strategy, DPFTSDE) else 0.0


def _private(strategy: TuningStrategy) -> bool:
    return not isinstance(strategy, DPFTSDE) or strategy.server.release.private


def run_all(
    experiment: Experiment, todo: Sequence[tuple[str, int]], jobs: int
) -> Iterator[Run]:
    """Yield the runs as they end.

    Parameters
    ----------
    experiment : Experiment
    todo : sequence of (method, seed)
    jobs : int
        Worker processes, with one BLAS thread each.
    """
    tasks = [delayed(run_one)(experiment, method, seed) for method, seed in todo]
    # Workers that have lost their parent should not wait for minutes.
    with parallel_config("loky", inner_max_num_threads=1, idle_worker_timeout=10):
        yield from Parallel(n_jobs=jobs, return_as="generator_unordered")(tasks)

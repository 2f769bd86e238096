"""Run an experiment: every method on every seed, through Flower's records."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.clientapp import ClientApp
from joblib import Parallel, delayed, parallel_config
from numpy.typing import NDArray

from flwr_fbo.clients.thompson import ThompsonClient
from flwr_fbo.simulation.grid import InProcessGrid
from flwr_fbo.strategies.dp_fts_de import DPFTSDE
from flwr_fbo.strategies.tuning import TuningStrategy
from flwr_fbo.study.experiment import Experiment
from flwr_fbo.study.methods import Method, Seeds

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Run:
    """What one method did on one seed.

    Attributes
    ----------
    method : str
    seed : int
    best_so_far : list of N lists of T + 1 floats
        Each agent's best value after iterations 0..T; NaN before its first success.
    epsilon : float
        Spent if the noise had been real: 0 where nothing of the agents was released,
        inf where it was without noise.
    private : bool
        Whether nothing unprotected was released; False under seeded noise.
    failed_trials : int
    seconds : float
    """

    method: str
    seed: int
    best_so_far: list[list[float]]
    epsilon: float
    private: bool
    failed_trials: int
    seconds: float

    @property
    def curve(self) -> FloatArray:
        """The mean over agents, shape (T + 1,), leaving out those without a success."""
        return np.asarray(np.nanmean(np.array(self.best_so_far), axis=0))


def run_one(experiment: Experiment, method: Method, seed: int) -> Run:
    """Run one method on one seed, with `ThompsonClient`s in an in-process grid."""
    began = time.perf_counter()
    num_agents, task = experiment.num_agents, experiment.task
    strategy = method.build(task, num_agents, experiment.privacy, Seeds.of_run(seed))
    objectives = [task.objective(i, num_agents, seed) for i in range(num_agents)]

    def client_fn(context: Context) -> Any:
        objective = objectives[int(context.node_config["partition-id"])]
        return ThompsonClient(objective, context).to_client()

    grid = InProcessGrid(ClientApp(client_fn=client_fn), num_agents)
    with _quiet_flower():
        strategy.start(grid, num_rounds=experiment.num_iterations + 1)
    agents = grid.agents(strategy.study)
    return Run(
        method=method.name,
        seed=seed,
        best_so_far=[
            agent.best_so_far(experiment.num_iterations).tolist() for agent in agents
        ],
        epsilon=_epsilon(strategy),
        private=_private(strategy),
        failed_trials=sum(int(np.isnan(agent.values).sum()) for agent in agents),
        seconds=time.perf_counter() - began,
    )


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
    experiment: Experiment, seeds: Sequence[int], jobs: int, results: Path
) -> Iterator[Run]:
    """Yield the runs as they end; each is appended to ``results`` (JSON Lines) first.

    Parameters
    ----------
    experiment : Experiment
    seeds : sequence of int
    jobs : int
        Worker processes, with one BLAS thread each.
    results : Path
        Created.
    """
    tasks = [
        delayed(run_one)(experiment, method, seed)
        for seed in seeds
        for method in experiment.methods
    ]
    # Workers that have lost their parent should not wait for minutes.
    with (
        results.open("w", encoding="utf-8") as file,
        parallel_config("loky", inner_max_num_threads=1, idle_worker_timeout=10),
    ):
        workers = Parallel(n_jobs=jobs, return_as="generator_unordered")
        for run in workers(tasks):
            file.write(json.dumps(asdict(run)) + "\n")
            file.flush()
            yield run

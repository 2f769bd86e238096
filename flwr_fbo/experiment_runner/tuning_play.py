"""Play one method of an experiment that tunes.

Agents and server run in a loop of their own. Through Flower's records they end with the
same numbers, bit for bit, and take two to three times as long.
"""

from __future__ import annotations

import math
import time

import numpy as np

from flwr_fbo._random import Purpose, generator
from flwr_fbo.agents.tuning.base import Agent
from flwr_fbo.agents.tuning.registry import create_agent
from flwr_fbo.experiment_runner.base import FloatArray
from flwr_fbo.experiment_runner.seeds import Seeds
from flwr_fbo.experiment_runner.tuning_design import TuningDesign
from flwr_fbo.experiment_runner.tuning_methods import known_methods
from flwr_fbo.experiment_runner.tuning_table import TuningRun
from flwr_fbo.protocol.tuning_settings import SearchSettings
from flwr_fbo.protocol.tuning_study import TuningStudy
from flwr_fbo.simulation.loop import run_loop
from flwr_fbo.strategies.private_tuning_strategy import PrivateTuningStrategy
from flwr_fbo.strategies.tuning_strategy import TuningStrategy

# Whatever is longer than the clip norm is cut to it.
_LOUD = 1e6


def run_one(experiment: TuningDesign, method: str, seed: int) -> TuningRun:
    """Run one method on one seed."""
    began = time.perf_counter()
    num_agents, task = experiment.num_agents, experiment.task
    seeds = Seeds.of_run(seed)
    chosen = known_methods(experiment)[method]
    strategy = chosen.build(experiment, seeds)
    strategy.plan(experiment.num_iterations)
    objectives = [task.objective(i, num_agents, seed) for i in range(num_agents)]
    agents = [create_agent(strategy.study, i, seeds.study) for i in range(num_agents)]
    for liar in agents[: math.ceil(chosen.liars * num_agents)]:
        _make_lie(liar, strategy.study, seed, chosen.conspiring)
    run_loop(strategy.server, agents, objectives, experiment.num_iterations)
    epsilon, private = 0.0, True
    if isinstance(strategy, PrivateTuningStrategy):
        epsilon = strategy.privacy_spent.epsilon
        private = strategy.server.release.private
    return experiment.run_of_agents(
        agents,
        seed,
        method=method,
        epsilon=epsilon,
        private=private,
        seconds=time.perf_counter() - began,
    )


def _make_lie(agent: Agent, study: TuningStudy, seed: int, conspiring: bool) -> None:
    """Have an agent praise a place drawn at random, as loudly as the server listens."""
    settings, space = study.agent, study.space
    assert isinstance(settings, SearchSettings)
    features = settings.shared_features(space.dim, study.feature_seed)

    def lie(iteration: int) -> FloatArray:
        key = () if conspiring else (agent.slot, iteration)
        place = generator(seed, *key, Purpose.LIE).random((1, space.dim))
        return np.asarray(_LOUD * features(space.snap_discrete(place))[0])

    agent.message = lie  # type: ignore[method-assign]


def spending(strategy: TuningStrategy, num_iterations: int) -> FloatArray:
    """Return epsilon after iterations 0 to T, shape (T + 1,), if the noise is real."""
    if not isinstance(strategy, PrivateTuningStrategy):
        return np.zeros(num_iterations + 1)
    strategy.plan(num_iterations)
    server, release = strategy.server, strategy.server.release
    accountant = server.new_accountant()
    spent: list[float] = []
    for iteration in range(num_iterations + 1):
        if iteration in server.iterations and not release.settings.noise_only:
            multiplier = release.effective_noise_multiplier(iteration)
            if multiplier == 0:
                left = num_iterations + 1 - iteration
                return np.array([*spent, *[math.inf] * left])
            accountant.charge(multiplier)
        spent.append(accountant.spent().epsilon)
    return np.array(spent)


def sending(strategy: TuningStrategy, num_iterations: int) -> FloatArray:
    """Return how many numbers have been sent by iterations 0 to T, shape (T + 1,).

    Every agent sends a message for each release, and gets all of its vectors before
    the next iteration.
    """
    sent = np.zeros(num_iterations + 1)
    if not isinstance(strategy, PrivateTuningStrategy):
        return sent
    strategy.plan(num_iterations)
    agent, num_agents = strategy.study.agent, strategy.server.num_agents
    assert isinstance(agent, SearchSettings)
    for iteration in strategy.server.iterations:
        sent[iteration] += num_agents * agent.message_length
        if iteration < num_iterations:
            vectors = agent.num_sub_regions * agent.message_length
            sent[iteration + 1] += num_agents * vectors
    return np.asarray(np.cumsum(sent))

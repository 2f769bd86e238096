"""Play one method of an experiment that tunes.

Agents and server run in a loop of their own. Through Flower's records they end with the
same numbers, bit for bit, and take two to three times as long.
"""

from __future__ import annotations

import math
import time

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.random import Purpose, generator
from flwr_fbo.algorithms.fed_vote.settings import FedVoteSettings
from flwr_fbo.algorithms.fed_warm_start.server import FedWarmStartServer
from flwr_fbo.algorithms.fed_warm_start.settings import FedWarmStartSettings
from flwr_fbo.algorithms.fed_warm_start.shared_function import rank_vector
from flwr_fbo.algorithms.search.agent import Agent
from flwr_fbo.algorithms.search.study import TuningStudy, create_agent
from flwr_fbo.lab.experiment_runner.seeds import Seeds
from flwr_fbo.lab.experiment_runner.tuning_design import TuningDesign
from flwr_fbo.lab.experiment_runner.tuning_methods import TuningMethod, known_methods
from flwr_fbo.lab.experiment_runner.tuning_table import TuningRun
from flwr_fbo.lab.simulation.loop import run_loop
from flwr_fbo.strategies.dp_fts_de import DPFTSDE
from flwr_fbo.strategies.fed_warm_start import FedWarmStart
from flwr_fbo.strategies.tuning_strategy import TuningStrategy

# Whatever is longer than the clip norm is cut to it.
_LOUD = 1e6


def run_one(experiment: TuningDesign, method: str, seed: int) -> TuningRun:
    """Run one method on one seed."""
    began = time.process_time()
    num_agents, task = experiment.num_agents, experiment.task
    seeds = Seeds.of_run(seed)
    chosen = known_methods(experiment)[method]
    strategy = chosen.build(experiment, seeds)
    horizon = last_iteration(experiment, strategy)
    strategy.plan(horizon)
    objectives = [task.objective(i, num_agents, seed) for i in range(num_agents)]
    agents = [create_agent(strategy.study, i, seeds.study) for i in range(num_agents)]
    if chosen.first is not None:
        for agent in agents:
            agent.enqueue(chosen.first(experiment, seeds, agent.slot))
    for liar in agents[: _num_liars(chosen, strategy)]:
        _make_lie(liar, strategy.study, seed, chosen.conspiring)
    clipping = _Clipping(strategy)
    for agent in agents:
        clipping.watch(agent)
    most = experiment.num_evaluations
    run_loop(strategy.server, agents, objectives, horizon, most)
    epsilon, private = 0.0, True
    if strategy.releases is not None:
        epsilon = strategy.privacy_spent.epsilon
        private = strategy.releases.server.release.private
    return experiment.run_of_agents(
        agents,
        seed,
        method=method,
        epsilon=epsilon,
        private=private,
        seconds=time.process_time() - began,
        num_messages=clipping.num_messages,
        num_clipped=clipping.num_clipped,
    )


class _Clipping:
    """Counts which messages are clipped; a release must not say it.

    Parameters
    ----------
    strategy : TuningStrategy
        Only those of `DPFTSDE` send messages of any length.
    """

    def __init__(self, strategy: TuningStrategy) -> None:
        self.num_messages = self.num_clipped = 0
        self._limit = math.inf
        if isinstance(strategy, DPFTSDE):
            settings = strategy.server.release.settings
            if not settings.noise_only:
                self._limit = settings.message_norm

    def watch(self, agent: Agent) -> None:
        """Count what an agent sends from now on."""
        if math.isinf(self._limit):
            return
        message = agent.message

        def counted_message(iteration: int) -> FloatArray:
            vector = message(iteration)
            self.num_messages += 1
            self.num_clipped += int(np.linalg.norm(vector) > self._limit)
            return vector

        agent.message = counted_message  # type: ignore[method-assign]


def last_iteration(experiment: TuningDesign, strategy: TuningStrategy) -> int:
    """Return T, by which all agents have made their evaluations, whenever they start.

    Each of the cohorts of a `FedWarmStart` starts after the one before has sent.
    """
    agent, waiting = strategy.study.agent, 0
    if isinstance(strategy, FedWarmStart):
        assert isinstance(agent, FedWarmStartSettings)
        waiting = len(strategy.cohort_sizes) * agent.share_after
    return waiting + experiment.num_evaluations - agent.num_initial


def _num_liars(method: TuningMethod, strategy: TuningStrategy) -> int:
    num = strategy.server.num_agents
    if method.conspiring and isinstance(strategy, FedWarmStart):
        num = sum(strategy.cohort_sizes[:1])
    return math.ceil(method.liars * num)


def _make_lie(agent: Agent, study: TuningStudy, seed: int, conspiring: bool) -> None:
    """Have an agent praise a place drawn at random, as loudly as the server listens."""
    settings, space = study.agent, study.space

    def lie(iteration: int) -> FloatArray:
        key = () if conspiring else (agent.slot, iteration)
        place = generator(seed, *key, Purpose.LIE).random((1, space.dim))
        place = space.snap_discrete(place)
        if isinstance(settings, FedWarmStartSettings):
            pool = settings.pool(space, study.feature_seed)
            from scipy.spatial.distance import cdist

            return rank_vector(-cdist(place, pool)[0])
        sent = settings
        if isinstance(settings, FedVoteSettings):
            sent = settings.after(iteration, space.dim)
        features = sent.shared_features(space.dim, study.feature_seed)
        return np.asarray(_LOUD * features(place)[0])

    agent.message = lie  # type: ignore[method-assign]


def _sharing(experiment: TuningDesign, strategy: TuningStrategy) -> list[int]:
    """Return after which of its evaluations, from 1, an agent sends; plans the study.

    Of all releases of a `FedWarmStart` a site has a message in one.
    """
    if strategy.releases is None:
        return []
    strategy.plan(last_iteration(experiment, strategy))
    iterations = strategy.releases.server.iterations
    if isinstance(strategy, FedWarmStart):
        iterations = iterations[:1]
    return [strategy.study.agent.num_initial + t for t in iterations]


def spending(experiment: TuningDesign, strategy: TuningStrategy) -> FloatArray:
    """Return a site's epsilon after evaluations 1 to E, if the noise is real."""
    sharing = _sharing(experiment, strategy)
    spent = np.zeros(experiment.num_evaluations)
    if not sharing:
        return spent
    assert strategy.releases is not None
    server = strategy.releases.server
    release = server.release
    if release.settings.noise_only:
        return spent
    accountant = server.new_accountant()
    for evaluation, iteration in zip(sharing, server.iterations, strict=False):
        multiplier = release.effective_noise_multiplier(iteration)
        if multiplier == 0:
            spent[evaluation - 1 :] = math.inf
            break
        accountant.charge(multiplier)
        spent[evaluation - 1 :] = accountant.spent().epsilon
    return spent


def sending(experiment: TuningDesign, strategy: TuningStrategy) -> FloatArray:
    """Return how many numbers all have sent by evaluations 1 to E of each agent.

    Every agent sends a message for each release, and gets all of its vectors before
    its next evaluation; of a `FedWarmStart` one message at most, and before its first
    evaluation what there is.
    """
    sharing, sent = _sharing(experiment, strategy), np.zeros(experiment.num_evaluations)
    if not sharing:
        return sent
    server, agent = strategy.server, strategy.study.agent
    if isinstance(server, FedWarmStartServer):
        cohorts = server.cohorts
        got = sum(map(cohorts.cohort_of, range(server.num_agents)))
        sent[0] += got * agent.message_length
        sent[sharing[0] - 1] += sum(cohorts.cohort_sizes) * agent.message_length
        return np.asarray(np.cumsum(sent))
    one_each = server.num_agents * agent.message_length
    for evaluation in sharing:
        sent[evaluation - 1] += one_each
        if evaluation < len(sent):
            sent[evaluation] += one_each * agent.num_sub_regions
    return np.asarray(np.cumsum(sent))

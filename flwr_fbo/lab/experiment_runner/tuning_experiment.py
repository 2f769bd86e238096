"""Experiments that tune: federated search beside its controls, on one task.

Agents and server run in a loop of their own. Through Flower's records they end with the
same numbers, bit for bit, and take two to three times as long.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.random import Purpose, generator
from flwr_fbo._common.validation import require
from flwr_fbo.algorithms.fed_vote.settings import FedVoteSettings
from flwr_fbo.algorithms.fed_warm_start.server import FedWarmStartServer
from flwr_fbo.algorithms.fed_warm_start.settings import FedWarmStartSettings
from flwr_fbo.algorithms.fed_warm_start.shared_function import rank_vector
from flwr_fbo.algorithms.search.agent import Agent
from flwr_fbo.algorithms.search.settings import SearchSettings
from flwr_fbo.algorithms.search.study import TuningStudy, create_agent
from flwr_fbo.lab.experiment_runner.base import Experiment, Run
from flwr_fbo.lab.experiment_runner.curves import ONE_SEED, carried, helped
from flwr_fbo.lab.experiment_runner.seeds import Seeds
from flwr_fbo.lab.experiment_runner.tuning_methods import (
    METHODS,
    TuningDesign,
    TuningMethod,
    known_methods,
    methods_of,
    usual_methods,
)
from flwr_fbo.lab.experiment_runner.tuning_table import TuningRun, at_the_end
from flwr_fbo.lab.simulation.loop import run_loop
from flwr_fbo.lab.simulation.progress import telling
from flwr_fbo.strategies.dp_fts_de import DPFTSDE
from flwr_fbo.strategies.fed_warm_start import FedWarmStart
from flwr_fbo.strategies.presets import preset_of
from flwr_fbo.strategies.private_tuning_strategy import PrivateTuningStrategy
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
    if isinstance(strategy, PrivateTuningStrategy):
        epsilon = strategy.privacy_spent.epsilon
        private = strategy.server.release.private
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
    assert isinstance(settings, SearchSettings)

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
    if not isinstance(strategy, PrivateTuningStrategy):
        return []
    strategy.plan(last_iteration(experiment, strategy))
    iterations = strategy.server.iterations
    if isinstance(strategy, FedWarmStart):
        iterations = iterations[:1]
    return [strategy.study.agent.num_initial + t for t in iterations]


def spending(experiment: TuningDesign, strategy: TuningStrategy) -> FloatArray:
    """Return a site's epsilon after evaluations 1 to E, if the noise is real."""
    sharing = _sharing(experiment, strategy)
    spent = np.zeros(experiment.num_evaluations)
    if not sharing:
        return spent
    assert isinstance(strategy, PrivateTuningStrategy)
    server, release = strategy.server, strategy.server.release
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
    assert isinstance(agent, SearchSettings)
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


# In a list of methods: those that the strategy is usually compared to.
_USUAL = "usual"


@dataclass(frozen=True, kw_only=True)
class TuningExperiment(TuningDesign):
    """Methods on a task, over paired seeds.

    Attributes
    ----------
    methods : tuple of str
        ``"usual"`` stands for all controls, without liars. All curves are added.
    form : {"convergence", "tradeoff"}
        The figure: best value against evaluation, or in the end against epsilon.
    """

    _presentation: ClassVar[tuple[str, ...]] = (*Experiment._presentation, "form")

    methods: tuple[str, ...] = (_USUAL,)
    form: Literal["convergence", "tradeoff"] = "convergence"

    def __post_init__(self) -> None:
        preset_of(self.strategy, self.preset)  # which names what it does not allow
        for name in self.curves:
            ok = name not in METHODS and not name.endswith("-noise-only")
            require(ok, "curves", name, "a name that no method or control has")
            weights = self.curves[name].weights
            ok = weights is None or self.strategy == "DPFTSDE"
            require(ok, "weights", weights, f"left out, with {self.strategy}")
        methods: list[str] = []
        for name in self.methods:
            methods += usual_methods(self) if name == _USUAL else [name]
        methods += [name for name in methods_of(self.curves) if name not in methods]
        object.__setattr__(self, "methods", tuple(methods))
        super().__post_init__()
        agent = self.base.agent
        least = agent.num_initial
        if isinstance(agent, FedWarmStartSettings):
            least = agent.share_after
        ok = self.num_evaluations >= least
        require(ok, "num_evaluations", self.num_evaluations, f"at least {least}")
        if self.form == "tradeoff":
            private = {n for n, c in self.curves.items() if c.method == "private"}
            alone = sorted(n for n in private if not self.curves[n].series)
            allowed = "private curves, each in a series, where form is 'tradeoff'"
            require(len(private) > 0 and not alone, "curves", alone, allowed)

    @property
    def first_shown(self) -> int:
        """The last initial point: before it no method has done anything."""
        return int(self.base.agent.num_initial) - 1

    @property
    def known_methods(self) -> Mapping[str, TuningMethod]:
        """All methods that it could have, by name."""
        return known_methods(self)

    def with_epsilon(self, epsilon: float) -> Self:
        """Return the same experiment at another epsilon; see `Experiment`."""
        allowed = "left out: its curves have their own noise"
        require(not self.curves, "epsilon", epsilon, allowed)
        return super().with_epsilon(epsilon)

    def recipe(self, method: str) -> dict[str, Any]:
        """Return what decides a method's runs, whatever experiment they are part of."""
        values = super().recipe(method)
        for name in ("privacy", "curves"):
            values.pop(name, None)
        chosen, base = self.known_methods[method], self.base
        curve = chosen.curve
        values["method"] = chosen.base or chosen.name
        values["agent"] = asdict(curve.agent(base.agent))
        values["weights"] = asdict(curve.weights or base.weights)
        # Noise alone leads to the same places whatever its scale: see `methods_of`.
        scale_free = self.strategy == "DPFTSDE" and values["method"] == "noise-only"
        if chosen.noisy and not scale_free:
            privacy = curve.privacy(self.privacy)
            q = privacy.sampling_probability or base.privacy.sampling_probability
            values["privacy"] = asdict(replace(privacy, sampling_probability=q))
            values["clip_norm"] = curve.clip_norm or base.privacy.clip_norm
        return values

    def check(self) -> None:
        """Raise, before any work is done, if it cannot be run: see `Task.check`."""
        for name in self.methods:  # what only the methods can refuse
            try:
                self._strategy(name)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
        super().check()

    def play(self, methods: Sequence[str], seed: int) -> list[TuningRun]:
        """Run some of the methods on one seed."""
        return [run_one(self, method, seed) for method in telling(methods)]

    def spending(self, method: str) -> FloatArray:
        """Return a site's epsilon after each evaluation; see `Experiment`."""
        return spending(self, self._strategy(method))

    def sending(self, method: str, runs: Sequence[Run]) -> FloatArray:
        """Return how many numbers have been sent by each evaluation."""
        return sending(self, self._strategy(method))

    def _strategy(self, method: str) -> TuningStrategy:
        return self.known_methods[method].build(self, Seeds.of_run(0))

    def notes(self, runs: Sequence[Run], until: int | None) -> tuple[str, list[str]]:
        """Return the table's title, and what is to be said below it."""
        title, (first, *others) = super().notes(runs, until)
        accountant = self.privacy.accountant.upper()
        privacy = (
            f"epsilon: spent at delta = {self.privacy.delta:.4g} ({accountant} "
            "accountant), had the noise been real. The noise of an experiment is "
            "seeded: NOT PRIVATE."
        )
        return title, [first, privacy, *others]

    def verdict(self, rows: Mapping[str, Any]) -> list[str]:
        """Say in words whether federation helped, with and without privacy."""
        if any(row.final.num_runs < 2 for row in rows.values()):
            return [ONE_SEED]
        lines = []
        for name, what in (("open", "without"), ("private", "with")):
            row = rows.get(name)
            if row is not None and row.over_alone is not None:
                lines.append(
                    f"Federation {what} privacy ({row.label}) "
                    f"{helped(row.over_alone, self._alone)}"
                )
        private = rows.get("private")
        if private is not None and private.over_noise_only is not None:
            lines.append(carried(private.label, private.over_noise_only))
        if private is not None and private.final_over_alone is not None:
            about = private.label, private.final_over_alone, self._alone
            lines += at_the_end(*about)
        return lines

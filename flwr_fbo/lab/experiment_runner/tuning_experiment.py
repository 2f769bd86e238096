"""Experiments that tune: federated search beside its controls, on one task.

Agents and server run in a loop of their own. Through Flower's records they end with the
same numbers, bit for bit, and take two to three times as long.

Given the same seed they share the agents' draws, the noise and the mask: what differs
between two curves is the method. Agents that start lean have more controls than those
with published settings, which begin with random points anyway:

- *random-start*: ten random points, then the same search;
- *list*: the first settings of the task's `Portfolio`, then the same search;
- *portfolio*: a public list, the same for every agent. First the settings that a person
  would try, where the task knows some, then a Sobol design of the space;
- *blind*: messages in praise of places drawn at random.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from inspect import signature
from typing import Any, Literal, Self, TypeVar

import numpy as np

from flwr_fbo._common import pictures as palette
from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.fields import flag, integer
from flwr_fbo._common.random import Purpose, generator, sobol_points
from flwr_fbo._common.validation import require, require_positive
from flwr_fbo.lab.baselines.random_search import LocalServer, RandomSearchSettings
from flwr_fbo.lab.experiment_runner import looks
from flwr_fbo.lab.experiment_runner.base import (
    Method,
    PrivacySetting,
    Run,
    by_name,
    methods_of_curve,
)
from flwr_fbo.lab.experiment_runner.curves import ONE_SEED, carried, helped
from flwr_fbo.lab.experiment_runner.estimates import Estimate, Row
from flwr_fbo.lab.experiment_runner.tuning_table import (
    OptimisationExperiment,
    Seeds,
    TuningRun,
    at_the_end,
)
from flwr_fbo.lab.simulation.loop import run_loop
from flwr_fbo.lab.tasks.base import Objective
from flwr_fbo.privacy.accounting import ReleaseAccountant
from flwr_fbo.privacy.gaussian import check_delta, check_epsilon
from flwr_fbo.privacy.release import Calibration
from flwr_fbo.privacy.sampling import Sampling, check_sampling_probability
from flwr_fbo.privacy.weights import WeightSchedule
from flwr_fbo.space.search_space import Params, SearchSpace
from flwr_fbo.strategies.dp_fts_de import DPFTSDE
from flwr_fbo.strategies.fed_warm_start import FedWarmStart
from flwr_fbo.strategies.presets import Preset, preset_of, private_strategies
from flwr_fbo.strategies.privacy_options import Privacy
from flwr_fbo.strategies.seeds import Seeds as StudySeeds
from flwr_fbo.strategies.tuning_strategy import TuningStrategy
from flwr_fbo.tuning.dp_fts_de.settings import (
    DPFTSDESettings,
    Follow,
    InitialRegion,
)
from flwr_fbo.tuning.fed_vote.settings import FedVoteSettings
from flwr_fbo.tuning.fed_warm_start.server import FedWarmStartServer
from flwr_fbo.tuning.fed_warm_start.settings import FedWarmStartSettings
from flwr_fbo.tuning.fed_warm_start.shared_function import rank_vector
from flwr_fbo.tuning.search.agent import Agent
from flwr_fbo.tuning.search.settings import SearchSettings
from flwr_fbo.tuning.search.study import TuningStudy, create_agent


@dataclass(frozen=True)
class TuningPrivacy(PrivacySetting):
    """The privacy setting of an experiment that tunes.

    Attributes
    ----------
    delta : float
        Delta at which epsilon is reported.
    noise_multiplier, epsilon : float
        One of the two, as for `DPFTSDE`.
    sampling_probability : float, optional
        q; the preset's unless given.
    sampling, calibration : str
        Sampling and calibration of `ReleaseSettings`; a fixed size is accounted for by
        Renyi's divergence.
    """

    delta: float
    noise_multiplier: float | None = None
    epsilon: float | None = None
    sampling_probability: float | None = None
    sampling: Sampling = "poisson"
    calibration: Calibration = "joint"

    def __post_init__(self) -> None:
        check_delta(self.delta)
        if self.epsilon is not None:
            expected = "None where noise_multiplier is given, which decides it"
            require(self.noise_multiplier is None, "epsilon", self.epsilon, expected)
            check_epsilon(self.epsilon)
        else:
            require_positive("noise_multiplier", self.noise_multiplier)
        if self.sampling_probability is not None:
            check_sampling_probability(self.sampling_probability)

    @property
    def accountant(self) -> Literal["pld", "rdp"]:
        """The tightest there is for the sampling."""
        return "pld" if self.sampling == "poisson" else "rdp"

    def at(self, epsilon: float) -> TuningPrivacy:
        """Return the same setting at another epsilon."""
        return replace(self, noise_multiplier=None, epsilon=epsilon)


Settings = TypeVar("Settings", bound=SearchSettings)


@dataclass(frozen=True, kw_only=True)
class AgentChanges:
    """Changes of the agents' settings from the preset: see `DPFTSDESettings`.

    What is None is as in the preset.

    Attributes
    ----------
    num_sub_regions : int, optional
        P.
    sub_region_axes : tuple of str, optional
        Names of the axes that sub-regions divide.
    initial_region : {"sub-region", "whole"}, optional
        Region of the initial points.
    random_starts : bool, optional
        Whether uniform points are refined in place of the best candidates.
    lengthscale, regularization : float, optional
        Kernel l and regularization lambda of the messages.
    follow : str, optional
        1 - p_t.
    """

    num_sub_regions: int | None = None
    sub_region_axes: tuple[str, ...] | None = None
    initial_region: InitialRegion | None = None
    random_starts: bool | None = None
    lengthscale: float | None = None
    regularization: float | None = None
    follow: Follow | None = None

    def agent(self, preset: Settings) -> Settings:
        """Return the agent's settings.

        Raises
        ------
        ValueError
            If the preset's agent has no such setting.
        """
        values = {each.name: getattr(self, each.name) for each in fields(AgentChanges)}
        changes = {name: value for name, value in values.items() if value is not None}
        for name, value in changes.items():
            known = hasattr(preset, name)
            require(known, name, value, "left out, with agents of this preset")
        return replace(preset, **changes)


# What only means something where the server's vectors are followed.
_OF_MESSAGES = ("lengthscale", "regularization", "follow", "weights")
_OF_PRIVACY = ("clip_norm", "noise_multiplier", "sampling_probability")
# What a curve cannot set, by its method.
_UNUSED = {"alone": (*_OF_PRIVACY, *_OF_MESSAGES), "open": _OF_PRIVACY, "private": ()}


@dataclass(frozen=True)
class Curve(AgentChanges):
    """A curve of a published figure: a method, and what it sets otherwise.

    What is None is as in the experiment. ``"alone"`` sends no messages, and has none
    of their settings.

    Attributes
    ----------
    label : str
        For tables and figures.
    method : {"alone", "open", "private"}
        The last one comes with a noise-only control.
    weights : WeightSchedule, optional
        Weights of the agents in each sub-region.
    clip_norm : float, optional
        S, of ``"private"``.
    noise_multiplier : float, optional
        z, of ``"private"``.
    sampling_probability : float, optional
        q, of ``"private"``.
    series : tuple of str
        The lines that it is a point of, where utility is drawn against epsilon; else
        the panels that it is in, all of them unless given.
    """

    label: str
    method: Literal["alone", "open", "private"]
    weights: WeightSchedule | None = None
    clip_norm: float | None = None
    noise_multiplier: float | None = None
    sampling_probability: float | None = None
    series: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in _UNUSED[self.method]:
            value = getattr(self, name)
            expected = f"left out, with method={self.method!r}"
            require(value is None, name, value, expected)

    def privacy(self, shared: TuningPrivacy) -> TuningPrivacy:
        """Return the privacy setting of this curve."""
        if self.noise_multiplier is not None:
            z = self.noise_multiplier
            shared = replace(shared, epsilon=None, noise_multiplier=z)
        if self.sampling_probability is not None:
            q = self.sampling_probability
            shared = replace(shared, sampling_probability=q)
        return shared


AS_PRESET = Curve("", "private")


# Of the control that starts at random, as published.
_NUM_RANDOM = 10


@dataclass(frozen=True)
class TuningMethod(Method):
    """One curve of an experiment that tunes.

    Attributes
    ----------
    build : callable
        Takes an experiment and seeds; returns the strategy.
    curve : Curve
        Curve with its own settings.
    first : callable, optional
        Takes an experiment, seeds and a slot; returns what the agent evaluates first.
    liars : float
        Share of the agents that praise a place drawn at random, in [0, 1].
    conspiring : bool
        Whether all liars praise the same place, or each another one each time. Liars
        that conspire are among the first to send: where cohorts start one after
        another, a share of the first one.
    """

    build: Callable[..., TuningStrategy]
    curve: Curve = AS_PRESET
    first: Callable[[TuningExperiment, Seeds, int], list[Params]] | None = None
    liars: float = 0.0
    conspiring: bool = True


def _local(
    agent: SearchSettings,
    experiment: TuningExperiment,
    seeds: Seeds,
    portfolio: Sequence[Params] = (),
) -> TuningStrategy:
    study = replace(experiment.study(agent, seeds), portfolio=portfolio)
    return TuningStrategy(LocalServer(experiment.num_agents), study)


def _random(experiment: TuningExperiment, seeds: Seeds) -> TuningStrategy:
    agent, changes = experiment.base.agent, experiment.agent
    P = 1 if changes.initial_region == "whole" else agent.num_sub_regions
    axes = changes.sub_region_axes or ()
    initial = agent.num_initial
    settings = RandomSearchSettings(
        num_sub_regions=P, num_initial=initial, sub_region_axes=axes
    )
    return _local(settings, experiment, seeds)


def _alone(
    experiment: TuningExperiment, seeds: Seeds, curve: Curve = AS_PRESET
) -> TuningStrategy:
    return _local(curve.agent(experiment.base.agent), experiment, seeds)


def _listed(experiment: TuningExperiment, seeds: Seeds) -> TuningStrategy:
    return _local(experiment.base.agent, experiment, seeds, experiment.task.listed)


def _federated(
    experiment: TuningExperiment,
    seeds: Seeds,
    *,
    private: bool,
    noise_only: bool = False,
    curve: Curve = AS_PRESET,
) -> TuningStrategy:
    task, privacy = experiment.task, curve.privacy(experiment.privacy)
    base, strategy = experiment.base, experiment.strategy
    options = Privacy(
        calibration=privacy.calibration, noise_only=noise_only, allow_large_delta=True
    )
    if private:
        options = replace(
            options,
            noise_multiplier=privacy.noise_multiplier,
            clip_norm=curve.clip_norm,
            sampling_probability=privacy.sampling_probability,
            sampling=privacy.sampling,
            accountant=privacy.accountant,
        )
    else:
        options = replace(options, noise_multiplier=0.0)
        if strategy != "FedWarmStart":  # whose messages are never cut, nor left out
            # A strategy that computes its norm itself has none in its preset.
            norm = None if base.privacy.clip_norm is None else math.inf
            options = replace(options, clip_norm=norm, sampling_probability=1.0)
    strategy_type = private_strategies()[strategy]
    build: Callable[..., TuningStrategy] = strategy_type
    if strategy == "DPFTSDE":  # after every iteration, as published
        options = replace(options, min_follow_probability=0.0, weights=curve.weights)
    if "" not in strategy_type.presets:
        preset = experiment.preset or next(iter(strategy_type.presets))
        build = partial(build, preset=preset)
    if experiment.list_first:
        build = partial(build, portfolio=task.listed)
    return build(
        task.space,
        task.direction,
        experiment.num_agents,
        agent=curve.agent(base.agent),
        privacy=options,
        epsilon=privacy.epsilon if private else None,
        delta=privacy.delta,
        seeds=StudySeeds(seeds.study, seeds.features, seeds.noise),
    )


def _random_points(
    experiment: TuningExperiment, seeds: Seeds, slot: int
) -> list[Params]:
    """Return the points of an agent that starts at random."""
    space = SearchSpace(experiment.task.space)
    rng = generator(seeds.study, slot, 0, Purpose.INITIAL_POINTS)
    num = min(_NUM_RANDOM, experiment.num_evaluations)
    return [space.from_unit(space.snap(x)) for x in rng.random((num, space.dim))]


def _portfolio(experiment: TuningExperiment, seeds: Seeds, slot: int) -> list[Params]:
    """Return the public portfolio, which depends on the task alone."""
    space, num = SearchSpace(experiment.task.space), experiment.num_evaluations
    # Its first point, a corner, is left out.
    design = sobol_points(space.dim, num.bit_length())[1:]
    others = [space.from_unit(space.snap(x)) for x in design]
    return [*experiment.task.customary, *others][:num]


_private = partial(_federated, private=True)
_open = partial(_federated, private=False)
_OPEN = ("alone", "random")
_PRIVATE = partial(
    TuningMethod,
    build=_private,
    controls=(*_OPEN, "noise-only"),
    noisy=True,
    noise_only="noise-only",
)
_ZEROED = partial(_private, noise_only=True)
METHODS = by_name(
    TuningMethod("alone", "TS", _alone, look=looks.ALONE),
    TuningMethod("random", "random", _random, look=looks.RANDOM),
    TuningMethod("open", "FTS-DE", _open, controls=_OPEN, look=looks.OPEN),
    _PRIVATE("private", "DP-FTS-DE", look=looks.OURS),
    TuningMethod(
        "noise-only", "noise-only", _ZEROED, noisy=True, look=looks.UNINFORMED
    ),
    _PRIVATE(
        "blind", "blind", liars=1.0, conspiring=False, look=(palette.ORANGE, ":", "P")
    ),
    _PRIVATE("liars", "1/3 liars", liars=1 / 3, look=(palette.PINK, "--", "x")),
)
_LEAN = by_name(
    TuningMethod(
        "random-start",
        "random start",
        _alone,
        first=_random_points,
        look=(palette.SKY, "--", "d"),
    ),
    TuningMethod(
        "portfolio",
        "portfolio",
        _alone,
        first=_portfolio,
        look=(palette.BROWN, "-.", "<"),
    ),
    TuningMethod("list", "list", _listed, look=looks.OPEN),
)
# What some methods are called where it is not as published, by strategy.
_NAMED = ("open", "private", "blind")
_LABELS = {
    "FedVote": ("open vote", "private vote", "blind vote"),
    "FedWarmStart": ("open start", "warm start", "blind start"),
}


def _labels_of(strategy: str) -> dict[str, str]:
    """Return what a strategy's methods are called, by method, if not as published."""
    if strategy == "DPFTSDE":
        return {}
    labels = _LABELS.get(strategy, ("open", strategy, "blind"))
    return {"alone": "alone", **dict(zip(_NAMED, labels, strict=True))}


def usual_methods(experiment: TuningExperiment) -> tuple[str, ...]:
    """Return what an experiment compares unless it says otherwise."""
    federated = ("open", "private", "noise-only")
    if experiment.list_first:
        return (*_OPEN, "list", "private", "noise-only", "blind")
    if experiment.base.agent.is_lean:
        return (*_OPEN, "random-start", "portfolio", *federated, "blind")
    return (*_OPEN, *federated)


def methods_of(curves: dict[str, Curve]) -> dict[str, TuningMethod]:
    """Return the methods that draw curves, and their noise-only controls, by name.

    Private curves that differ in S, z or q alone share a control: agents go where a
    random function is largest, however large it is.
    """
    controls: dict[Curve, str] = {}
    methods: list[TuningMethod] = []
    for name, curve in curves.items():
        unset: dict[str, Any] = dict.fromkeys(_OF_PRIVACY)
        scale_free = replace(curve, label="", series=(), **unset)
        control = controls.setdefault(scale_free, f"{name}-noise-only")
        methods += methods_of_curve(name, curve, METHODS, _OPEN, control)
    with_curves = (replace(m, build=partial(m.build, curve=m.curve)) for m in methods)
    return by_name(*with_curves)


# Whatever is longer than the clip norm is cut to it.
_LOUD = 1e6


def run_one(experiment: TuningExperiment, method: str, seed: int) -> TuningRun:
    """Run one method on one seed."""
    began = time.process_time()
    num_agents, task = experiment.num_agents, experiment.task
    seeds = Seeds.of_run(seed)
    chosen = experiment.known_methods[method]
    strategy = chosen.build(experiment, seeds)
    horizon = last_iteration(experiment, strategy)
    strategy.plan(horizon)
    objectives = [task.objective(i, num_agents, seed) for i in range(num_agents)]
    agents = [create_agent(strategy.study, i, seeds.study) for i in range(num_agents)]
    if chosen.first is not None:
        for agent in agents:
            agent.enqueue(chosen.first(experiment, seeds, agent.slot))
    crowd = num_agents
    if chosen.conspiring and isinstance(strategy, FedWarmStart):
        crowd = sum(strategy.cohort_sizes[:1])
    for liar in agents[: math.ceil(chosen.liars * crowd)]:
        _make_lie(liar, strategy.study, seed, chosen.conspiring)
    # A release must not say which messages it clips: so they are looked at here.
    limit, norms = _clip_norm(strategy), list[float]()
    meaning = _Meaning(experiment, strategy)
    for agent, objective in zip(agents, objectives, strict=True):
        if math.isfinite(limit):
            _look_at_messages(agent, lambda m: norms.append(float(np.linalg.norm(m))))
        if experiment.measures(method):
            exact = task.truth(agent.slot, num_agents, seed)
            meaning.watch(agent, exact or objective)
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
        num_messages=len(norms),
        num_clipped=sum(norm > limit for norm in norms),
        correlation=meaning.mean(meaning.correlations),
        percentile=meaning.mean(meaning.percentiles),
    )


def _clip_norm(strategy: TuningStrategy) -> float:
    """Return how long messages may be; only those of `DPFTSDE` can be too long."""
    if isinstance(strategy, DPFTSDE):
        settings = strategy.server.release.settings
        if not settings.noise_only:
            return settings.message_norm
    return math.inf


def _look_at_messages(agent: Agent, look: Callable[[FloatArray], None]) -> None:
    """Have each message looked at that an agent makes from now on."""
    message = agent.message

    def seen_message(iteration: int) -> FloatArray:
        vector = message(iteration)
        look(vector)
        return vector

    agent.message = seen_message  # type: ignore[method-assign]


class _Meaning:
    """Measures what messages, and points that agents follow, say of their objectives.

    Parameters
    ----------
    experiment : TuningExperiment
        Experiment with the task and the reference points.
    strategy : TuningStrategy
        A `DPFTSDE`.

    Attributes
    ----------
    correlations : list of float
        A message each: of its function with the agent's own objective.
    percentiles : list of float
        A point each that an agent was led to: the share of the reference points where
        its own objective is worse, in [0, 1].
    """

    def __init__(self, experiment: TuningExperiment, strategy: TuningStrategy) -> None:
        self.correlations: list[float] = []
        self.percentiles: list[float] = []
        study = strategy.study
        self._study, self._space = study, study.space
        rng = generator(study.feature_seed, Purpose.REFERENCE_POINTS)
        uniform = rng.random((experiment.num_references, self._space.dim))
        self._points = np.array([self._space.snap(x) for x in uniform])
        self._sign = -1.0 if experiment.lower_is_better else 1.0

    def watch(self, agent: Agent, objective: Objective) -> None:
        """Measure what an agent sends and is led to from now on."""
        settings = self._study.agent
        assert isinstance(settings, DPFTSDESettings)
        shared = settings.shared_features(self._space.dim, self._study.feature_seed)
        features = shared(self._points)
        suggest = agent.suggest

        def value(x: FloatArray) -> float:
            return self._sign * objective(self._space.from_unit(x))

        values = np.array([value(x) for x in self._points])

        def compare(vector: FloatArray) -> None:
            if np.ptp(values) > 0:
                r = np.corrcoef(features @ vector, values)[0, 1]
                self.correlations.append(float(r))

        def measured_point(iteration: int) -> FloatArray:
            x = suggest(iteration)
            if agent.sources == ["federation"]:
                y = value(x)
                worse = np.mean(values < y) + np.mean(values == y) / 2
                self.percentiles.append(float(worse))
            return x

        _look_at_messages(agent, compare)
        agent.suggest = measured_point  # type: ignore[method-assign]

    @staticmethod
    def mean(values: list[float]) -> float:
        """Return the mean; NaN of none."""
        return float(np.mean(values)) if values else math.nan


def last_iteration(experiment: TuningExperiment, strategy: TuningStrategy) -> int:
    """Return T, by which all agents have made their evaluations, whenever they start.

    Each of the cohorts of a `FedWarmStart` starts after the one before has sent.
    """
    agent, waiting = strategy.study.agent, 0
    if isinstance(strategy, FedWarmStart):
        assert isinstance(agent, FedWarmStartSettings)
        waiting = len(strategy.cohort_sizes) * agent.share_after
    return waiting + experiment.num_evaluations - agent.num_initial


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
        if not isinstance(settings, DPFTSDESettings | FedVoteSettings):
            told = create_agent(study, agent.slot, seed)
            told.tell(0, place[0], 0.0)  # its only trial, and so its best
            return told.message(iteration)
        sent: SearchSettings = settings
        if isinstance(settings, FedVoteSettings):
            sent = settings.after(iteration, space.dim)
        features = sent.shared_features(space.dim, study.feature_seed)
        return np.asarray(_LOUD * features(place)[0])

    agent.message = lie  # type: ignore[method-assign]


# In a list of methods: those that the strategy is usually compared to.
_USUAL = "usual"


@dataclass(frozen=True, kw_only=True)
class TuningExperiment(OptimisationExperiment):
    """Methods on a task, over paired seeds.

    Attributes
    ----------
    privacy : TuningPrivacy
        Noise, sampling and clipping of the federated methods.
    strategy : str
        The federated methods': ``"FedVote"``, ``"FedWarmStart"``, ``"DPFTSDE"``, or
        another that is registered and has presets. The controls share its agent.
    preset : str, optional
        Preset of a strategy that has several, as `DPFTSDE`.
    agent : AgentChanges
        Changes of the agents' settings, for all methods.
    list_first : bool
        Whether federated methods begin with the task's public list. The usual controls
        are then another few: *list* begins with it, too, and searches alone.
    curves : dict of Curve
        Methods with settings of their own, by name. Private ones bring a noise-only
        control with them, ``NAME-noise-only``; those that differ in S, z or q alone
        share the first one's.
    methods : tuple of str
        ``"usual"`` stands for all controls, without liars. All curves are added.
    num_references : int
        Points at which the messages of open methods are compared with the objective of
        who sends them, of `DPFTSDE`; 0: they are not.
    form : {"convergence", "tradeoff", "messages"}
        The figure: best value against evaluation, or in the end against epsilon; or
        what messages of each lengthscale say.
    """

    privacy: TuningPrivacy
    strategy: str = "DPFTSDE"
    preset: str | None = None
    agent: AgentChanges = field(default_factory=AgentChanges)
    list_first: bool = field(default=False, metadata=flag())
    curves: dict[str, Curve] = field(default_factory=dict)

    methods: tuple[str, ...] = (_USUAL,)
    num_references: int = field(default=0, metadata=integer(0))
    form: Literal["convergence", "tradeoff", "messages"] = "convergence"

    def __post_init__(self) -> None:
        preset_of(self.strategy, self.preset)  # which names what it does not allow
        for curve in self.curves.values():
            weights = curve.weights
            is_valid = weights is None or self.strategy == "DPFTSDE"
            require(is_valid, "weights", weights, f"left out, with {self.strategy}")
        methods: list[str] = []
        for name in self.methods:
            methods += usual_methods(self) if name == _USUAL else [name]
        methods += [name for name in methods_of(self.curves) if name not in methods]
        object.__setattr__(self, "methods", tuple(methods))
        super().__post_init__()
        taken = signature(private_strategies()[self.strategy]).parameters
        is_valid = "portfolio" in taken or not self.list_first
        expected = f"False, with {self.strategy}, which has no portfolio"
        require(is_valid, "list_first", self.list_first, expected)
        agent = self.base.agent
        least = agent.num_initial
        if isinstance(agent, FedWarmStartSettings):
            num_listed = len(self.task.listed) if self.list_first else 0
            least = agent.share_after + num_listed
        is_valid = self.num_evaluations >= least
        require(is_valid, "num_evaluations", self.num_evaluations, f"at least {least}")
        of_paper = self.strategy == "DPFTSDE" or self.num_references == 0
        expected = "left out, where agents send no functions"
        require(of_paper, "num_references", self.num_references, expected)
        if self.form == "messages":
            is_valid = self.num_references > 0
            expected = "at least 1, where form is 'messages'"
            require(is_valid, "num_references", self.num_references, expected)
        if self.form == "tradeoff":
            private = {n for n, c in self.curves.items() if c.method == "private"}
            wrong = sorted(
                n for n, c in self.curves.items() if bool(c.series) != (n in private)
            )
            expected = "private curves, each in a series, where form is 'tradeoff'"
            require(len(private) > 0 and not wrong, "curves", wrong, expected)

    @property
    def first_counted(self) -> int:
        """The index of the first evaluation after random initial points.

        Agents that start lean have none: where they begin is part of the method.
        """
        agent = self.base.agent
        return 0 if agent.is_lean else int(agent.num_initial)

    @property
    def known_methods(self) -> Mapping[str, TuningMethod]:
        """All methods that it could have, by name, as the strategy calls them."""
        labels = _labels_of(self.strategy)
        if self.list_first:
            labels["private"] = "list + start"
        if self.base.agent.num_sub_regions > 1:  # the paper's TS starts anywhere
            labels["alone"] = "TS in sub-regions (ours)"
        known = {**METHODS, **(_LEAN if self.base.agent.is_lean else {})}
        return {
            name: replace(method, label=labels.get(name, method.label))
            for name, method in known.items()
        } | methods_of(self.curves)

    def with_epsilon(self, epsilon: float) -> Self:
        """Return the same experiment at another epsilon; see `Experiment`."""
        expected = "left out: its curves have their own noise"
        require(not self.curves, "epsilon", epsilon, expected)
        return super().with_epsilon(epsilon)

    def measures(self, method: str) -> bool:
        """Return whether a method's messages are compared with the objectives."""
        return self.num_references > 0 and self.known_methods[method].base == "open"

    def published_epsilon(self, curve: str) -> float | None:
        """Return what a private curve spends by the paper's moments accountant.

        As the paper counts it: each release at q and z. None where samples have a fixed
        size, which it does not cover.
        """
        privacy = self.curves[curve].privacy(self.privacy)
        if privacy.sampling != "poisson":
            return None
        q, z = privacy.sampling_probability, privacy.noise_multiplier
        assert q is not None
        assert z is not None
        accountant = ReleaseAccountant(q, self.privacy.delta, "moments")
        accountant.charge(z, self.num_evaluations - self.base.agent.num_initial)
        return accountant.epsilon()

    def lengthscale_of(self, method: str) -> float:
        """Return l of a method's messages, where agents send functions."""
        agent = self.known_methods[method].curve.agent(self.base.agent)
        assert isinstance(agent, DPFTSDESettings)
        return agent.lengthscale

    def recipe(self, method: str) -> dict[str, Any]:
        """Return what decides a method's runs, whatever experiment they are part of."""
        values = super().recipe(method)
        values.pop("privacy", None)
        if not self.measures(method):
            del values["num_references"]
        del values["curves"], values["list_first"]
        chosen, base = self.known_methods[method], self.base
        curve = chosen.curve
        values["method"] = name = chosen.base
        if name == "list" or (self.list_first and name not in (*_OPEN, *_LEAN)):
            values["listed"] = self.task.listed
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

    def play_batch(self, batch: Sequence[str], seed: int) -> list[TuningRun]:
        """Run methods, one after another."""
        return [run_one(self, method, seed) for method in batch]

    def num_sent(self, method: str, runs: Sequence[Run]) -> float:
        """Return how many numbers are sent; see `Experiment`.

        Every agent sends a message for each release, and gets all of its vectors before
        its next evaluation; of a `FedWarmStart` one message at most, and before its
        first evaluation what there is.
        """
        strategy = self._strategy(method)
        if strategy.releases is None:
            return 0
        strategy.plan(last_iteration(self, strategy))
        server, agent = strategy.server, strategy.study.agent
        assert isinstance(agent, SearchSettings)
        num_agents, length = server.num_agents, agent.message_length
        if isinstance(server, FedWarmStartServer):
            cohorts = server.cohorts
            got = sum(map(cohorts.cohort_of, range(num_agents)))
            return (got + sum(cohorts.cohort_sizes)) * length
        # An agent's next evaluation, if there is one, follows each release.
        times = strategy.releases.server.iterations
        before = agent.num_initial + len(strategy.study.portfolio)
        num_followed = sum(before + t < self.num_evaluations for t in times)
        num_messages = len(times) + agent.num_sub_regions * num_followed
        return num_agents * num_messages * length

    def _strategy(self, method: str) -> TuningStrategy:
        return self.known_methods[method].build(self, Seeds.of_run(0))

    def notes(self, runs: Sequence[Run], until: int | None) -> tuple[str, list[str]]:
        """Return the table's title, and what is to be said below it."""
        title, (first, *others) = super().notes(runs, until)
        accountant = self.privacy.accountant.upper()
        terms = self.unit.terms(self.privacy.delta)
        privacy = (
            f"epsilon: spent {terms}, by the {accountant} accountant, had the noise "
            "been real. The noise of an experiment is "
            "seeded: NOT PRIVATE."
        )
        known = [run for run in runs if isinstance(run, TuningRun)]
        for name in filter(self.measures, self.methods):
            of_method = [run for run in known if run.method == name]
            r = Estimate.of(np.array([run.correlation for run in of_method]))
            p = Estimate.of(np.array([run.percentile for run in of_method]))
            others.append(
                f"{self.label_of(name)}: correlation of a message with its sender's "
                f"objective {r.mean:+.3f} ± {r.standard_error:.3f}, percentile of a "
                f"followed point {p.mean:.3f} ± {p.standard_error:.3f}."
            )
        return title, [first, privacy, *others]

    def verdict(self, rows: Mapping[str, Row]) -> list[str]:
        """Say in words whether federation helped, with and without privacy."""
        if any(row.estimates["final"].num_runs < 2 for row in rows.values()):
            return [ONE_SEED]
        lines = []
        for name, what in (
            ("list", "The public list"),
            ("open", "Federation without privacy ({})"),
            ("private", "Federation with privacy ({})"),
        ):
            row = rows.get(name)
            if row is None or (self.list_first and name != "list"):
                continue
            if (gain := row.estimates.get("over_alone")) is not None:
                lines.append(f"{what.format(row.label)} {helped(gain, self._alone)}")
        if (private := rows.get("private")) is not None:
            found = private.estimates
            if "over_noise_only" in found:
                lines.append(carried(private.label, found["over_noise_only"]))
            if "final_over_alone" in found:
                gain = found["final_over_alone"]
                lines += at_the_end(private.label, gain, self._alone)
        return lines

    @property
    def base(self) -> Preset:
        """Settings of federated methods and controls, unless a curve sets them."""
        preset = preset_of(self.strategy, self.preset)
        return replace(preset, agent=self.agent.agent(preset.agent))

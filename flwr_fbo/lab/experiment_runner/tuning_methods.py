"""The methods an experiment that tunes compares: federated ones and their controls.

Given the same seed they share the agents' draws, the noise and the mask: what differs
between two curves is the method. Agents that start lean have more controls than those
with published settings, which begin with random points anyway:

- *random-start*: ten random points, then the same search;
- *portfolio*: a public list, the same for every agent. First the settings that a person
  would try, where the task knows some, then a Sobol design of the space;
- *blind*: messages in praise of places drawn at random.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import ConfigDict

from flwr_fbo._common import palette
from flwr_fbo._common.random import Purpose, generator, sobol_points
from flwr_fbo._common.validation import require, require_positive
from flwr_fbo.algorithms.dp_fts_de.settings import Follow, InitialRegion
from flwr_fbo.algorithms.search.settings import AgentSettings
from flwr_fbo.lab.baselines.random_search import LocalServer, RandomSearchSettings
from flwr_fbo.lab.experiment_runner.base import (
    ALONE,
    OPEN,
    OURS,
    RANDOM,
    UNINFORMED,
    Method,
    PrivacySetting,
    by_name,
)
from flwr_fbo.lab.experiment_runner.seeds import Seeds
from flwr_fbo.lab.experiment_runner.tuning_table import OptimisationExperiment
from flwr_fbo.lab.tasks.base import STRICT
from flwr_fbo.privacy.budget import check_delta, check_epsilon
from flwr_fbo.privacy.release import Calibration
from flwr_fbo.privacy.sampling import Sampling, check_sampling_probability
from flwr_fbo.privacy.weights import WeightSchedule
from flwr_fbo.space.search_space import Params, SearchSpace
from flwr_fbo.strategies.dp_fts_de import DPFTSDE
from flwr_fbo.strategies.fed_vote import FedVote
from flwr_fbo.strategies.fed_warm_start import FedWarmStart
from flwr_fbo.strategies.options import Privacy
from flwr_fbo.strategies.options import Seeds as StudySeeds
from flwr_fbo.strategies.presets import Preset, preset_of
from flwr_fbo.strategies.tuning_strategy import TuningStrategy


@dataclass(frozen=True)
class TuningPrivacy(PrivacySetting):
    """The privacy setting of an experiment that tunes.

    Attributes
    ----------
    delta : float
        Where epsilon is reported.
    noise_multiplier, epsilon : float
        One of the two, as for `DPFTSDE`.
    sampling_probability : float, optional
        q; the preset's unless given.
    sampling, calibration : str
        Of `ReleaseSettings`; a fixed size is accounted for by Renyi's divergence.
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
            allowed = "None where noise_multiplier is given, which decides it"
            require(self.noise_multiplier is None, "epsilon", self.epsilon, allowed)
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


Settings = TypeVar("Settings", bound=AgentSettings)


@dataclass(frozen=True, kw_only=True)
class AgentChanges:
    """What agents set otherwise than in the preset: see `DPFTSDESettings`.

    What is None is as in the preset.

    Attributes
    ----------
    num_sub_regions : int, optional
        P.
    sub_region_axes : tuple of str, optional
    initial_region : {"sub-region", "whole"}, optional
    random_starts : bool, optional
    lengthscale, regularization : float, optional
        Of the messages: l and lambda.
    follow : str, optional
        1 - p_t.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

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
        names = [one.name for one in fields(AgentChanges)]
        given = {name: getattr(self, name) for name in names}
        own = {name: value for name, value in given.items() if value is not None}
        for name, value in own.items():
            known = hasattr(preset, name)
            require(known, name, value, "left out, with agents of this preset")
        return replace(preset, **own)


# What only means something where the server's vectors are followed.
_OF_MESSAGES = ("lengthscale", "regularization", "follow", "weights")
_OF_PRIVACY = ("clip_norm", "noise_multiplier", "sampling_probability")


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
        Of the agents in each sub-region.
    clip_norm : float, optional
        S, of ``"private"``.
    noise_multiplier : float, optional
        z, of ``"private"``.
    sampling_probability : float, optional
        q, of ``"private"``.
    series : tuple of str
        The lines that it is a point of, where utility is drawn against epsilon.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    label: str
    method: Literal["alone", "open", "private"]
    weights: WeightSchedule | None = None
    clip_norm: float | None = None
    noise_multiplier: float | None = None
    sampling_probability: float | None = None
    series: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in _OF_PRIVACY:
            value = getattr(self, name)
            ok = value is None or self.method == "private"
            require(ok, name, value, f"left out, with method={self.method!r}")
        for name in _OF_MESSAGES:
            value = getattr(self, name)
            ok = value is None or self.method != "alone"
            require(ok, name, value, "left out, with method='alone'")
        ok = not self.series or self.method == "private"
        require(ok, "series", self.series, f"left out, with method={self.method!r}")

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


@dataclass(frozen=True, kw_only=True)
class TuningDesign(OptimisationExperiment):
    """The settings of an experiment that tunes, which its methods read.

    Attributes
    ----------
    privacy : TuningPrivacy
    strategy : {"FedVote", "FedWarmStart", "DPFTSDE"}
        The federated methods'; the controls share its agent.
    preset : str, optional
        Of `DPFTSDE`.
    agent : AgentChanges
        What the agents of all methods set otherwise.
    curves : dict of Curve
        Methods with settings of their own, by name. Private ones bring a noise-only
        control with them, ``NAME-noise-only``; those that differ in S, z or q alone
        share the first one's.
    """

    tables: ClassVar[Mapping[str, type[Any]]] = {
        "privacy": TuningPrivacy,
        "agent": AgentChanges,
        "curves": Curve,
        "weights": WeightSchedule,
    }

    privacy: TuningPrivacy
    strategy: str = "DPFTSDE"
    preset: str | None = None
    agent: AgentChanges = field(default_factory=AgentChanges)
    curves: dict[str, Curve] = field(default_factory=dict)

    @property
    def setting(self) -> str:
        """Strategy and preset, for a legend."""
        return f"{self.strategy} {self.preset or ''}".rstrip()

    @property
    def base(self) -> Preset:
        """What the federated methods and their controls set unless a curve does."""
        preset = preset_of(self.strategy, self.preset)
        return replace(preset, agent=self.agent.agent(preset.agent))


# Of the control that starts at random, as published.
_NUM_RANDOM = 10


@dataclass(frozen=True)
class TuningMethod(Method):
    """One curve of an experiment that tunes.

    Attributes
    ----------
    build : callable
        Takes an experiment and seeds; returns the strategy.
    base : str
        The method that it is a variant of; itself unless given.
    curve : Curve
        What it sets otherwise.
    first : callable, optional
        Takes an experiment, seeds and a slot; returns what the agent evaluates first.
    liars : float
        Share of the agents that praise a place drawn at random, in [0, 1].
    conspiring : bool
        Whether all liars praise the same place, or each another one each time. Liars
        that conspire are among the first to send: where cohorts start one after
        another, a share of the first one.
    """

    build: Callable[[TuningDesign, Seeds], TuningStrategy]
    base: str = ""
    curve: Curve = AS_PRESET
    first: Callable[[TuningDesign, Seeds, int], list[Params]] | None = None
    liars: float = 0.0
    conspiring: bool = True


def _local(
    agent: AgentSettings, experiment: TuningDesign, seeds: Seeds
) -> TuningStrategy:
    study = experiment.study(agent, seeds)
    return TuningStrategy(LocalServer(experiment.num_agents), study)


def _random(experiment: TuningDesign, seeds: Seeds) -> TuningStrategy:
    agent, changes = experiment.base.agent, experiment.agent
    P = 1 if changes.initial_region == "whole" else agent.num_sub_regions
    axes = changes.sub_region_axes or ()
    settings = RandomSearchSettings(P, agent.num_initial, axes)
    return _local(settings, experiment, seeds)


def _alone(
    experiment: TuningDesign, seeds: Seeds, curve: Curve = AS_PRESET
) -> TuningStrategy:
    agent = experiment.base.agent
    return _local(curve.agent(agent), experiment, seeds)


def _federated(
    experiment: TuningDesign,
    seeds: Seeds,
    *,
    private: bool,
    noise_only: bool = False,
    curve: Curve = AS_PRESET,
) -> TuningStrategy:
    task, privacy = experiment.task, curve.privacy(experiment.privacy)
    strategy = experiment.strategy
    options = Privacy(calibration=privacy.calibration, noise_only=noise_only)
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
            options = replace(options, clip_norm=math.inf, sampling_probability=1.0)
    build: Callable[..., TuningStrategy] = _OURS.get(strategy, DPFTSDE)
    if strategy == "DPFTSDE":  # after every iteration, as published
        options = replace(options, min_follow_probability=0.0)
        preset = experiment.preset or "paper"
        build = partial(DPFTSDE, preset=preset, weights=curve.weights)
    return build(
        task.space,
        task.direction,
        experiment.num_agents,
        agent=curve.agent(experiment.base.agent),
        privacy=options,
        epsilon=privacy.epsilon if private else None,
        delta=privacy.delta,
        seeds=StudySeeds(seeds.study, seeds.features, seeds.noise),
    )


def _random_points(experiment: TuningDesign, seeds: Seeds, slot: int) -> list[Params]:
    """Return the points of an agent that starts at random."""
    space = SearchSpace(experiment.task.space)
    rng = generator(seeds.study, slot, 0, Purpose.INITIAL_POINTS)
    num = min(_NUM_RANDOM, experiment.num_evaluations)
    return [space.from_unit(space.snap(x)) for x in rng.random((num, space.dim))]


def _portfolio(experiment: TuningDesign, seeds: Seeds, slot: int) -> list[Params]:
    """Return the public portfolio, which depends on the task alone."""
    space, num = SearchSpace(experiment.task.space), experiment.num_evaluations
    # Its first point, a corner, is left out.
    design = sobol_points(space.dim, num.bit_length())[1:]
    others = [space.from_unit(space.snap(x)) for x in design]
    return [*experiment.task.customary, *others][:num]


_private = partial(_federated, private=True)
_open = partial(_federated, private=False)
_OURS = {"FedVote": FedVote, "FedWarmStart": FedWarmStart}
_OPEN = ("alone", "random")
_PRIVATE: dict[str, Any] = {
    "controls": (*_OPEN, "noise-only"),
    "noisy": True,
    "noise_only": "noise-only",
}
_ZEROED = partial(_private, noise_only=True)
# The first five are the usual ones with published settings.
METHODS = by_name(
    TuningMethod("alone", "TS", _alone, look=ALONE),
    TuningMethod("random", "random", _random, look=RANDOM),
    TuningMethod("open", "FTS-DE", _open, controls=_OPEN, look=OPEN),
    TuningMethod("private", "DP-FTS-DE", _private, look=OURS, **_PRIVATE),
    TuningMethod("noise-only", "noise-only", _ZEROED, noisy=True, look=UNINFORMED),
    TuningMethod(
        "blind",
        "blind",
        _private,
        liars=1.0,
        conspiring=False,
        look=(palette.ORANGE, ":", "P"),
        **_PRIVATE,
    ),
    TuningMethod(
        "liars",
        "1/3 liars",
        _private,
        liars=1 / 3,
        look=(palette.PINK, "--", "x"),
        **_PRIVATE,
    ),
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
)
_LABELS = {
    "FedVote": {
        "alone": "alone",
        "open": "open vote",
        "private": "private vote",
        "blind": "blind vote",
    },
    "FedWarmStart": {
        "alone": "alone",
        "open": "open start",
        "private": "warm start",
        "blind": "blind start",
    },
}


def usual_methods(experiment: TuningDesign) -> tuple[str, ...]:
    """Return what an experiment compares unless it says otherwise."""
    alone, random, *federated = METHODS
    if experiment.base.is_lean:
        return alone, random, *_LEAN, *(n for n in federated if n != "liars")
    return tuple(METHODS)[:5]


def methods_of_strategy(experiment: TuningDesign) -> dict[str, TuningMethod]:
    """Return all methods but curves, by name, as the strategy calls them."""
    labels = _LABELS.get(experiment.strategy, {})
    known = {**METHODS, **(_LEAN if experiment.base.is_lean else {})}
    return {
        name: replace(method, label=labels.get(name, method.label))
        for name, method in known.items()
    }


def known_methods(experiment: TuningDesign) -> dict[str, TuningMethod]:
    """Return all methods that an experiment could have, by name."""
    return {**methods_of_strategy(experiment), **methods_of(experiment.curves)}


def methods_of(curves: dict[str, Curve]) -> dict[str, TuningMethod]:
    """Return the methods that draw curves, and their noise-only controls, by name.

    Private curves that differ in S, z or q alone share a control: agents go where a
    random function is largest, however large it is.
    """
    controls: dict[Curve, str] = {}
    methods: list[TuningMethod] = []
    for name, curve in curves.items():
        control = controls.setdefault(_without_scale(curve), f"{name}-noise-only")
        methods += _methods_of(name, curve, control)
    return by_name(*methods)


def _without_scale(curve: Curve) -> Curve:
    """Return a curve without what only scales the noise of its releases."""
    return replace(
        curve,
        label="",
        series=(),
        clip_norm=None,
        noise_multiplier=None,
        sampling_probability=None,
    )


def _methods_of(name: str, curve: Curve, control: str) -> list[TuningMethod]:
    with_curve: Callable[..., TuningStrategy] = METHODS[curve.method].build
    build = partial(with_curve, curve=curve)
    method = TuningMethod(name, curve.label, build, base=curve.method, curve=curve)
    if curve.method == "alone":
        return [method]
    if curve.method == "open":
        return [replace(method, controls=_OPEN)]
    controls = (*_OPEN, control)
    method = replace(method, controls=controls, noisy=True, noise_only=control)
    if control != f"{name}-noise-only":
        return [method]
    zeroed = TuningMethod(
        control,
        f"{curve.label}, noise-only",
        partial(_private, curve=curve, noise_only=True),
        base="noise-only",
        curve=curve,
        noisy=True,
    )
    return [method, zeroed]

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
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from flwr_fbo._common import pictures
from flwr_fbo._common.random import Purpose, generator, sobol_points
from flwr_fbo.algorithms.search.settings import SearchSettings
from flwr_fbo.lab.baselines.local_server import LocalServer
from flwr_fbo.lab.baselines.random_search import RandomSearchSettings
from flwr_fbo.lab.experiment_runner import looks
from flwr_fbo.lab.experiment_runner.methods import Method, by_name
from flwr_fbo.lab.experiment_runner.seeds import Seeds
from flwr_fbo.lab.experiment_runner.tuning_design import (
    AS_PRESET,
    Curve,
    TuningDesign,
)
from flwr_fbo.space.search_space import Params, SearchSpace
from flwr_fbo.strategies.dp_fts_de import DPFTSDE
from flwr_fbo.strategies.fed_vote import FedVote
from flwr_fbo.strategies.fed_warm_start import FedWarmStart
from flwr_fbo.strategies.options import Privacy
from flwr_fbo.strategies.options import Seeds as StudySeeds
from flwr_fbo.strategies.tuning_strategy import TuningStrategy

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
    agent: SearchSettings, experiment: TuningDesign, seeds: Seeds
) -> TuningStrategy:
    study = experiment.study(agent, seeds)
    return TuningStrategy(LocalServer(experiment.num_agents), study)


def _random(experiment: TuningDesign, seeds: Seeds) -> TuningStrategy:
    agent, changes = experiment.base.agent, experiment.agent
    P = 1 if changes.initial_region == "whole" else agent.num_sub_regions
    axes = changes.sub_region_axes or ()
    initial = agent.num_initial
    settings = RandomSearchSettings(
        num_sub_regions=P, num_initial=initial, sub_region_axes=axes
    )
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
    TuningMethod("alone", "TS", _alone, look=looks.ALONE),
    TuningMethod("random", "random", _random, look=looks.RANDOM),
    TuningMethod("open", "FTS-DE", _open, controls=_OPEN, look=looks.OPEN),
    TuningMethod("private", "DP-FTS-DE", _private, look=looks.OURS, **_PRIVATE),
    TuningMethod(
        "noise-only", "noise-only", _ZEROED, noisy=True, look=looks.UNINFORMED
    ),
    TuningMethod(
        "blind",
        "blind",
        _private,
        liars=1.0,
        conspiring=False,
        look=(pictures.ORANGE, ":", "P"),
        **_PRIVATE,
    ),
    TuningMethod(
        "liars",
        "1/3 liars",
        _private,
        liars=1 / 3,
        look=(pictures.PINK, "--", "x"),
        **_PRIVATE,
    ),
)
_LEAN = by_name(
    TuningMethod(
        "random-start",
        "random start",
        _alone,
        first=_random_points,
        look=(pictures.SKY, "--", "d"),
    ),
    TuningMethod(
        "portfolio",
        "portfolio",
        _alone,
        first=_portfolio,
        look=(pictures.BROWN, "-.", "<"),
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
    if experiment.base.agent.is_lean:
        return alone, random, *_LEAN, *(n for n in federated if n != "liars")
    return tuple(METHODS)[:5]


def methods_of_strategy(experiment: TuningDesign) -> dict[str, TuningMethod]:
    """Return all methods but curves, by name, as the strategy calls them."""
    labels = _LABELS.get(experiment.strategy, {})
    known = {**METHODS, **(_LEAN if experiment.base.agent.is_lean else {})}
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

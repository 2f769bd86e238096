"""The methods an experiment that tunes compares: federated ones and their controls.

All share the agents' initial points and, given the same seed, the same noise and mask:
what differs between two curves is the method.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from flwr_fbo.experiment_runner.base import Method
from flwr_fbo.experiment_runner.seeds import Seeds
from flwr_fbo.experiment_runner.tuning_design import (
    AS_PRESET,
    OF_AGENTS,
    Curve,
    TuningDesign,
    TuningPrivacy,
)
from flwr_fbo.protocol.fed_vote_settings import VotingSettings
from flwr_fbo.protocol.tuning_settings import RandomSearchSettings, ThompsonSettings
from flwr_fbo.protocol.tuning_study import AgentSettings, TuningStudy
from flwr_fbo.servers.local import LocalServer
from flwr_fbo.space.search_space import SearchSpace
from flwr_fbo.strategies.dp_fts_de import DPFTSDE
from flwr_fbo.strategies.fed_vote import FedVote
from flwr_fbo.strategies.options import Privacy
from flwr_fbo.strategies.options import Seeds as StudySeeds
from flwr_fbo.strategies.presets import Preset
from flwr_fbo.strategies.tuning_strategy import TuningStrategy


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
    liars : float
        Share of the agents that praise a place drawn at random, in [0, 1].
    conspiring : bool
        Whether all liars praise the same place, or each another one each time.
    """

    build: Callable[[TuningDesign, Seeds], TuningStrategy]
    base: str = ""
    curve: Curve = AS_PRESET
    liars: float = 0.0
    conspiring: bool = True


def _local(
    agent: AgentSettings, experiment: TuningDesign, seeds: Seeds
) -> TuningStrategy:
    task = experiment.task
    study = TuningStudy(
        SearchSpace(task.space),
        task.direction,
        agent,
        study_seed=seeds.study,
        feature_seed=seeds.features,
    )
    return TuningStrategy(LocalServer(experiment.num_agents), study)


def _random(experiment: TuningDesign, seeds: Seeds) -> TuningStrategy:
    agent = experiment.base.agent
    settings = RandomSearchSettings(agent.num_sub_regions, agent.num_initial)
    return _local(settings, experiment, seeds)


def _thompson(
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
    agent = curve.agent(experiment.base.agent)
    assert isinstance(agent, ThompsonSettings | VotingSettings)
    base = experiment.base
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
        options = replace(
            options, noise_multiplier=0.0, clip_norm=math.inf, sampling_probability=1.0
        )
    if not base.votes:  # after every iteration, as published
        options = replace(options, min_follow_probability=0.0)
    build: Callable[..., TuningStrategy] = FedVote
    if not base.votes:
        build = partial(DPFTSDE, preset=experiment.preset or "paper")
    return build(
        task.space,
        task.direction,
        experiment.num_agents,
        agent=agent,
        privacy=options,
        epsilon=privacy.epsilon if private else None,
        delta=privacy.delta,
        seeds=StudySeeds(seeds.study, seeds.features, seeds.noise),
    )


_private = partial(_federated, private=True)
_OPEN = ("ts", "random")
_CONTROLS = (*_OPEN, "noise-only")

_open = partial(_federated, private=False)
_ALL = (
    TuningMethod(
        "ts",
        "TS",
        _thompson,
        look=("#000000", "-", "o"),
    ),
    TuningMethod(
        "random",
        "random",
        _random,
        look=("#7f7f7f", ":", "v"),
    ),
    TuningMethod(
        "fts-de",
        "FTS-DE",
        _open,
        controls=_OPEN,
        look=("#009e73", "--", "s"),
    ),
    TuningMethod(
        "dp-fts-de",
        "DP-FTS-DE",
        _private,
        controls=_CONTROLS,
        noisy=True,
        noise_only="noise-only",
        look=("#0072b2", "-", "D"),
    ),
    TuningMethod(
        "noise-only",
        "noise-only",
        partial(_private, noise_only=True),
        noisy=True,
        look=("#d55e00", "-.", "^"),
    ),
    TuningMethod(
        "liars",
        "1/3 liars",
        _private,
        liars=1 / 3,
        controls=_CONTROLS,
        noisy=True,
        noise_only="noise-only",
        look=("#cc79a7", "--", "x"),
    ),
    TuningMethod(
        "blind",
        "blind vote",
        _private,
        liars=1.0,
        conspiring=False,
        controls=_CONTROLS,
        noisy=True,
        noise_only="noise-only",
        look=("#e69f00", ":", "P"),
    ),
)
METHODS = {method.name: method for method in _ALL}
# What an experiment compares unless it says otherwise.
USUAL_METHODS = tuple(method.name for method in _ALL if method.liars == 0)


def known_methods(experiment: TuningDesign) -> dict[str, TuningMethod]:
    """Return all methods that an experiment could have, by name."""
    return {**METHODS, **methods_of(experiment.curves)}


def methods_of(curves: dict[str, Curve]) -> dict[str, TuningMethod]:
    """Return the methods that draw curves, and their noise-only controls, by name."""
    methods = [one for name, c in curves.items() for one in _methods_of(name, c)]
    return {method.name: method for method in methods}


def _methods_of(name: str, curve: Curve) -> list[TuningMethod]:
    with_curve: Callable[..., TuningStrategy] = METHODS[curve.method].build
    build = partial(with_curve, curve=curve)
    method = TuningMethod(name, curve.label, build, base=curve.method, curve=curve)
    if curve.method == "ts":
        return [method]
    if curve.method == "fts-de":
        return [replace(method, controls=_OPEN)]
    control = f"{name}-noise-only"
    controls = (*_OPEN, control)
    method = replace(method, controls=controls, noisy=True, noise_only=control)
    zeroed = TuningMethod(
        control,
        f"{curve.label}, noise-only",
        partial(_private, curve=curve, noise_only=True),
        base="noise-only",
        curve=curve,
        noisy=True,
    )
    return [method, zeroed]


def recipe_of(
    method: TuningMethod, base: Preset, privacy: TuningPrivacy
) -> dict[str, Any]:
    """Return what decides a method's runs on a task, whatever it is called."""
    curve = method.curve
    recipe: dict[str, Any] = {
        "method": method.base or method.name,
        "num_sub_regions": curve.agent(base.agent).num_sub_regions,
    }
    given = {name: getattr(curve, name) for name in OF_AGENTS}
    # Left out where it is the preset's: runs from before there was a choice go on.
    recipe |= {name: value for name, value in given.items() if value is not None}
    if method.noisy:
        privacy = curve.privacy(privacy)
        q = privacy.sampling_probability or base.privacy.sampling_probability
        recipe["privacy"] = asdict(replace(privacy, sampling_probability=q))
        recipe["clip_norm"] = curve.clip_norm or base.privacy.clip_norm
    return recipe


_LABELS_OF_VOTES = {"fts-de": "open vote", "dp-fts-de": "private vote"}


def label_of(method: Method, base: Preset) -> str:
    """Return what tables and figures call a method whose federation is a preset's."""
    labels = _LABELS_OF_VOTES if base.votes else {}
    return labels.get(method.name, method.label)

"""The methods an experiment that tunes compares: federated ones and their controls.

All share the agents' initial points and, given the same seed, the same noise and mask:
what differs between two curves is the method.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from flwr_fbo.experiment_runner import looks
from flwr_fbo.experiment_runner.methods import Method, by_name
from flwr_fbo.experiment_runner.seeds import Seeds
from flwr_fbo.experiment_runner.tuning_design import (
    AS_PRESET,
    Curve,
    TuningDesign,
)
from flwr_fbo.protocol.fed_vote_settings import VotingSettings
from flwr_fbo.protocol.tuning_settings import RandomSearchSettings, ThompsonSettings
from flwr_fbo.protocol.tuning_study import AgentSettings
from flwr_fbo.servers.local import LocalServer
from flwr_fbo.strategies.dp_fts_de import DPFTSDE
from flwr_fbo.strategies.fed_vote import FedVote
from flwr_fbo.strategies.options import Privacy
from flwr_fbo.strategies.options import Seeds as StudySeeds
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
    study = experiment.study(agent, seeds)
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
_open = partial(_federated, private=False)
_OPEN = ("ts", "random")
_PRIVATE: dict[str, Any] = {
    "controls": (*_OPEN, "noise-only"),
    "noisy": True,
    "noise_only": "noise-only",
}
_ZEROED = partial(_private, noise_only=True)
METHODS = by_name(
    TuningMethod("ts", "TS", _thompson, look=looks.ALONE),
    TuningMethod("random", "random", _random, look=looks.RANDOM),
    TuningMethod("fts-de", "FTS-DE", _open, controls=_OPEN, look=looks.OPEN),
    TuningMethod("dp-fts-de", "DP-FTS-DE", _private, look=looks.OURS, **_PRIVATE),
    TuningMethod(
        "noise-only", "noise-only", _ZEROED, noisy=True, look=looks.UNINFORMED
    ),
    TuningMethod(
        "liars",
        "1/3 liars",
        _private,
        liars=1 / 3,
        look=(looks.PINK, "--", "x"),
        **_PRIVATE,
    ),
    TuningMethod(
        "blind",
        "blind vote",
        _private,
        liars=1.0,
        conspiring=False,
        look=(looks.ORANGE, ":", "P"),
        **_PRIVATE,
    ),
)
# What an experiment compares unless it says otherwise.
USUAL_METHODS = tuple(name for name, m in METHODS.items() if m.liars == 0)


def known_methods(experiment: TuningDesign) -> dict[str, TuningMethod]:
    """Return all methods that an experiment could have, by name."""
    return {**METHODS, **methods_of(experiment.curves)}


def methods_of(curves: dict[str, Curve]) -> dict[str, TuningMethod]:
    """Return the methods that draw curves, and their noise-only controls, by name."""
    return by_name(*(m for name, c in curves.items() for m in _methods_of(name, c)))


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

"""The methods an experiment that tunes compares: federated ones and their controls.

All share the agents' initial points and, given the same seed, the same noise and mask:
what differs between two curves is the method.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from flwr_fbo._validation import require, require_positive
from flwr_fbo.agents.random_search import RandomSearchSettings
from flwr_fbo.agents.study import AgentSettings, Study
from flwr_fbo.privacy.accounting import check_delta, check_epsilon
from flwr_fbo.privacy.sampling import check_sampling_probability
from flwr_fbo.servers.local import LocalServer
from flwr_fbo.space import SearchSpace
from flwr_fbo.strategies.dp_fts_de import DPFTSDE, PRESETS
from flwr_fbo.strategies.tuning import TuningStrategy
from flwr_fbo.study.base import Method, PrivacySetting

if TYPE_CHECKING:
    from flwr_fbo.study.experiment import TuningExperiment


@dataclass(frozen=True)
class Seeds:
    """The three seeds of a run, which must not be one and the same.

    Attributes
    ----------
    study : int
        Of the agents' draws.
    features : int
        Of the shared features; public.
    noise : int
        Of the releases' noise and masks, in place of real entropy.
    """

    study: int
    features: int
    noise: int

    @classmethod
    def of_run(cls, run: int) -> Seeds:
        """Return three seeds that no other run shares."""
        return cls(3 * run, 3 * run + 1, 3 * run + 2)


@dataclass(frozen=True)
class Privacy(PrivacySetting):
    """The privacy setting of an experiment that tunes.

    Attributes
    ----------
    delta : float
        Where epsilon is reported.
    noise_multiplier, epsilon : float
        One of the two, as for `DPFTSDE`.
    sampling_probability : float, optional
        q of `DPFTSDE`; the preset's unless given.
    """

    delta: float
    noise_multiplier: float | None = None
    epsilon: float | None = None
    sampling_probability: float | None = None

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

    def at(self, epsilon: float) -> Privacy:
        """Return the same setting at another epsilon."""
        return replace(self, noise_multiplier=None, epsilon=epsilon)


@dataclass(frozen=True)
class TuningMethod(Method):
    """One curve of an experiment that tunes.

    Attributes
    ----------
    build : callable
        Takes an experiment and seeds; returns the strategy.
    liars : float
        Share of the agents that praise a place drawn at random, in [0, 1].
    conspiring : bool
        Whether all liars praise the same place, or each another one each time.
    """

    build: Callable[[TuningExperiment, Seeds], TuningStrategy]
    liars: float = 0.0
    conspiring: bool = True


def _local(
    agent: AgentSettings, experiment: TuningExperiment, seeds: Seeds
) -> TuningStrategy:
    task = experiment.task
    study = Study(
        SearchSpace(task.space),
        task.direction,
        agent,
        study_seed=seeds.study,
        feature_seed=seeds.features,
    )
    return TuningStrategy(LocalServer(experiment.num_agents), study, patience=0.0)


def _random(experiment: TuningExperiment, seeds: Seeds) -> TuningStrategy:
    agent = PRESETS[experiment.preset].agent
    settings = RandomSearchSettings(agent.num_sub_regions, agent.num_initial)
    return _local(settings, experiment, seeds)


def _thompson(experiment: TuningExperiment, seeds: Seeds) -> TuningStrategy:
    agent = PRESETS[experiment.preset].agent
    return _local(agent, experiment, seeds)


def _federated(
    experiment: TuningExperiment,
    seeds: Seeds,
    *,
    private: bool,
    noise_only: bool = False,
) -> TuningStrategy:
    task, privacy = experiment.task, experiment.privacy
    return DPFTSDE(
        task.space,
        task.direction,
        experiment.num_agents,
        preset=experiment.preset,
        clip_norm=None if private else math.inf,
        noise_multiplier=privacy.noise_multiplier if private else 0.0,
        epsilon=privacy.epsilon if private else None,
        sampling_probability=privacy.sampling_probability if private else 1.0,
        delta=privacy.delta,
        releases=None if PRESETS[experiment.preset].votes else "all",  # as published
        noise_only=noise_only,
        study_seed=seeds.study,
        feature_seed=seeds.features,
        noise_seed=seeds.noise,
        patience=0.0,
    )


_private = partial(_federated, private=True)
_CONTROLS = ("ts", "random", "noise-only")

_open = partial(_federated, private=False)
_ALL = (
    TuningMethod("ts", "TS", _thompson),
    TuningMethod("random", "random", _random),
    TuningMethod("fts-de", "FTS-DE", _open, controls=("ts", "random")),
    TuningMethod("dp-fts-de", "DP-FTS-DE", _private, controls=_CONTROLS, noisy=True),
    TuningMethod(
        "noise-only", "noise-only", partial(_private, noise_only=True), noisy=True
    ),
    TuningMethod(
        "liars", "1/3 liars", _private, liars=1 / 3, controls=_CONTROLS, noisy=True
    ),
    TuningMethod(
        "blind",
        "blind vote",
        _private,
        liars=1.0,
        conspiring=False,
        controls=_CONTROLS,
        noisy=True,
    ),
)
METHODS = {method.name: method for method in _ALL}
# What an experiment compares unless it says otherwise.
USUAL_METHODS = tuple(method.name for method in _ALL if method.liars == 0)

_LABELS_OF_VOTES = {"fts-de": "open vote", "dp-fts-de": "private vote"}


def label_of(method: str, preset: str) -> str:
    """Return what tables and figures call a method whose federation is a preset's."""
    labels = _LABELS_OF_VOTES if PRESETS[preset].votes else {}
    return labels.get(method, METHODS[method].label)

"""The methods an experiment compares: federated ones and their controls.

All share the agents' initial points and, given the same seed, the same noise and mask:
what differs between two curves is the method.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from pydantic import ConfigDict

from flwr_fbo._validation import require_positive
from flwr_fbo.agents.random_search import RandomSearchSettings
from flwr_fbo.agents.study import AgentSettings, Study
from flwr_fbo.privacy.accounting import check_delta
from flwr_fbo.privacy.release import ReleaseSettings
from flwr_fbo.servers.local import LocalServer
from flwr_fbo.space import SearchSpace
from flwr_fbo.strategies.dp_fts_de import DPFTSDE, PRESETS
from flwr_fbo.strategies.tuning import TuningStrategy
from flwr_fbo.tasks.base import STRICT

if TYPE_CHECKING:
    from flwr_fbo.study.experiment import Experiment


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
class Privacy:
    """The privacy setting that the private methods of an experiment share.

    Attributes
    ----------
    noise_multiplier, sampling_probability
        z and q of `DPFTSDE`.
    delta : float
        Where epsilon is reported.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    noise_multiplier: float
    sampling_probability: float
    delta: float

    def __post_init__(self) -> None:
        require_positive("noise_multiplier", self.noise_multiplier)
        ReleaseSettings(
            num_agents=1,
            noise_multiplier=self.noise_multiplier,
            sampling_probability=self.sampling_probability,
        )
        check_delta(self.delta)


@dataclass(frozen=True)
class Method:
    """One curve of an experiment.

    Attributes
    ----------
    name : str
        For files and commands.
    label : str
        For tables and figures.
    build : callable
        Takes an experiment and seeds; returns the strategy.
    controls : tuple of str
        The methods that must be shown beside it.
    """

    name: str
    label: str
    build: Callable[[Experiment, Seeds], TuningStrategy]
    controls: tuple[str, ...] = ()


def _local(
    agent: AgentSettings, experiment: Experiment, seeds: Seeds
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


def _random(experiment: Experiment, seeds: Seeds) -> TuningStrategy:
    agent = PRESETS[experiment.preset].agent
    settings = RandomSearchSettings(agent.num_sub_regions, agent.num_initial)
    return _local(settings, experiment, seeds)


def _thompson(experiment: Experiment, seeds: Seeds) -> TuningStrategy:
    agent = PRESETS[experiment.preset].agent
    return _local(replace(agent, follow="never"), experiment, seeds)


def _federated(
    experiment: Experiment, seeds: Seeds, *, private: bool, noise_only: bool = False
) -> TuningStrategy:
    task, privacy = experiment.task, experiment.privacy
    return DPFTSDE(
        task.space,
        task.direction,
        experiment.num_agents,
        preset=experiment.preset,
        clip_norm=None if private else math.inf,
        noise_multiplier=privacy.noise_multiplier if private else 0.0,
        sampling_probability=privacy.sampling_probability if private else 1.0,
        delta=privacy.delta,
        releases="all",  # as published
        noise_only=noise_only,
        study_seed=seeds.study,
        feature_seed=seeds.features,
        noise_seed=seeds.noise,
        patience=0.0,
    )


_ALL = (
    Method("ts", "TS", _thompson),
    Method("random", "random", _random),
    Method("fts-de", "FTS-DE", partial(_federated, private=False), ("ts", "random")),
    Method(
        "dp-fts-de",
        "DP-FTS-DE",
        partial(_federated, private=True),
        ("ts", "random", "noise-only"),
    ),
    Method(
        "noise-only", "noise-only", partial(_federated, private=True, noise_only=True)
    ),
)
METHODS = {method.name: method for method in _ALL}

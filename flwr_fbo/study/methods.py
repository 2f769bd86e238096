"""The methods an experiment compares: federated ones and their controls.

All share the agents' initial points and, given the same seed, the same noise and mask:
what differs between two curves is the method.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from flwr_fbo.agents.random_search import RandomSearchSettings
from flwr_fbo.agents.study import AgentSettings, Study
from flwr_fbo.agents.thompson import ThompsonSettings
from flwr_fbo.servers.local import LocalServer
from flwr_fbo.space import SearchSpace
from flwr_fbo.strategies.dp_fts_de import DPFTSDE
from flwr_fbo.strategies.tuning import TuningStrategy
from flwr_fbo.tasks.base import Task


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

    noise_multiplier: float
    sampling_probability: float
    delta: float


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
        Takes a task, N, the privacy setting and seeds; returns the strategy.
    """

    name: str
    label: str
    build: Callable[[Task, int, Privacy, Seeds], TuningStrategy]


def _local(
    agent: AgentSettings, task: Task, num_agents: int, privacy: Privacy, seeds: Seeds
) -> TuningStrategy:
    study = Study(
        SearchSpace(task.space),
        task.direction,
        agent,
        study_seed=seeds.study,
        feature_seed=seeds.features,
    )
    return TuningStrategy(LocalServer(num_agents), study, patience=0.0)


def _federated(
    private: bool,
    noise_only: bool,
    task: Task,
    num_agents: int,
    privacy: Privacy,
    seeds: Seeds,
) -> TuningStrategy:
    return DPFTSDE(
        task.space,
        task.direction,
        num_agents,
        clip_norm=None if private else math.inf,
        noise_multiplier=privacy.noise_multiplier if private else 0.0,
        sampling_probability=privacy.sampling_probability if private else 1.0,
        delta=privacy.delta,
        noise_only=noise_only,
        study_seed=seeds.study,
        feature_seed=seeds.features,
        noise_seed=seeds.noise,
        patience=0.0,
    )


_THOMPSON = replace(ThompsonSettings(), follow="never")

RANDOM = Method("random", "random", partial(_local, RandomSearchSettings()))
TS = Method("ts", "TS", partial(_local, _THOMPSON))
FTS_DE = Method("fts-de", "FTS-DE", partial(_federated, False, False))
DP_FTS_DE = Method("dp-fts-de", "DP-FTS-DE", partial(_federated, True, False))
NOISE_ONLY = Method("noise-only", "noise-only", partial(_federated, True, True))

METHODS = (TS, RANDOM, FTS_DE, DP_FTS_DE, NOISE_ONLY)

"""Agents that vote, and their strategy."""

import math
from typing import Any

from optuna.distributions import FloatDistribution

from flwr_fbo import FedVote
from flwr_fbo._common.random import Purpose, generator
from flwr_fbo.models.features import RandomFeatures
from flwr_fbo.tuning import FedVoteSettings, SearchSpace
from flwr_fbo.tuning.fed_vote.agent import FedVoteAgent
from flwr_fbo.tuning.fed_vote.settings import VoteCount
from tests.support.grouped import grouped, hosted

NARROWER = 3  # the kernel of late votes, as the documents say


PLANE = SearchSpace({"a": FloatDistribution(0, 1), "b": FloatDistribution(0, 1)})


def agent(
    slot: int = 0, space: SearchSpace = PLANE, direction: Any = "maximize", **more: Any
) -> FedVoteAgent:
    """Return one of 30 agents."""
    count = VoteCount(more.pop("num_agents", 30), more.pop("noise_std", 0.0))
    settings = FedVoteSettings(**more)
    return FedVoteAgent(space, direction, settings, slot, slot, 7, facts=count)


def late_features(dim: int) -> RandomFeatures:
    """Return those of a kernel a third as wide, which 3^D times as many cells have."""
    length = (16 * NARROWER**dim) ** (-1 / dim) / math.sqrt(math.pi)
    rng = generator(7, Purpose.SHARED_FEATURES)
    return RandomFeatures.spread(rng, 512, dim, length)


CONTINUOUS = {"x": FloatDistribution(-1.0, 1.0)}


def strategy(**options: Any) -> FedVote:
    defaults = {"epsilon": 2.0, "delta": 1e-3, "noise_seed": 1, "num_agents": 30}
    return hosted(FedVote, CONTINUOUS, "maximize", **grouped({**defaults, **options}))

"""Which agent plays by which settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flwr_fbo.agents.tuning.base import Agent
from flwr_fbo.protocol.fed_vote_settings import VotingSettings
from flwr_fbo.protocol.fed_warm_start_settings import WarmStartSettings
from flwr_fbo.protocol.transfer_settings import RGPESettings, TAFSettings
from flwr_fbo.protocol.tuning_settings import (
    FTSSettings,
    RandomSearchSettings,
    SearchSettings,
    ThompsonSettings,
)
from flwr_fbo.protocol.tuning_study import TuningStudy

if TYPE_CHECKING:
    from flwr_fbo.agents.tuning.own_search import SearchAgent


# Each kind of agent is imported where there is one: a deployment begins a process a
# message, which needs no more than one kind.


def create_agent(study: TuningStudy, slot: int, entropy: int) -> Agent:
    """Return the agent of ``slot``; ``entropy`` is the seed of its draws."""
    space, direction, settings = study.space, study.direction, study.agent
    if isinstance(settings, RandomSearchSettings):
        from flwr_fbo.agents.tuning.random_search import RandomSearchAgent

        sub_regions = settings.sub_regions(space)
        return RandomSearchAgent(
            space, direction, sub_regions, settings.num_initial, slot, entropy
        )
    about = space, direction, settings, slot, entropy, study.feature_seed
    if isinstance(settings, VotingSettings):
        from flwr_fbo.agents.tuning.fed_vote import VotingAgent

        return VotingAgent(*about, count=study.votes)
    if isinstance(settings, WarmStartSettings):
        from flwr_fbo.agents.tuning.fed_warm_start import WarmStartAgent

        return WarmStartAgent(*about, cohorts=study.cohorts, known=study.known)
    return _published(settings)(*about)


def _published(settings: SearchSettings) -> type[SearchAgent]:
    """Return the agent of settings of a method as it was published."""
    kind = type(settings)
    if kind is ThompsonSettings:
        from flwr_fbo.agents.tuning.dp_fts_de import ThompsonAgent

        return ThompsonAgent
    if kind is FTSSettings:
        from flwr_fbo.agents.tuning.fts import FTSAgent

        return FTSAgent
    from flwr_fbo.agents.tuning.transfer import RGPEAgent, TAFAgent

    transferring: dict[type[SearchSettings], type[SearchAgent]]
    transferring = {RGPESettings: RGPEAgent, TAFSettings: TAFAgent}
    return transferring[kind]

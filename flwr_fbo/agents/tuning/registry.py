"""Which agent plays by which settings."""

from __future__ import annotations

from flwr_fbo.agents.tuning.base import Agent
from flwr_fbo.agents.tuning.dp_fts_de import ThompsonAgent
from flwr_fbo.agents.tuning.fed_vote import VotingAgent
from flwr_fbo.agents.tuning.fed_warm_start import WarmStartAgent
from flwr_fbo.agents.tuning.fts import FTSAgent
from flwr_fbo.agents.tuning.own_search import SearchAgent
from flwr_fbo.agents.tuning.random_search import RandomSearchAgent
from flwr_fbo.agents.tuning.transfer import RGPEAgent, TAFAgent
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

_AGENTS: dict[type[SearchSettings], type[SearchAgent]] = {
    ThompsonSettings: ThompsonAgent,
    FTSSettings: FTSAgent,
    RGPESettings: RGPEAgent,
    TAFSettings: TAFAgent,
}


def create_agent(study: TuningStudy, slot: int, entropy: int) -> Agent:
    """Return the agent of ``slot``; ``entropy`` is the seed of its draws."""
    space, direction, settings = study.space, study.direction, study.agent
    if not isinstance(settings, RandomSearchSettings):
        about = space, direction, settings, slot, entropy, study.feature_seed
        if isinstance(settings, VotingSettings):
            return VotingAgent(*about, count=study.votes)
        if isinstance(settings, WarmStartSettings):
            return WarmStartAgent(*about, cohorts=study.cohorts, known=study.known)
        return _AGENTS[type(settings)](*about)
    sub_regions = settings.sub_regions(space)
    return RandomSearchAgent(
        space, direction, sub_regions, settings.num_initial, slot, entropy
    )

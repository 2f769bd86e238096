"""Make the agent that plays by a study's settings."""

from __future__ import annotations

from importlib import import_module

from flwr_fbo.agents.tuning.base import Agent
from flwr_fbo.protocol.agent_kinds import kind_of
from flwr_fbo.protocol.tuning_study import TuningStudy


def create_agent(study: TuningStudy, slot: int, entropy: int) -> Agent:
    """Return the agent of ``slot``; ``entropy`` is the seed of its draws."""
    kind = kind_of(study.agent)
    module, _, name = kind.agent.partition(":")
    facts = {fact: getattr(study, fact) for fact in kind.facts}
    about = study.space, study.direction, study.agent, slot, entropy
    agent: Agent = getattr(import_module(module), name)(
        *about, study.feature_seed, **facts
    )
    return agent

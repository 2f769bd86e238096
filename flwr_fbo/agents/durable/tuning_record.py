"""A tuning agent in its journal: whose it is, and what was recorded of it."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from flwr_fbo.agents.tuning.base import Agent
from flwr_fbo.agents.tuning.registry import create_agent
from flwr_fbo.journal.journal import Journal
from flwr_fbo.protocol.tuning_study import TuningStudy
from flwr_fbo.space.search_space import Params

KIND = "agent"


def agent_identity(study: TuningStudy, slot: int) -> dict[str, Any]:
    """Return whom the journal of an agent belongs to, as JSON values."""
    return {"kind": KIND, "slot": slot, **study.to_dict()}


def load_agent(
    journal: Journal, study: TuningStudy, slot: int, enqueue: Sequence[Params] = ()
) -> Agent:
    """Return the agent as its journal has it, or a new one."""
    seed = study.study_seed
    agent = create_agent(study, slot, secrets.randbits(128) if seed is None else seed)
    state = journal.load_state()
    if not state:
        agent.enqueue(enqueue)
        return agent
    agent.load_state_dict(state)
    # What was evaluated after the state was saved last, as each round began.
    for trial in journal.trials(first=len(agent.values)):
        if trial.state != "running":
            agent.tell(trial.iteration, trial.point, trial.value)
    return agent


def recorded_agent(journal: Journal) -> Agent:
    """Return the agent that an existing journal belongs to.

    Raises
    ------
    JournalError
        If the journal is not an agent's.
    """
    journal.require_kind(KIND)
    identity = journal.identity
    return load_agent(journal, TuningStudy.from_dict(identity), identity["slot"])

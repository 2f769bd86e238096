"""A tuning agent's journal: whom it belongs to, and the agent as it is recorded."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from flwr_fbo.journal.journal import Journal
from flwr_fbo.space.search_space import Params
from flwr_fbo.tuning.kind import SITE
from flwr_fbo.tuning.search.agent import Agent
from flwr_fbo.tuning.search.study import TuningStudy, create_agent

KIND = SITE.name


def agent_identity(study: TuningStudy, slot: int) -> dict[str, Any]:
    """Return whom the journal of an agent belongs to, as JSON values."""
    return {"kind": KIND, **study.fields, "slot": slot}


def load_agent(
    journal: Journal,
    study: TuningStudy,
    slot: int,
    enqueue: Sequence[Params] = (),
    state: Mapping[str, NDArray[Any]] | None = None,
) -> Agent:
    """Return the agent as its journal has it, or a new one.

    Parameters
    ----------
    journal : Journal
        With `agent_identity`.
    study : TuningStudy
        The study, which says what kind of agent it is.
    slot : int
        Slot of the agent, from 0.
    enqueue : sequence of dict
        Known-good settings, which a new agent evaluates first.
    state : mapping of str to ndarray, optional
        Arrays that `Journal.load_unnumbered` returned; read unless given.
    """
    seed = study.study_seed
    seed = secrets.randbits(128) if seed is None else seed
    agent = create_agent(study, slot, seed)
    state = journal.load_unnumbered() if state is None else state
    if "points" not in state:
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

"""A client's part of the conversation: one instruction in, one answer out.

Between messages the agent lives in ``context.state``, which never leaves the client.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context
from numpy.typing import NDArray

from flwr_fbo._validation import require
from flwr_fbo.agents.base import Agent, Objective, play_round
from flwr_fbo.agents.study import Instruction, Phase, Study

FloatArray = NDArray[np.float64]

_ARRAYS, _JSON = "flwr-fbo.arrays", "flwr-fbo.json"


@dataclass(frozen=True)
class Answer:
    """What goes back: at most one array, and numbers."""

    arrays: list[FloatArray] = field(default_factory=list)
    metrics: dict[str, int | float] = field(default_factory=dict)


def answer(
    load_objective: Callable[[], Objective],
    context: Context,
    arrays: Sequence[np.ndarray[Any, Any]],
    config: Mapping[str, Any],
) -> Answer:
    """Carry out one instruction.

    Parameters
    ----------
    load_objective : callable
        Returns the objective; not called while enrolling.
    context : flwr.app.Context
    arrays : sequence of ndarray
        Empty, or the server's vectors of shape (P, M).
    config : mapping
        What `Instruction.to_config` wrote.

    Raises
    ------
    ValueError
        If the config or the arrays are not of a flwr_fbo strategy.
    """
    instruction = Instruction.from_config(config)
    if instruction.phase is Phase.ENROL:
        return Answer(metrics={"agent-id": agent_id(context, instruction.study)})
    agent = load_agent(context, instruction.study, instruction.slot)
    message = play_round(
        agent,
        load_objective(),
        instruction.iteration,
        arrays[0] if len(arrays) else None,
        instruction.send_message,
    )
    save_agent(context, instruction.study, agent)
    metrics = {}
    if instruction.report_best_value and agent.best_value is not None:
        metrics["best-value"] = agent.best_value
    return Answer([] if message is None else [message], metrics)


def agent_id(context: Context, study: Study) -> int:
    """Return the slot this client knows it holds, or -1.

    That is ``agent-id`` of the node config, else ``partition-id``, else the slot that
    the server issued before in the same study.

    Raises
    ------
    ValueError
        If the node config holds something that is no integer >= 0.
    """
    for key in ("agent-id", "partition-id"):
        if key in context.node_config:
            value = context.node_config[key]
            # A SuperNode's --node-config may give it as text.
            if str(value).isdecimal():
                return int(value)
            allowed = "an integer from 0 to the number of agents - 1"
            require(False, f"node config {key}", value, allowed)
    known = _known(context, study)
    return -1 if known is None else int(str(known["slot"]))


def load_agent(context: Context, study: Study, slot: int) -> Agent:
    """Return this client's agent in ``study``: what it remembers, or a new one."""
    agent = restore_agent(context, study)
    if agent is not None:
        return agent
    entropy = study.study_seed
    if entropy is None:
        entropy = secrets.randbits(128)
    context.state.config_records[_JSON] = ConfigRecord(
        {"study-id": study.study_id, "slot": slot, "entropy": str(entropy)}
    )
    return study.create_agent(slot, entropy)


def restore_agent(context: Context, study: Study) -> Agent | None:
    """Return the agent as it was saved, or None if it never took part in ``study``."""
    known = _known(context, study)
    if known is None or "agent" not in known:
        return None
    agent = study.create_agent(int(str(known["slot"])), int(str(known["entropy"])))
    stored = context.state.array_records[_ARRAYS]
    state: dict[str, Any] = {name: a.numpy() for name, a in stored.items()}
    state["json"] = json.loads(str(known["agent"]))
    agent.load_state_dict(state)
    return agent


def _known(context: Context, study: Study) -> ConfigRecord | None:
    """Return what this client stored of ``study``, if anything."""
    record = context.state.config_records.get(_JSON)
    return record if record and record["study-id"] == study.study_id else None


def save_agent(context: Context, study: Study, agent: Agent) -> None:
    """Store the agent's memory in the client's own state."""
    state = agent.state_dict()
    known = context.state.config_records[_JSON]
    known["agent"] = json.dumps(state.pop("json"))
    context.state.array_records[_ARRAYS] = ArrayRecord(
        {name: Array(np.asarray(value)) for name, value in state.items()}
    )

"""Agents and a server half without Flower: the algorithm and nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from flwr_fbo.study.server import Server
from flwr_fbo.tuning.search.agent import Agent, play_round
from flwr_fbo.tuning.search.agents_at_once import run_together
from flwr_fbo.tuning.search.trial import Objective


def run_loop(
    server: Server,
    agents: Sequence[Agent],
    objectives: Sequence[Objective],
    num_iterations: int,
    num_evaluations: int | None = None,
) -> None:
    """Play iterations 0 to ``num_iterations``; the agents keep what happened.

    Agents whose turn the server says has not come wait.

    Parameters
    ----------
    server : Server
        Server half of the study.
    agents : sequence of Agent
        Agent n holds slot n.
    objectives : sequence of callable
        One per agent.
    num_iterations : int
        T, the queries of an agent after its initial points.
    num_evaluations : int, optional
        An agent that has made so many is asked for no more.
    """
    most = math.inf if num_evaluations is None else num_evaluations
    for iteration in range(num_iterations + 1):
        vectors, step = server.vectors, server.step(iteration)
        rounds = {
            agent.slot: partial(
                play_round,
                agent,
                objective,
                iteration,
                vectors,
                server.sends(agent.slot, step),
                made_after=server.made_after,
            )
            for agent, objective in zip(agents, objectives, strict=True)
            if server.plays(agent.slot) and len(agent.values) < most
        }
        messages = run_together(rounds.values())
        server.receive(step, dict(zip(rounds, messages, strict=True)))

"""Agents and a server half without Flower: the algorithm and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from flwr_fbo.agents.tuning.base import Agent, play_round
from flwr_fbo.agents.tuning.blocks import run_together
from flwr_fbo.agents.tuning.trial import Objective
from flwr_fbo.servers.base import Server
from flwr_fbo.simulation.progress import counted


def run_loop(
    server: Server,
    agents: Sequence[Agent],
    objectives: Sequence[Objective],
    num_iterations: int,
) -> None:
    """Play iterations 0 to ``num_iterations``; the agents keep what happened.

    Parameters
    ----------
    server : Server
    agents : sequence of Agent
        Agent n holds slot n.
    objectives : sequence of callable
        One an agent.
    num_iterations : int
        T, the queries of an agent after its initial points.
    """
    pairs = list(zip(agents, objectives, strict=True))
    for iteration in counted(range(num_iterations + 1)):
        vectors, step = server.vectors, server.step(iteration)
        wanted = step.release > 0
        playing = [(one, its) for one, its in pairs if server.plays(one.slot)]
        rounds = (
            partial(play_round, agent, objective, iteration, vectors, wanted)
            for agent, objective in playing
        )
        slots = (agent.slot for agent, _ in playing)
        server.receive(step, dict(zip(slots, run_together(rounds), strict=True)))

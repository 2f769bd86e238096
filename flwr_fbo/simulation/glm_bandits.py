"""Fed-GLB-UCB (Li & Wang, NeurIPS 2022) without Flower, every scalar counted."""

from __future__ import annotations

from dataclasses import dataclass

from flwr_fbo.agents.bandits.glm_ucb import GLMUCBAgent
from flwr_fbo.models.threads import one_blas_thread
from flwr_fbo.protocol.glm_ucb_settings import GLMUCBSettings, Gram
from flwr_fbo.servers.glm_ucb import GLMBanditServer
from flwr_fbo.simulation.turns import (
    Federation,
    FederationRun,
    Sharing,
    check_turns,
)
from flwr_fbo.tasks.nonlinear_bandit import NonlinearBanditTask


@dataclass(frozen=True)
class GLMBanditSimulation:
    """Agents in one bandit, in rounds of one evaluation each.

    Attributes
    ----------
    settings : GLMUCBSettings
    task : NonlinearBanditTask
    num_rounds : int
        T >= 1.
    sharing : {"triggered", "always", "never"}
        When to synchronise: as an agent's trigger says; after every evaluation; never.
    """

    settings: GLMUCBSettings
    task: NonlinearBanditTask
    num_rounds: int
    sharing: Sharing = "triggered"

    def __post_init__(self) -> None:
        check_turns(self.num_rounds, self.sharing)

    @one_blas_thread
    def run(self, seed: int) -> FederationRun:
        """Play all rounds."""
        return _GLMFederation(self, seed).run()


class _GLMFederation(Federation[GLMUCBAgent]):
    """All agents of one simulation, and their server."""

    def __init__(self, simulation: GLMBanditSimulation, seed: int) -> None:
        settings, task = simulation.settings, simulation.task
        agents = [
            GLMUCBAgent(settings, task.dimension) for _ in range(settings.num_agents)
        ]
        rounds, sharing = simulation.num_rounds, simulation.sharing
        super().__init__(agents, task, rounds, sharing, seed)
        self._server = GLMBanditServer(settings, task.dimension)

    def synchronise(self) -> None:
        send, server = self.channel.send, self._server
        messages = [agent.message() for agent in self.agents]
        server.receive([Gram(m.num_evaluations, send(m.values)) for m in messages])
        while not server.is_done:
            gradients = [agent.gradient(send(server.point)) for agent in self.agents]
            server.receive_gradients([send(gradient) for gradient in gradients])
        for agent in self.agents:
            agent.receive(send(server.gram), send(server.point))

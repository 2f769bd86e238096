"""Fed-GLB-UCB (Li & Wang, NeurIPS 2022) without Flower, every scalar counted."""

from __future__ import annotations

from dataclasses import dataclass

from flwr_fbo.lab.baselines.glm_ucb_agent import GLMUCBAgent
from flwr_fbo.lab.baselines.glm_ucb_server import GLMBanditServer
from flwr_fbo.lab.baselines.glm_ucb_settings import GLMUCBSettings, Gram
from flwr_fbo.lab.simulation.turns import Federation, TurnSimulation


@dataclass(frozen=True)
class GLMBanditSimulation(TurnSimulation[GLMUCBSettings]):
    """Agents with a generalised linear model: see `TurnSimulation`."""

    def federation(self, seed: int) -> _GLMFederation:
        """Return the agents and their server, before the first round."""
        settings, d = self.settings, self.task.dimension
        agents = [GLMUCBAgent(settings, d) for _ in range(self.num_agents)]
        return _GLMFederation(self, agents, GLMBanditServer(settings, d), seed)


class _GLMFederation(Federation[GLMUCBAgent, GLMBanditServer]):
    def synchronise(self) -> None:
        send, server = self.channel.send, self.server
        messages = [agent.message() for agent in self.agents]
        server.receive([Gram(m.num_evaluations, send(m.values)) for m in messages])
        while not server.is_done:
            gradients = [agent.gradient(send(server.point)) for agent in self.agents]
            server.receive_gradients([send(gradient) for gradient in gradients])
        for agent in self.agents:
            agent.receive(send(server.gram), send(server.point))

"""ApproxDisKernelUCB (Li, Wang, Wang & Wang, NeurIPS 2022) without Flower, counted."""

from __future__ import annotations

from dataclasses import dataclass

from flwr_fbo.lab.baselines.kernel_ucb_agent import KernelUCBAgent, KernelUCBSettings
from flwr_fbo.lab.baselines.kernel_ucb_server import KernelBanditServer
from flwr_fbo.lab.simulation.turns import Federation, TurnSimulation


@dataclass(frozen=True)
class KernelBanditSimulation(TurnSimulation[KernelUCBSettings]):
    """Agents with a kernel, on a shared dictionary: see `TurnSimulation`."""

    def federation(self, seed: int) -> _KernelFederation:
        """Return the agents and their server, before the first round."""
        settings, d = self.settings, self.task.dimension
        slots = range(self.num_agents)
        agents = [KernelUCBAgent(settings, d, seed, slot) for slot in slots]
        return _KernelFederation(self, agents, KernelBanditServer(d), seed)


class _KernelFederation(Federation[KernelUCBAgent, KernelBanditServer]):
    def synchronise(self) -> None:
        send, server = self.channel.send, self.server
        server.receive_points([send(agent.draw()) for agent in self.agents])
        for agent in self.agents:
            agent.adopt(send(server.dictionary))
        server.receive_sums([send(agent.message()) for agent in self.agents])
        for agent in self.agents:
            agent.receive(send(server.total))

"""ApproxDisKernelUCB (Li, Wang, Wang & Wang, NeurIPS 2022) without Flower, counted."""

from __future__ import annotations

from dataclasses import dataclass

from flwr_fbo.agents.bandits.kernel_ucb import KernelUCBAgent, KernelUCBSettings
from flwr_fbo.models.threads import one_blas_thread
from flwr_fbo.servers.kernel_ucb import KernelBanditServer
from flwr_fbo.simulation.turns import (
    Federation,
    FederationRun,
    Sharing,
    check_turns,
)
from flwr_fbo.tasks.nonlinear_bandit import NonlinearBanditTask


@dataclass(frozen=True)
class KernelBanditSimulation:
    """Agents in one bandit, in rounds of one evaluation each.

    Attributes
    ----------
    settings : KernelUCBSettings
    task : NonlinearBanditTask
    num_rounds : int
        T >= 1.
    sharing : {"triggered", "always", "never"}
        When to synchronise: as an agent's trigger says; after every evaluation; never.
    """

    settings: KernelUCBSettings
    task: NonlinearBanditTask
    num_rounds: int
    sharing: Sharing = "triggered"

    def __post_init__(self) -> None:
        check_turns(self.num_rounds, self.sharing)

    @one_blas_thread
    def run(self, seed: int) -> FederationRun:
        """Play all rounds."""
        return _KernelFederation(self, seed).run()


class _KernelFederation(Federation[KernelUCBAgent]):
    """All agents of one simulation, and their server."""

    def __init__(self, simulation: KernelBanditSimulation, seed: int) -> None:
        settings, task = simulation.settings, simulation.task
        agents = [
            KernelUCBAgent(settings, task.dimension, seed, slot)
            for slot in range(settings.num_agents)
        ]
        rounds, sharing = simulation.num_rounds, simulation.sharing
        super().__init__(agents, task, rounds, sharing, seed)
        self._server = KernelBanditServer(task.dimension)

    def synchronise(self) -> None:
        send, server = self.channel.send, self._server
        server.receive_points([send(agent.draw()) for agent in self.agents])
        for agent in self.agents:
            agent.adopt(send(server.dictionary))
        server.receive_sums([send(agent.message()) for agent in self.agents])
        for agent in self.agents:
            agent.receive(send(server.total))

"""The settings of an experiment of linear bandits, but for the methods it compares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from flwr_fbo._common.validation import require_fraction
from flwr_fbo.algorithms.linear_bandit.peer_graph import GraphName, PeerGraph, Pooling
from flwr_fbo.algorithms.linear_bandit.settings import Width, geometric_schedule
from flwr_fbo.lab.experiment_runner.base import Experiment, PrivacySetting
from flwr_fbo.lab.experiment_runner.sweep import Simulator, Sweep
from flwr_fbo.lab.tasks.linear_bandit import LinearBanditTask
from flwr_fbo.privacy.budget import check_epsilon
from flwr_fbo.privacy.continual_settings import Calibration, ContinualSettings
from flwr_fbo.privacy.factorisation import Mechanism


@dataclass(frozen=True)
class BanditPrivacy(PrivacySetting):
    """The privacy setting of an experiment of bandits.

    Attributes
    ----------
    epsilon : float
        From 1e-3 to 1e3, of all releases of an agent together.
    delta : float
        Below 1.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        require_fraction("delta", self.delta)

    def at(self, epsilon: float) -> BanditPrivacy:
        """Return the same setting at another epsilon."""
        return replace(self, epsilon=epsilon)


@dataclass(frozen=True, kw_only=True)
class BanditDesign(Experiment):
    """The settings of an experiment of linear bandits, which its methods read.

    Attributes
    ----------
    task : LinearBanditTask
    privacy : BanditPrivacy
    num_iterations : int
        Trials of each agent, >= 1.
    num_synchronisations : int
        n, fixed in advance, the gaps growing: see `geometric_schedule`. With one for
        each trial from the first one on, after every trial.
    first_synchronisation : int
        After how many trials. What is there before is exploration, for agents that act
        on released data only.
    width : {"exact", "observed", "paper", "authors"}
        Of all methods but the published ones, which have their own.
    graph : {"complete", "ring", "star", "line", "random"}, optional
        Along which agents talk; there is a centre unless given. See `PeerGraph.named`.
    hops : int
        How far messages travel in a graph.
    simulator : {"exact", "mean-field"}
        Whether every trial is played, or what agents do on average: see
        `simulation.mean_field`. That takes seconds, however many trials and agents
        there are.
    sweep : Sweep, optional
        What else than the above to play them at.
    """

    task_type: ClassVar[type[Any]] = LinearBanditTask
    tables: ClassVar[Mapping[str, type[Any]]] = {
        "privacy": BanditPrivacy,
        "sweep": Sweep,
        "task": LinearBanditTask,
    }

    task: LinearBanditTask
    privacy: BanditPrivacy
    num_iterations: int
    num_synchronisations: int = 16
    first_synchronisation: int = 100
    width: Width = "observed"
    graph: GraphName | None = None
    hops: int = 1
    simulator: Simulator = "exact"
    sweep: Sweep | None = None

    def peers(self, pooling: Pooling) -> PeerGraph:
        """Return the graph.

        With neighbourhoods, which are ours, there is one estimator an agent; with the
        paper's cliques as many as hops.
        """
        estimators = self.hops if pooling == "clique" else 1
        return PeerGraph.named(
            str(self.graph),
            self.num_agents,
            hops=self.hops,
            pooling=pooling,
            num_estimators=estimators,
        )

    def releases(
        self, mechanism: Mechanism = "toeplitz", calibration: Calibration = "exact"
    ) -> ContinualSettings:
        """Return what an agent hands out."""
        return ContinualSettings(
            num_releases=self.num_synchronisations,
            dimension=self.task.dimension,
            epsilon=self.privacy.epsilon,
            delta=self.privacy.delta,
            mechanism=mechanism,
            calibration=calibration,
        )

    @property
    def schedule(self) -> Sequence[int]:
        """After how many trials there is a synchronisation."""
        trials, n = self.num_iterations, self.num_synchronisations
        after_every = range(self.first_synchronisation, trials)
        if n == len(after_every):
            return after_every
        return geometric_schedule(trials, n, self.first_synchronisation)

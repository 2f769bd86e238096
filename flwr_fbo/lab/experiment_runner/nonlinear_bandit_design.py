"""The settings of an experiment of non-linear bandits, but for its methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, PlainValidator

from flwr_fbo._common.validation import require
from flwr_fbo.algorithms.fed_go_ucb.settings import FedGOUCBSettings
from flwr_fbo.lab.baselines.glm_ucb_settings import GLMUCBSettings
from flwr_fbo.lab.baselines.kernel_ucb_agent import KernelUCBSettings
from flwr_fbo.lab.experiment_runner.base import Experiment
from flwr_fbo.lab.tasks.base import STRICT
from flwr_fbo.lab.tasks.known_tasks import task_reader
from flwr_fbo.lab.tasks.nonlinear_bandit import NonlinearBanditTask
from flwr_fbo.models.network import LangevinSettings, Network

AnyNonlinearTask = Annotated[
    NonlinearBanditTask, PlainValidator(task_reader(NonlinearBanditTask))
]


@dataclass(frozen=True)
class Regression(LangevinSettings):
    """The constants of phase I, as a file gives them: see `LangevinSettings`."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT


@dataclass(frozen=True)
class Constants(FedGOUCBSettings):
    """What agents with a network have in common: see `FedGOUCBSettings`."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    num_exploration: int = 1
    regression: Regression = field(default_factory=Regression)
    privacy: None = None


@dataclass(frozen=True)
class LinearConstants:
    """What DisLinUCB has of its own.

    Attributes
    ----------
    ridge, beta : float
        > 0. The best of twelve pairs on Hartmann-6, seeds 1000 to 1002.
    threshold : float, or None
        > 0. Not given: that of its analysis, T log(N T) / (d N).
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    ridge: float = 0.1
    beta: float = 0.01
    threshold: float | None = None

    def __post_init__(self) -> None:
        self.settings(1.0)  # which names what it does not allow

    def settings(self, usual: float) -> FedGOUCBSettings:
        """Return the settings of the agents; ``usual`` is the threshold if None."""
        threshold = usual if self.threshold is None else self.threshold
        return FedGOUCBSettings(
            num_exploration=0, ridge=self.ridge, beta=self.beta, threshold=threshold
        )


@dataclass(frozen=True)
class GLMConstants(GLMUCBSettings):
    """What Fed-GLB-UCB has of its own: see `GLMUCBSettings`."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT


@dataclass(frozen=True)
class KernelConstants(KernelUCBSettings):
    """What ApproxDisKernelUCB has of its own: see `KernelUCBSettings`."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT


@dataclass(frozen=True, kw_only=True)
class NonlinearDesign(Experiment):
    """The settings of an experiment of non-linear bandits, which its methods read.

    Attributes
    ----------
    task : NonlinearBanditTask
    num_iterations : int
        Rounds, of one evaluation an agent each, >= 1.
    width : int
        Of the network's hidden layer.
    settings : Constants
        Of all methods with a network.
    total_exploration : int, optional
        Number T0 >= N of random actions of all agents together, before the first round,
        as in algorithm 1; theorem 5 has T0 = sqrt(N T). With None phase I is each
        agent's first ``settings.num_exploration`` rounds.
    linear : LinearConstants
        Of DisLinUCB.
    glm : GLMConstants
        Of Fed-GLB-UCB.
    kernel : KernelConstants
        Of ApproxDisKernelUCB.
    """

    task_type: ClassVar[type[Any]] = NonlinearBanditTask
    tables: ClassVar[Mapping[str, type[Any]]] = {
        "settings": Constants,
        "regression": Regression,
        "linear": LinearConstants,
        "glm": GLMConstants,
        "kernel": KernelConstants,
    }

    task: AnyNonlinearTask
    num_iterations: int
    width: int = 25
    settings: Constants = field(default_factory=Constants)
    total_exploration: int | None = None
    linear: LinearConstants = field(default_factory=LinearConstants)
    glm: GLMConstants = field(default_factory=GLMConstants)
    kernel: KernelConstants = field(default_factory=KernelConstants)
    privacy: None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        explored, rounds = self.settings.num_exploration, self.num_iterations
        allowed = f"at most num_iterations={rounds}"
        require(explored <= rounds, "num_exploration", explored, allowed)
        ok = self.total_exploration is None or explored == Constants.num_exploration
        require(ok, "num_exploration", explored, "left out, with total_exploration")

    @property
    def network(self) -> Network:
        """The reward model."""
        return Network(self.task.dimension, self.width)

    @property
    def scalars_a_synchronisation(self) -> int:
        """Sums of all agents and the total back to each, with the network."""
        size = self.network.num_parameters
        return 2 * self.num_agents * (size**2 + size)

    @property
    def scalars_of_points(self) -> int:
        """What One-GO-UCB would send if it sent every point to all, and its reward."""
        rounds, d = self.num_iterations, self.task.dimension
        return self.num_agents**2 * rounds * (d + 1)

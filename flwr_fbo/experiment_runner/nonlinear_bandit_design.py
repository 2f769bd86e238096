"""The settings of an experiment of non-linear bandits, but for its methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Generic, TypeVar, cast

from pydantic import ConfigDict, PlainValidator

from flwr_fbo.agents.bandits.kernel_ucb import KernelUCBSettings
from flwr_fbo.experiment_runner.base import Experiment
from flwr_fbo.models.langevin import LangevinSettings
from flwr_fbo.models.network import Network
from flwr_fbo.protocol.glm_ucb_settings import GLMUCBSettings
from flwr_fbo.protocol.neural_ucb_settings import NeuralUCBSettings
from flwr_fbo.tasks.base import STRICT
from flwr_fbo.tasks.known_tasks import task_reader
from flwr_fbo.tasks.nonlinear_bandit import NonlinearBanditTask

AnyNonlinearTask = Annotated[
    NonlinearBanditTask, PlainValidator(task_reader(NonlinearBanditTask))
]

# Those of the code, which say where they were found.
_FOUND = NeuralUCBSettings(num_agents=2)


@dataclass(frozen=True)
class Regression(LangevinSettings):
    """The constants of phase I, as a file gives them: see `LangevinSettings`."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT


S = TypeVar("S")


@dataclass(frozen=True)
class _ButForAgents(Generic[S]):
    """Settings of an algorithm, but for how many agents there are."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    settings_type: ClassVar[Callable[..., Any]]

    def __post_init__(self) -> None:
        self.among(2)  # which names what it does not allow

    def among(self, num_agents: int) -> S:
        """Return the settings of so many agents."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return cast(S, self.settings_type(num_agents, **values))


@dataclass(frozen=True)
class Constants(_ButForAgents[NeuralUCBSettings]):
    """What agents with a network have in common: `NeuralUCBSettings`, but for N.

    Attributes
    ----------
    num_exploration : int
    regression : Regression
    ridge, beta, threshold : float
    num_refinements : int
    """

    settings_type = NeuralUCBSettings

    num_exploration: int = _FOUND.num_exploration
    regression: Regression = field(default_factory=Regression)
    ridge: float = _FOUND.ridge
    beta: float = _FOUND.beta
    threshold: float = _FOUND.threshold
    num_refinements: int = _FOUND.num_refinements


@dataclass(frozen=True)
class LinearConstants(_ButForAgents[NeuralUCBSettings]):
    """What DisLinUCB has of its own.

    Attributes
    ----------
    ridge, beta : float
        > 0. The best of twelve pairs on Hartmann-6, seeds 1000 to 1002.
    threshold : float, or None
        > 0. Not given: that of its analysis, T log(N T) / (d N).
    """

    settings_type = staticmethod(partial(NeuralUCBSettings, num_exploration=0))

    ridge: float = 0.1
    beta: float = 0.01
    threshold: float | None = None

    def among(self, num_agents: int, usual: float = 1.0) -> NeuralUCBSettings:
        """Return the settings of so many agents; ``usual`` is the threshold if None."""
        if self.threshold is None:
            return replace(self, threshold=usual).among(num_agents)
        return super().among(num_agents)


_GLM, _KERNEL = GLMUCBSettings(num_agents=2), KernelUCBSettings(num_agents=2)


@dataclass(frozen=True)
class GLMConstants(_ButForAgents[GLMUCBSettings]):
    """What Fed-GLB-UCB has of its own: `GLMUCBSettings`, but for N.

    Attributes
    ----------
    reward_range : tuple of float, or None
        Not given: an identity link.
    ridge, beta, threshold, curvature, parameter_norm, accuracy : float
    max_iterations : int
    """

    settings_type = GLMUCBSettings

    reward_range: tuple[float, float] | None = _GLM.reward_range
    ridge: float = _GLM.ridge
    beta: float = _GLM.beta
    threshold: float = _GLM.threshold
    curvature: float = _GLM.curvature
    parameter_norm: float = _GLM.parameter_norm
    accuracy: float = _GLM.accuracy
    max_iterations: int = _GLM.max_iterations


@dataclass(frozen=True)
class KernelConstants(_ButForAgents[KernelUCBSettings]):
    """What ApproxDisKernelUCB has of its own: `KernelUCBSettings`, but for N.

    Attributes
    ----------
    lengthscale, ridge, beta, threshold, oversampling : float
    """

    settings_type = KernelUCBSettings

    lengthscale: float = _KERNEL.lengthscale
    ridge: float = _KERNEL.ridge
    beta: float = _KERNEL.beta
    threshold: float = _KERNEL.threshold
    oversampling: float = _KERNEL.oversampling


@dataclass(frozen=True, kw_only=True)
class NonlinearDesign(Experiment):
    """The settings of an experiment of non-linear bandits, which its methods read.

    Attributes
    ----------
    task : NonlinearBanditTask
    width : int
        Of the network's hidden layer.
    settings : Constants
        Of all methods with a network.
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
    width: int = 25
    settings: Constants = field(default_factory=Constants)
    linear: LinearConstants = field(default_factory=LinearConstants)
    glm: GLMConstants = field(default_factory=GLMConstants)
    kernel: KernelConstants = field(default_factory=KernelConstants)
    privacy: None = None

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

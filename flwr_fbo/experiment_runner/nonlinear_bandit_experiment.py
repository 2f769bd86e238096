"""Experiments of non-linear bandits: Fed-GO-UCB, its baselines and controls.

*Communication-Efficient Federated Non-linear Bandit Optimization* (ICLR 2024), section
5. All methods of a seed play the same actions, under the same noise. What is compared
is the regret of all agents together, and how many scalars they and the server send.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field

from flwr_fbo._validation import require
from flwr_fbo.agents.bandits.kernel_ucb import KernelUCBSettings
from flwr_fbo.experiment_runner.base import Column, Experiment, Method, Row, Run
from flwr_fbo.experiment_runner.curves import curves_by_method, epsilon_of, scalars_of
from flwr_fbo.experiment_runner.estimates import Estimate
from flwr_fbo.experiment_runner.wording import ONE_SEED, helped, humanised
from flwr_fbo.models.langevin import LangevinSettings
from flwr_fbo.models.network import Network
from flwr_fbo.protocol.glm_ucb_settings import GLMUCBSettings
from flwr_fbo.protocol.neural_ucb_settings import NeuralUCBSettings
from flwr_fbo.simulation.each_once import EachOnce
from flwr_fbo.simulation.glm_bandits import GLMBanditSimulation
from flwr_fbo.simulation.kernel_bandits import KernelBanditSimulation
from flwr_fbo.simulation.neural_bandits import NeuralBanditSimulation
from flwr_fbo.simulation.turns import FederationRun
from flwr_fbo.tasks.base import STRICT
from flwr_fbo.tasks.nonlinear_bandit import ClusterBanditTask, FunctionBanditTask

FloatArray = NDArray[np.float64]

# Those of the code, which say where they were found.
_FOUND = NeuralUCBSettings(num_agents=2)


@dataclass(frozen=True)
class Regression(LangevinSettings):
    """The constants of phase I, as a file gives them: see `LangevinSettings`."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT


@dataclass(frozen=True)
class Constants:
    """What agents with a network have in common: `NeuralUCBSettings`, but for N.

    Attributes
    ----------
    num_exploration : int
    regression : Regression
    ridge, beta, threshold : float
    num_refinements : int
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    num_exploration: int = _FOUND.num_exploration
    regression: Regression = field(default_factory=Regression)
    ridge: float = _FOUND.ridge
    beta: float = _FOUND.beta
    threshold: float = _FOUND.threshold
    num_refinements: int = _FOUND.num_refinements

    def __post_init__(self) -> None:
        self.among(2)  # which names what it does not allow

    def among(self, num_agents: int) -> NeuralUCBSettings:
        """Return the settings of so many agents."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return NeuralUCBSettings(num_agents, **values)


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
        self.among(2, 1.0)

    def among(self, num_agents: int, usual: float) -> NeuralUCBSettings:
        """Return the settings of so many agents; ``usual`` is the threshold if None."""
        return NeuralUCBSettings(
            num_agents,
            num_exploration=0,
            ridge=self.ridge,
            beta=self.beta,
            threshold=usual if self.threshold is None else self.threshold,
        )


_GLM, _KERNEL = GLMUCBSettings(num_agents=2), KernelUCBSettings(num_agents=2)


@dataclass(frozen=True)
class GLMConstants:
    """What Fed-GLB-UCB has of its own: `GLMUCBSettings`, but for N.

    Attributes
    ----------
    reward_range : tuple of float, or None
        Not given: an identity link.
    ridge, beta, threshold, curvature, parameter_norm, accuracy : float
    max_iterations : int
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    reward_range: tuple[float, float] | None = _GLM.reward_range
    ridge: float = _GLM.ridge
    beta: float = _GLM.beta
    threshold: float = _GLM.threshold
    curvature: float = _GLM.curvature
    parameter_norm: float = _GLM.parameter_norm
    accuracy: float = _GLM.accuracy
    max_iterations: int = _GLM.max_iterations

    def __post_init__(self) -> None:
        self.among(2)

    def among(self, num_agents: int) -> GLMUCBSettings:
        """Return the settings of so many agents."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return GLMUCBSettings(num_agents, **values)


@dataclass(frozen=True)
class KernelConstants:
    """What ApproxDisKernelUCB has of its own: `KernelUCBSettings`, but for N.

    Attributes
    ----------
    lengthscale, ridge, beta, threshold, oversampling : float
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    lengthscale: float = _KERNEL.lengthscale
    ridge: float = _KERNEL.ridge
    beta: float = _KERNEL.beta
    threshold: float = _KERNEL.threshold
    oversampling: float = _KERNEL.oversampling

    def __post_init__(self) -> None:
        self.among(2)

    def among(self, num_agents: int) -> KernelUCBSettings:
        """Return the settings of so many agents."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return KernelUCBSettings(num_agents, **values)


class Playable(Protocol):
    """What plays all rounds of a seed."""

    def run(self, seed: int) -> FederationRun:
        """Return what happened."""


@dataclass(frozen=True, kw_only=True)
class NonlinearRun(Run):
    """What one method did on one seed.

    Attributes
    ----------
    regret : list of float
        After each round, of all agents together.
    num_scalars : list of int
        Sent by the end of each round.
    num_synchronisations : int
    """

    regret: list[float]
    num_scalars: list[int]
    num_synchronisations: int

    @property
    def curve(self) -> FloatArray:
        """The regret, as an array."""
        return np.array(self.regret)

    @property
    def scalars(self) -> FloatArray:
        """What was sent, as an array."""
        return np.array(self.num_scalars, dtype=float)


@dataclass(frozen=True)
class NonlinearRow(Row):
    """One method, beside those it is compared to on the same seeds.

    Attributes
    ----------
    regret : Estimate
        Of all agents together.
    over_alone, over_linear, over_no_phase_one, over_each_once : Estimate or None
        The paired difference to that of N-GO-UCB, of DisLinUCB, of Fed-GO-UCB without
        phase I, and of trying each action once: negative where this method is better;
        None for the method itself, and where the other was not played.
    scalars : Estimate
        Sent.
    synchronisations : Estimate or None
        Of all rounds: None where fewer count.
    """

    regret: Estimate
    over_alone: Estimate | None
    over_linear: Estimate | None
    over_no_phase_one: Estimate | None
    over_each_once: Estimate | None
    scalars: Estimate
    synchronisations: Estimate | None


@dataclass(frozen=True)
class NonlinearMethod(Method):
    """One curve of an experiment of non-linear bandits.

    Attributes
    ----------
    simulation : callable
        Takes an experiment; returns what is played.
    depends_on : tuple of str
        Which of the experiment's constants have a part in it.
    releases : bool
        Whether agents send anything of theirs.
    """

    simulation: Callable[[NonlinearBanditExperiment], Playable]
    depends_on: tuple[str, ...] = ("settings", "width")
    releases: bool = True


def _federated(experiment: NonlinearBanditExperiment) -> NeuralBanditSimulation:
    return NeuralBanditSimulation(
        experiment.settings.among(experiment.num_agents),
        experiment.network,
        experiment.task,
        experiment.num_iterations,
    )


def _without_phase_one(experiment: NonlinearBanditExperiment) -> NeuralBanditSimulation:
    ours = _federated(experiment)
    return replace(ours, settings=replace(ours.settings, num_exploration=0))


def _linear(experiment: NonlinearBanditExperiment) -> NeuralBanditSimulation:
    linear = _federated(experiment).baseline("dislinucb")
    usual = linear.settings.threshold
    settings = experiment.linear.among(experiment.num_agents, usual)
    return replace(linear, settings=settings)


def _glm(experiment: NonlinearBanditExperiment) -> GLMBanditSimulation:
    settings = experiment.glm.among(experiment.num_agents)
    return GLMBanditSimulation(settings, experiment.task, experiment.num_iterations)


def _kernel(experiment: NonlinearBanditExperiment) -> KernelBanditSimulation:
    settings = experiment.kernel.among(experiment.num_agents)
    return KernelBanditSimulation(settings, experiment.task, experiment.num_iterations)


def _random(experiment: NonlinearBanditExperiment) -> NeuralBanditSimulation:
    """Return uniform play: an exploration that ends with the last round."""
    settings = NeuralUCBSettings(
        experiment.num_agents,
        num_exploration=experiment.num_iterations,
        regression=LangevinSettings(num_iterations=1),  # which nobody uses
    )
    return replace(_federated(experiment), settings=settings, sharing="never")


def _each_once(experiment: NonlinearBanditExperiment) -> EachOnce:
    agents, rounds = experiment.num_agents, experiment.num_iterations
    return EachOnce(experiment.task, agents, rounds)


_ALL = (
    NonlinearMethod(
        "fed-go-ucb",
        "Fed-GO-UCB",
        _federated,
        controls=("n-go-ucb", "no-phase-one", "each-once", "random"),
    ),
    NonlinearMethod(
        "one-go-ucb",
        "One-GO-UCB",
        lambda experiment: _federated(experiment).baseline("one-go-ucb"),
        controls=("n-go-ucb",),
    ),
    NonlinearMethod(
        "n-go-ucb",
        "N-GO-UCB",
        lambda experiment: _federated(experiment).baseline("n-go-ucb"),
        releases=False,
    ),
    NonlinearMethod("dislinucb", "DisLinUCB", _linear, depends_on=("linear",)),
    NonlinearMethod("fed-glb-ucb", "GLB-UCB", _glm, depends_on=("glm",)),
    NonlinearMethod(
        "approx-dis-kernel-ucb", "kernel UCB", _kernel, depends_on=("kernel",)
    ),
    NonlinearMethod("no-phase-one", "no phase I", _without_phase_one),
    NonlinearMethod("each-once", "each once", _each_once, depends_on=()),
    NonlinearMethod("random", "random", _random, depends_on=(), releases=False),
)
_METHODS = {method.name: method for method in _ALL}
_CONSTANTS = ("settings", "width", "linear", "glm", "kernel")


@dataclass(frozen=True, kw_only=True)
class NonlinearBanditExperiment(Experiment):
    """Methods on a non-linear bandit, over paired seeds; iterations are rounds.

    Attributes
    ----------
    task : FunctionBanditTask or ClusterBanditTask
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
    methods : tuple of str
        All unless given.
    """

    log_axes: ClassVar[bool] = False
    counts_scalars: ClassVar[bool] = True

    task: Annotated[FunctionBanditTask | ClusterBanditTask, Field(discriminator="name")]
    width: int = 25
    settings: Constants = field(default_factory=Constants)
    linear: LinearConstants = field(default_factory=LinearConstants)
    glm: GLMConstants = field(default_factory=GLMConstants)
    kernel: KernelConstants = field(default_factory=KernelConstants)
    privacy: None = None
    methods: tuple[str, ...] = tuple(_METHODS)

    def __post_init__(self) -> None:
        super().__post_init__()
        explored, rounds = self.settings.num_exploration, self.num_iterations
        allowed = f"at most num_iterations={rounds}"
        require(explored <= rounds, "num_exploration", explored, allowed)
        for name in self.methods:
            _METHODS[name].simulation(self)  # which names what it does not allow

    @property
    def network(self) -> Network:
        """The reward model."""
        return Network(self.task.dimension, self.width)

    @property
    def known_methods(self) -> Mapping[str, NonlinearMethod]:
        """All methods that it could have, by name."""
        return _METHODS

    @property
    def lower_is_better(self) -> bool:
        """Regret is."""
        return True

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

    def recipe(self, method: str) -> dict[str, Any]:
        """Return what decides a method's runs, whatever experiment they are part of."""
        used = _METHODS[method].depends_on
        unused = [one for one in _CONSTANTS if one not in used]
        values = super().recipe(method)
        return {name: value for name, value in values.items() if name not in unused}

    def check(self) -> None:
        """Raise, before any work is done, if its data are missing or damaged."""
        self.task.arms(seed=0)

    def play(self, methods: Sequence[str], seed: int) -> list[NonlinearRun]:
        """Run some of the methods on one seed."""
        return [self._play(_METHODS[name], seed) for name in methods]

    def _play(self, method: NonlinearMethod, seed: int) -> NonlinearRun:
        began = time.perf_counter()
        run = method.simulation(self).run(seed)
        return NonlinearRun(
            method=method.name,
            seed=seed,
            epsilon=math.inf if method.releases else 0.0,
            private=not method.releases,
            seconds=time.perf_counter() - began,
            regret=[float(value) for value in np.cumsum(run.regret)],
            num_scalars=[int(value) for value in run.num_scalars],
            num_synchronisations=run.num_synchronisations,
        )

    def run_of(self, values: Mapping[str, Any]) -> NonlinearRun:
        """Return the run of a line of results."""
        regret = [float(value) for value in values["regret"]]
        scalars = [int(value) for value in values["num_scalars"]]
        lengths, rounds = (len(regret), len(scalars)), self.num_iterations
        allowed = f"{rounds} numbers each"
        require(lengths == (rounds, rounds), "regret, num_scalars", lengths, allowed)
        return NonlinearRun(
            **Run.common_of(values),
            regret=regret,
            num_scalars=scalars,
            num_synchronisations=int(values["num_synchronisations"]),
        )

    @property
    def iterations(self) -> NDArray[np.intp]:
        """After how many rounds the runs' curves have their values."""
        return np.arange(1, self.num_iterations + 1)

    @property
    def axes(self) -> tuple[str, str]:
        """What the figure's two axes are called."""
        return "round", f"cumulative regret, sum of {self.num_agents} agents"

    def spending(self, method: str) -> FloatArray:
        """Return epsilon after each round: infinite where anything is sent."""
        spent = math.inf if _METHODS[method].releases else 0.0
        return np.full(self.num_iterations, spent)

    def sending(self, method: str, runs: Sequence[Run]) -> FloatArray:
        """Return how many scalars the runs have counted by each round."""
        own = [run.scalars for run in runs if run.method == method]
        return np.asarray(np.mean(own, axis=0))

    def summarize(
        self, runs: Sequence[Run], until: int | None = None
    ) -> dict[str, NonlinearRow]:
        """Return a row a method; see `Experiment.summarize`."""
        rounds = self.num_iterations
        last = rounds if until is None else until
        require(1 <= last <= rounds, "until", last, f"1 to {rounds}")
        curves = curves_by_method(self.methods, runs)
        regret = {name: curve[:, last - 1] for name, curve in curves.items()}
        scalars = curves_by_method(self.methods, runs, scalars_of)
        counts = curves_by_method(self.methods, runs, _synchronisations_of)

        def over(name: str, other: str) -> Estimate | None:
            if name == other or other not in regret:
                return None
            return Estimate.of(regret[name] - regret[other])

        return {
            name: NonlinearRow(
                name,
                self.label_of(name),
                epsilon_of(runs, name),
                Estimate.of(regret[name]),
                over(name, "n-go-ucb"),
                over(name, "dislinucb"),
                over(name, "no-phase-one"),
                over(name, "each-once"),
                Estimate.of(scalars[name][:, last - 1]),
                Estimate.of(counts[name]) if last == rounds else None,
            )
            for name in self.methods
        }

    def columns(self) -> dict[str, Column]:
        """Return the columns of the table, by the estimate of a row they show."""
        return {
            "regret": Column("regret", digits=1),
            "over_alone": Column("over N-GO*", "+", digits=1),
            "over_linear": Column("over linear*", "+", digits=1),
            "scalars": Column("scalars", humanised=True),
            "synchronisations": Column("syncs", digits=0),
        }

    def notes(self, runs: Sequence[Run], until: int | None) -> tuple[str, list[str]]:
        """Return the table's title, and what is to be said below it."""
        rounds = until or self.num_iterations
        title = f"Regret of {self.num_agents} agents together in {rounds} rounds"
        return title, [
            "* paired by seed, to N-GO-UCB (agents alone) and DisLinUCB; negative is "
            "better.",
            "Rewards are maximised; regret is by how much the best action's mean is "
            "higher.",
            f"scalars: sent by agents and server; "
            f"{humanised(self.scalars_a_synchronisation)} a synchronisation of the "
            "network's sums. If One-GO-UCB sent every point and "
            "its reward to all instead, which is raw data, it would send "
            f"{humanised(self.scalars_of_points)} in {self.num_iterations} rounds.",
            "each once: agents try each action once, together, and then play the best; "
            "no model.",
            "GLB-UCB is Fed-GLB-UCB; kernel UCB is ApproxDisKernelUCB.",
            "NOT PRIVATE: gradients, sums and points are sent as they are.",
        ]

    def verdict(self, rows: Mapping[str, Any]) -> list[str]:
        """Say in words whether federation helped, and phase I, and what it cost."""
        if any(row.regret.num_runs < 2 for row in rows.values()):
            return [ONE_SEED]
        lines = []
        for row in rows.values():
            if row.over_alone is not None and _METHODS[row.method].releases:
                lines.append(f"{row.label} {helped(-row.over_alone, 'N-GO-UCB')}")
        ours = rows.get("fed-go-ucb")
        if ours is None:
            return lines
        for gain, other in (
            (ours.over_linear, "DisLinUCB"),
            (ours.over_no_phase_one, "without phase I"),
            (ours.over_each_once, "trying each action once"),
        ):
            if gain is not None:
                lines.append(f"{ours.label} {helped(-gain, other)}")
        if "one-go-ucb" in rows:
            lines.append(_of_communication(ours, rows["one-go-ucb"]))
        return lines


def _synchronisations_of(run: Run) -> FloatArray:
    assert isinstance(run, NonlinearRun)
    return np.array(float(run.num_synchronisations))


def _of_communication(ours: NonlinearRow, always: NonlinearRow) -> str:
    """Say how much less than One-GO-UCB was sent."""
    sent, most = ours.scalars.mean, always.scalars.mean
    return (
        f"{ours.label} sends {humanised(sent)} scalars, {sent / most:.2%} of the "
        f"{humanised(most)} of {always.label}."
    )

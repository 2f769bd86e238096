"""Experiments of non-linear bandits: Fed-GO-UCB, its baselines and controls.

*Communication-Efficient Federated Non-linear Bandit Optimization* (ICLR 2024), section
6 and appendix E. All methods of a seed play the same actions, under the same noise.
What is compared is the regret of all agents together, and how many scalars they and the
server send.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from flwr_fbo._common import pictures as palette
from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.fields import check_fields, integer, positive
from flwr_fbo._common.text import humanised
from flwr_fbo._common.validation import require
from flwr_fbo.bandits.fed_go_ucb.settings import (
    FedGOUCBSettings,
    NeuralExploration,
)
from flwr_fbo.lab.baselines.glm_ucb import GLMUCBSettings
from flwr_fbo.lab.baselines.kernel_ucb import KernelUCBSettings
from flwr_fbo.lab.experiment_runner import looks
from flwr_fbo.lab.experiment_runner.base import (
    Column,
    Experiment,
    Method,
    RegretRun,
    Run,
    by_name,
)
from flwr_fbo.lab.experiment_runner.curves import ONE_SEED, helped
from flwr_fbo.lab.experiment_runner.estimates import Row
from flwr_fbo.lab.simulation.neural_bandits import (
    EachOnce,
    FederationRun,
    NeuralBanditSimulation,
    Sharing,
    TurnSimulation,
)
from flwr_fbo.lab.tasks.catalogue import NonlinearTask
from flwr_fbo.lab.tasks.nonlinear_bandit import NonlinearBanditTask
from flwr_fbo.models.langevin_regression import LangevinSettings
from flwr_fbo.models.network import Network


@dataclass(frozen=True)
class Constants(FedGOUCBSettings):
    """Settings of agents with a network, as published.

    See `FedGOUCBSettings`.
    """

    num_exploration: int = 1
    exploration: NeuralExploration = "optimism"
    privacy: None = None


@dataclass(frozen=True)
class LinearConstants:
    """Settings of DisLinUCB alone.

    Attributes
    ----------
    ridge, beta : float
        > 0. The best of twelve pairs on Hartmann-6, seeds 1000 to 1002.
    threshold : float, or None
        > 0. Not given: that of its analysis, T log(N T) / (d N).
    """

    ridge: float = field(default=0.1, metadata=positive())
    beta: float = field(default=0.01, metadata=positive())
    threshold: float | None = field(default=None, metadata=positive(optional=True))

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class NonlinearMethod(Method):
    """One curve of an experiment of non-linear bandits.

    Attributes
    ----------
    simulation : callable
        Takes an experiment; returns what is played.
    depends_on : tuple of str
        Constants of the experiment that have a part in it.
    releases : bool
        Whether agents send anything of theirs.
    counts_phase_one : bool
        Whether its regret has that of what precedes the first round.
    is_reading : bool
        Whether it is another reading of Fed-GO-UCB, which a file has to ask for.
    """

    simulation: Callable[[NonlinearBanditExperiment], TurnSimulation | EachOnce]
    depends_on: tuple[str, ...] = ("settings", "width", "total_exploration")
    releases: bool = True
    counts_phase_one: bool = True
    is_reading: bool = False


def _played(
    experiment: NonlinearBanditExperiment,
) -> tuple[NonlinearBanditTask, int, int]:
    """Return the task, and how many agents play how many rounds."""
    return experiment.task, experiment.num_agents, experiment.num_iterations


def _federated(
    experiment: NonlinearBanditExperiment, sharing: Sharing = "triggered"
) -> NeuralBanditSimulation:
    return NeuralBanditSimulation(
        experiment.settings,
        *_played(experiment),
        sharing,
        model=experiment.network,
        total_exploration=experiment.total_exploration,
    )


def _linearised(experiment: NonlinearBanditExperiment) -> NeuralBanditSimulation:
    ours = _federated(experiment)
    return replace(ours, settings=replace(ours.settings, num_refinements=0))


def _usual(experiment: NonlinearBanditExperiment) -> NeuralBanditSimulation:
    """Return Fed-GO-UCB with the code's defaults, whatever the file says."""
    ours = _federated(experiment)
    return replace(ours, settings=FedGOUCBSettings(), total_exploration=None)


# Constants of the second reading, for every figure: those that
# `benchmarks.neural_bandit_search` found for the first one on Hartmann-6.
_SECOND = Constants(
    num_refinements=0,
    ridge=1e-5,
    beta=0.1,
    threshold=2.0,
    regression=LangevinSettings(start="model"),
)


def _second(
    experiment: NonlinearBanditExperiment, sharing: Sharing = "triggered"
) -> NeuralBanditSimulation:
    """Return a second reading of Algorithm 1, where the paper's text leaves it open.

    A random start of phase I, in place of w = 0, where all hidden units are equal; and
    line 3 in closed form, for the network linearised at w0 as in equations 4 to 6, in
    place of steps of an ascent on the network itself.
    """
    ours = _federated(experiment, sharing)
    return replace(ours, settings=_SECOND)


def _without_phase_one(experiment: NonlinearBanditExperiment) -> NeuralBanditSimulation:
    ours = _federated(experiment)
    # A random w0: at zero the linearised network would be a linear model.
    regression = replace(ours.settings.regression, start="model")
    settings = replace(ours.settings, num_exploration=0, regression=regression)
    return replace(ours, settings=settings, total_exploration=None)


def _linear(experiment: NonlinearBanditExperiment) -> NeuralBanditSimulation:
    constants = experiment.linear
    linear = _federated(experiment).with_linear_model()
    settings = FedGOUCBSettings(
        num_exploration=0,
        exploration="optimism",
        ridge=constants.ridge,
        beta=constants.beta,
        threshold=constants.threshold or linear.settings.threshold,
    )
    return replace(linear, settings=settings)


def _glm(experiment: NonlinearBanditExperiment) -> TurnSimulation:
    return TurnSimulation(experiment.glm, *_played(experiment))


def _kernel(experiment: NonlinearBanditExperiment) -> TurnSimulation:
    return TurnSimulation(experiment.kernel, *_played(experiment))


def _random(experiment: NonlinearBanditExperiment) -> NeuralBanditSimulation:
    """Return uniform play: an exploration that ends with the last round."""
    settings = FedGOUCBSettings(
        num_exploration=experiment.num_iterations,
        regression=LangevinSettings(num_iterations=1),  # which nobody uses
    )
    unshared = _federated(experiment, "never")
    return replace(unshared, settings=settings, total_exploration=None)


def _each_once(experiment: NonlinearBanditExperiment) -> EachOnce:
    return EachOnce(*_played(experiment))


_READING = partial(NonlinearMethod, is_reading=True)
_SECOND_READING = partial(_READING, depends_on=("width", "total_exploration"))
METHODS = by_name(
    NonlinearMethod(
        "fed-go-ucb",
        "Fed-GO-UCB",
        _federated,
        controls=("n-go-ucb", "no-phase-one", "each-once", "random"),
        second_reading="fed-go-ucb-second",
        look=looks.OURS,
    ),
    NonlinearMethod(
        "one-go-ucb",
        "One-GO-UCB",
        partial(_federated, sharing="always"),
        controls=("n-go-ucb",),
        second_reading="one-go-ucb-second",
        look=looks.OPEN,
    ),
    NonlinearMethod(
        "n-go-ucb",
        "N-GO-UCB",
        partial(_federated, sharing="never"),
        releases=False,
        second_reading="n-go-ucb-second",
        look=looks.ALONE,
    ),
    NonlinearMethod(
        "dislinucb", "DisLinUCB", _linear, ("linear",), look=(palette.PINK, "-.", "x")
    ),
    NonlinearMethod(
        "fed-glb-ucb", "GLB-UCB", _glm, ("glm",), look=(palette.SKY, "--", "d")
    ),
    NonlinearMethod(
        "approx-dis-kernel-ucb",
        "kernel UCB",
        _kernel,
        ("kernel",),
        look=(palette.BROWN, ":", "*"),
    ),
    NonlinearMethod(
        "no-phase-one",
        "no phase I",
        _without_phase_one,
        look=(palette.ORANGE, ":", "P"),
    ),
    NonlinearMethod("each-once", "each once", _each_once, (), look=looks.UNINFORMED),
    NonlinearMethod("random", "random", _random, (), releases=False, look=looks.RANDOM),
    _READING(
        "phase-two",
        "phase II only",
        _federated,
        counts_phase_one=False,
        second_reading="phase-two-second",
    ),
    _READING("linearised", "linearised", _linearised),
    _READING("code-defaults", "our defaults", _usual, ("width",)),
    _SECOND_READING(
        "fed-go-ucb-second",
        "Fed-GO-UCB, second reading",
        _second,
        look=(palette.ORANGE, "-", "D"),
    ),
    _SECOND_READING(
        "phase-two-second",
        "phase II only, second reading",
        _second,
        counts_phase_one=False,
    ),
    _SECOND_READING(
        "one-go-ucb-second",
        "One-GO-UCB, second reading",
        partial(_second, sharing="always"),
    ),
    _SECOND_READING(
        "n-go-ucb-second",
        "N-GO-UCB, second reading",
        partial(_second, sharing="never"),
        releases=False,
    ),
)


@dataclass(frozen=True, kw_only=True)
class NonlinearRun(RegretRun):
    """Result of one method on one seed; its regret is of all agents together.

    Attributes
    ----------
    num_scalars : list of int
        Sent by the end of each round.
    num_synchronisations : int
        Number of synchronisations of the run.
    """

    num_scalars: list[int]
    num_synchronisations: int

    @property
    def synchronisations(self) -> FloatArray:
        """Number of synchronisations, as an array of one."""
        return np.array([float(self.num_synchronisations)])

    @property
    def scalars(self) -> FloatArray:
        """Numbers sent, as an array."""
        return np.array(self.num_scalars, dtype=float)


@dataclass(frozen=True, kw_only=True)
class NonlinearBanditExperiment(Experiment):
    """Methods on a non-linear bandit, over paired seeds; iterations are rounds.

    Attributes
    ----------
    task : NonlinearBanditTask
        Bandit that is played.
    num_iterations : int
        Rounds, of one evaluation an agent each, >= 1.
    width : int
        Width of the network's hidden layer.
    settings : Constants
        Constants of all methods with a network.
    total_exploration : int, optional
        Number T0 >= N of random actions of all agents together, before the first round,
        as in algorithm 1; theorem 5 has T0 = sqrt(N T). With None phase I is each
        agent's first ``settings.num_exploration`` rounds.
    linear : LinearConstants
        Constants of DisLinUCB.
    glm : GLMUCBSettings
        Settings of Fed-GLB-UCB.
    kernel : KernelUCBSettings
        Settings of ApproxDisKernelUCB.
    methods : tuple of str
        All unless given, but for other readings of Fed-GO-UCB.
    """

    task: NonlinearTask
    num_iterations: int = field(metadata=integer(1))
    width: int = 25
    settings: Constants = field(default_factory=Constants)
    total_exploration: int | None = None
    linear: LinearConstants = field(default_factory=LinearConstants)
    glm: GLMUCBSettings = field(default_factory=GLMUCBSettings)
    kernel: KernelUCBSettings = field(default_factory=KernelUCBSettings)
    privacy: None = None
    run_type: ClassVar[type[Run]] = NonlinearRun
    counts_scalars: ClassVar[bool] = True

    methods: tuple[str, ...] = tuple(n for n, m in METHODS.items() if not m.is_reading)

    def __post_init__(self) -> None:
        super().__post_init__()
        explored, rounds = self.settings.num_exploration, self.num_iterations
        expected = f"at most num_iterations={rounds}"
        require(explored <= rounds, "num_exploration", explored, expected)
        is_valid = (
            self.total_exploration is None or explored == Constants.num_exploration
        )
        require(
            is_valid, "num_exploration", explored, "left out, with total_exploration"
        )
        for name in self.methods:
            METHODS[name].simulation(self)  # which names what it does not allow
        is_valid = self.total_exploration is not None or "phase-two" not in self.methods
        require(
            is_valid, "methods", self.methods, "phase-two only with total_exploration"
        )

    @property
    def known_methods(self) -> Mapping[str, NonlinearMethod]:
        """All methods that it could have, by name."""
        return METHODS

    def recipe(self, method: str) -> dict[str, Any]:
        """Return what decides a method's runs, whatever experiment they are part of."""
        constants = {constant for m in METHODS.values() for constant in m.depends_on}
        unused = constants.difference(METHODS[method].depends_on)
        values = super().recipe(method)
        return {name: value for name, value in values.items() if name not in unused}

    def check(self) -> None:
        """Raise, before any work is done, if its data are missing or damaged."""
        self.task.check()

    def batch_key(self, method: str) -> Hashable:
        """Return the simulation: methods of one differ in what they count."""
        return METHODS[method].simulation(self)

    def play_batch(self, batch: Sequence[str], seed: int) -> list[NonlinearRun]:
        """Run methods that are one simulation."""
        began = time.process_time()
        run = METHODS[batch[0]].simulation(self).run(seed)
        seconds = (time.process_time() - began) / len(batch)
        return [_counted(METHODS[name], seed, run, seconds) for name in batch]

    @property
    def axes(self) -> tuple[str, str]:
        """Labels of the figure's two axes."""
        return "round", f"cumulative regret, sum of {self.num_agents} agents"

    def num_sent(self, method: str, runs: Sequence[Run]) -> float:
        """Return how many scalars the runs have counted."""
        return float(np.mean([r.scalars[-1] for r in runs if r.method == method]))

    def estimates(self) -> dict[str, Column]:
        """Return how the estimates of rows are made and shown, by name.

        ``over_`` names are paired differences to another method, negative where this
        one is better.
        """
        over = partial(Column, sign="+", digits=1)
        return {
            "regret": Column("regret", digits=1),
            "over_alone": over("over N-GO*", control="n-go-ucb"),
            "over_linear": over("over linear*", control="dislinucb"),
            "over_no_phase_one": over("", control="no-phase-one"),
            "over_each_once": over("", control="each-once"),
            "scalars": Column("scalars", humanised=True, of="scalars"),
            "synchronisations": Column(
                "syncs", digits=0, of="synchronisations", reads="whole"
            ),
        }

    def notes(self, runs: Sequence[Run], until: int | None) -> tuple[str, list[str]]:
        """Return the table's title, and what is to be said below it."""
        num_rounds = self.num_iterations
        rounds = until or num_rounds
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
            f"{humanised(self.scalars_of_points)} in {num_rounds} rounds.",
            "each once: agents try each action once, together, and then play the best; "
            "no model.",
            "GLB-UCB is Fed-GLB-UCB; kernel UCB is ApproxDisKernelUCB.",
            "NOT PRIVATE: gradients, sums and points are sent as they are.",
        ]

    def verdict(self, rows: Mapping[str, Row]) -> list[str]:
        """Say in words whether federation helped, and phase I, and what it cost."""
        if any(row.estimates["regret"].num_runs < 2 for row in rows.values()):
            return [ONE_SEED]
        lines = []
        for row in rows.values():
            over_alone = row.estimates.get("over_alone")
            if over_alone is not None and METHODS[row.method].releases:
                lines.append(f"{row.label} {helped(-over_alone, 'N-GO-UCB')}")
        ours = rows.get("fed-go-ucb")
        if ours is None:
            return lines
        for name, other in (
            ("over_linear", "DisLinUCB"),
            ("over_no_phase_one", "without phase I"),
            ("over_each_once", "trying each action once"),
        ):
            if name in ours.estimates:
                lines.append(f"{ours.label} {helped(-ours.estimates[name], other)}")
        if "one-go-ucb" in rows:
            lines.append(_of_communication(ours, rows["one-go-ucb"]))
        return lines

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
        """Numbers sent by One-GO-UCB if every point and reward went to all agents."""
        rounds, d = self.num_iterations, self.task.dimension
        return self.num_agents**2 * rounds * (d + 1)


def _counted(
    method: NonlinearMethod, seed: int, run: FederationRun, seconds: float
) -> NonlinearRun:
    """Return what a method counts of what happened."""
    before = run.regret_before if method.counts_phase_one else 0.0
    return NonlinearRun(
        method=method.name,
        seed=seed,
        epsilon=math.inf if method.releases else 0.0,
        private=not method.releases,
        seconds=seconds,
        regret=[float(value) for value in before + np.cumsum(run.regret)],
        num_scalars=[int(value) for value in run.num_scalars],
        num_synchronisations=run.num_synchronisations,
    )


def _of_communication(ours: Row, always: Row) -> str:
    """Say how much less than One-GO-UCB was sent."""
    sent, most = (row.estimates["scalars"].mean for row in (ours, always))
    return (
        f"{ours.label} sends {humanised(sent)} scalars, {sent / most:.2%} of the "
        f"{humanised(most)} of {always.label}."
    )

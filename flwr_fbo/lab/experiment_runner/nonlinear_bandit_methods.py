"""The methods of an experiment of non-linear bandits: Fed-GO-UCB and its controls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from flwr_fbo._common import pictures
from flwr_fbo.algorithms.fed_go_ucb.settings import FedGOUCBSettings
from flwr_fbo.lab.experiment_runner import looks
from flwr_fbo.lab.experiment_runner.methods import Method, by_name
from flwr_fbo.lab.experiment_runner.nonlinear_bandit_design import NonlinearDesign
from flwr_fbo.lab.simulation.each_once import EachOnce
from flwr_fbo.lab.simulation.glm_bandits import GLMBanditSimulation
from flwr_fbo.lab.simulation.kernel_bandits import KernelBanditSimulation
from flwr_fbo.lab.simulation.neural_bandits import NeuralBanditSimulation
from flwr_fbo.lab.simulation.turns import FederationRun
from flwr_fbo.lab.tasks.nonlinear_bandit import NonlinearBanditTask
from flwr_fbo.models.network import LangevinSettings


class Playable(Protocol):
    """What plays all rounds of a seed."""

    def run(self, seed: int) -> FederationRun:
        """Return what happened."""


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
    counts_phase_one : bool
        Whether its regret has that of what precedes the first round.
    is_reading : bool
        Whether it is another reading of Fed-GO-UCB, which a file has to ask for.
    """

    simulation: Callable[[NonlinearDesign], Playable]
    depends_on: tuple[str, ...] = ("settings", "width", "total_exploration")
    releases: bool = True
    counts_phase_one: bool = True
    is_reading: bool = False


def _played(experiment: NonlinearDesign) -> tuple[NonlinearBanditTask, int, int]:
    """Return the task, and how many agents play how many rounds."""
    return experiment.task, experiment.num_agents, experiment.num_iterations


def _federated(experiment: NonlinearDesign) -> NeuralBanditSimulation:
    return NeuralBanditSimulation(
        experiment.settings,
        *_played(experiment),
        model=experiment.network,
        total_exploration=experiment.total_exploration,
    )


def _linearised(experiment: NonlinearDesign) -> NeuralBanditSimulation:
    ours = _federated(experiment)
    return replace(ours, settings=replace(ours.settings, num_refinements=0))


def _usual(experiment: NonlinearDesign) -> NeuralBanditSimulation:
    """Return Fed-GO-UCB with the code's defaults, whatever the file says."""
    ours = _federated(experiment)
    return replace(ours, settings=FedGOUCBSettings(), total_exploration=None)


def _without_phase_one(experiment: NonlinearDesign) -> NeuralBanditSimulation:
    ours = _federated(experiment)
    # A random w0: at zero the linearised network would be a linear model.
    regression = replace(ours.settings.regression, start="model")
    settings = replace(ours.settings, num_exploration=0, regression=regression)
    return replace(ours, settings=settings, total_exploration=None)


def _linear(experiment: NonlinearDesign) -> NeuralBanditSimulation:
    linear = _federated(experiment).baseline("dislinucb")
    settings = experiment.linear.settings(linear.settings.threshold)
    return replace(linear, settings=settings)


def _glm(experiment: NonlinearDesign) -> GLMBanditSimulation:
    return GLMBanditSimulation(experiment.glm, *_played(experiment))


def _kernel(experiment: NonlinearDesign) -> KernelBanditSimulation:
    return KernelBanditSimulation(experiment.kernel, *_played(experiment))


def _random(experiment: NonlinearDesign) -> NeuralBanditSimulation:
    """Return uniform play: an exploration that ends with the last round."""
    settings = FedGOUCBSettings(
        num_exploration=experiment.num_iterations,
        regression=LangevinSettings(num_iterations=1),  # which nobody uses
    )
    return replace(
        _federated(experiment),
        settings=settings,
        sharing="never",
        total_exploration=None,
    )


def _each_once(experiment: NonlinearDesign) -> EachOnce:
    return EachOnce(*_played(experiment))


METHODS = by_name(
    NonlinearMethod(
        "fed-go-ucb",
        "Fed-GO-UCB",
        _federated,
        controls=("n-go-ucb", "no-phase-one", "each-once", "random"),
        look=looks.OURS,
    ),
    NonlinearMethod(
        "one-go-ucb",
        "One-GO-UCB",
        lambda experiment: _federated(experiment).baseline("one-go-ucb"),
        controls=("n-go-ucb",),
        look=looks.OPEN,
    ),
    NonlinearMethod(
        "n-go-ucb",
        "N-GO-UCB",
        lambda experiment: _federated(experiment).baseline("n-go-ucb"),
        releases=False,
        look=looks.ALONE,
    ),
    NonlinearMethod(
        "dislinucb", "DisLinUCB", _linear, ("linear",), look=(pictures.PINK, "-.", "x")
    ),
    NonlinearMethod(
        "fed-glb-ucb", "GLB-UCB", _glm, ("glm",), look=(pictures.SKY, "--", "d")
    ),
    NonlinearMethod(
        "approx-dis-kernel-ucb",
        "kernel UCB",
        _kernel,
        ("kernel",),
        look=(pictures.BROWN, ":", "*"),
    ),
    NonlinearMethod(
        "no-phase-one",
        "no phase I",
        _without_phase_one,
        look=(pictures.ORANGE, ":", "P"),
    ),
    NonlinearMethod("each-once", "each once", _each_once, (), look=looks.UNINFORMED),
    NonlinearMethod("random", "random", _random, (), releases=False, look=looks.RANDOM),
    NonlinearMethod(
        "phase-two",
        "phase II only",
        _federated,
        counts_phase_one=False,
        is_reading=True,
        look=(pictures.BLUE, ":", "D"),
    ),
    NonlinearMethod(
        "linearised",
        "linearised",
        _linearised,
        is_reading=True,
        look=(pictures.BLUE, "--", "<"),
    ),
    NonlinearMethod(
        "code-defaults",
        "our defaults",
        _usual,
        ("width",),
        is_reading=True,
        look=(pictures.GREEN, ":", "<"),
    ),
)

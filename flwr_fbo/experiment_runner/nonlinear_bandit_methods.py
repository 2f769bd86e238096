"""The methods of an experiment of non-linear bandits: Fed-GO-UCB and its controls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from flwr_fbo.experiment_runner import looks
from flwr_fbo.experiment_runner.methods import Method, by_name
from flwr_fbo.experiment_runner.nonlinear_bandit_design import NonlinearDesign
from flwr_fbo.models.langevin import LangevinSettings
from flwr_fbo.protocol.neural_ucb_settings import NeuralUCBSettings
from flwr_fbo.simulation.each_once import EachOnce
from flwr_fbo.simulation.glm_bandits import GLMBanditSimulation
from flwr_fbo.simulation.kernel_bandits import KernelBanditSimulation
from flwr_fbo.simulation.neural_bandits import NeuralBanditSimulation
from flwr_fbo.simulation.turns import FederationRun
from flwr_fbo.tasks.nonlinear_bandit import NonlinearBanditTask


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
    """

    simulation: Callable[[NonlinearDesign], Playable]
    depends_on: tuple[str, ...] = ("settings", "width")
    releases: bool = True


def _played(experiment: NonlinearDesign) -> tuple[NonlinearBanditTask, int, int]:
    """Return the task, and how many agents play how many rounds."""
    return experiment.task, experiment.num_agents, experiment.num_iterations


def _federated(experiment: NonlinearDesign) -> NeuralBanditSimulation:
    return NeuralBanditSimulation(
        experiment.settings, *_played(experiment), model=experiment.network
    )


def _without_phase_one(experiment: NonlinearDesign) -> NeuralBanditSimulation:
    ours = _federated(experiment)
    return replace(ours, settings=replace(ours.settings, num_exploration=0))


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
    settings = NeuralUCBSettings(
        num_exploration=experiment.num_iterations,
        regression=LangevinSettings(num_iterations=1),  # which nobody uses
    )
    return replace(_federated(experiment), settings=settings, sharing="never")


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
        "dislinucb", "DisLinUCB", _linear, ("linear",), look=(looks.PINK, "-.", "x")
    ),
    NonlinearMethod(
        "fed-glb-ucb", "GLB-UCB", _glm, ("glm",), look=(looks.SKY, "--", "d")
    ),
    NonlinearMethod(
        "approx-dis-kernel-ucb",
        "kernel UCB",
        _kernel,
        ("kernel",),
        look=(looks.BROWN, ":", "*"),
    ),
    NonlinearMethod(
        "no-phase-one", "no phase I", _without_phase_one, look=(looks.ORANGE, ":", "P")
    ),
    NonlinearMethod("each-once", "each once", _each_once, (), look=looks.UNINFORMED),
    NonlinearMethod("random", "random", _random, (), releases=False, look=looks.RANDOM),
)

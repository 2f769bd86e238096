"""What an experiment is, and the ones that ship with the package."""

from __future__ import annotations

from dataclasses import dataclass

from flwr_fbo._validation import require_int
from flwr_fbo.study.methods import METHODS, Method, Privacy
from flwr_fbo.tasks.base import Task
from flwr_fbo.tasks.digits import DigitsTask


@dataclass(frozen=True)
class Experiment:
    """Methods on a task, over paired seeds.

    Attributes
    ----------
    task : Task
    num_agents : int
        N >= 1.
    num_iterations : int
        T >= 1, queries of an agent after its initial points.
    privacy : Privacy
    methods : tuple of Method
    """

    task: Task
    num_agents: int
    num_iterations: int
    privacy: Privacy
    methods: tuple[Method, ...] = METHODS

    def __post_init__(self) -> None:
        require_int("num_agents", self.num_agents, 1)
        require_int("num_iterations", self.num_iterations, 1)


EXPERIMENTS = {
    "digits": Experiment(
        task=DigitsTask(),
        num_agents=20,
        num_iterations=20,
        privacy=Privacy(noise_multiplier=1.0, sampling_probability=0.35, delta=1e-3),
    ),
}

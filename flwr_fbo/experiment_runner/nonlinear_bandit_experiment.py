"""Experiments of non-linear bandits: Fed-GO-UCB, its baselines and controls.

*Communication-Efficient Federated Non-linear Bandit Optimization* (ICLR 2024), section
5. All methods of a seed play the same actions, under the same noise. What is compared
is the regret of all agents together, and how many scalars they and the server send.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._validation import require
from flwr_fbo.experiment_runner.base import Run
from flwr_fbo.experiment_runner.nonlinear_bandit_methods import METHODS, NonlinearMethod
from flwr_fbo.experiment_runner.nonlinear_bandit_table import (
    NonlinearRun,
    NonlinearTable,
)

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class NonlinearBanditExperiment(NonlinearTable):
    """Methods on a non-linear bandit, over paired seeds; iterations are rounds.

    Attributes
    ----------
    methods : tuple of str
        All unless given.
    """

    log_axes: ClassVar[bool] = False
    counts_scalars: ClassVar[bool] = True

    methods: tuple[str, ...] = tuple(METHODS)

    def __post_init__(self) -> None:
        super().__post_init__()
        explored, rounds = self.settings.num_exploration, self.num_iterations
        allowed = f"at most num_iterations={rounds}"
        require(explored <= rounds, "num_exploration", explored, allowed)
        for name in self.methods:
            METHODS[name].simulation(self)  # which names what it does not allow

    @property
    def known_methods(self) -> Mapping[str, NonlinearMethod]:
        """All methods that it could have, by name."""
        return METHODS

    @property
    def lower_is_better(self) -> bool:
        """Regret is."""
        return True

    def recipe(self, method: str) -> dict[str, Any]:
        """Return what decides a method's runs, whatever experiment they are part of."""
        constants = {one for m in METHODS.values() for one in m.depends_on}
        unused = constants.difference(METHODS[method].depends_on)
        values = super().recipe(method)
        return {name: value for name, value in values.items() if name not in unused}

    def check(self) -> None:
        """Raise, before any work is done, if its data are missing or damaged."""
        self.task.arms(seed=0)

    def play(self, methods: Sequence[str], seed: int) -> list[NonlinearRun]:
        """Run some of the methods on one seed."""
        return [self._play(METHODS[name], seed) for name in methods]

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
        spent = math.inf if METHODS[method].releases else 0.0
        return np.full(self.num_iterations, spent)

    def sending(self, method: str, runs: Sequence[Run]) -> FloatArray:
        """Return how many scalars the runs have counted by each round."""
        own = [run.scalars for run in runs if run.method == method]
        return np.asarray(np.mean(own, axis=0))

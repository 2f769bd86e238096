"""Experiments of non-linear bandits: Fed-GO-UCB, its baselines and controls.

*Communication-Efficient Federated Non-linear Bandit Optimization* (ICLR 2024), section
6 and appendix E. All methods of a seed play the same actions, under the same noise.
What is compared is the regret of all agents together, and how many scalars they and the
server send.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.text import humanised
from flwr_fbo._common.validation import require
from flwr_fbo.lab.experiment_runner.base import Column, Row
from flwr_fbo.lab.experiment_runner.curves import summarize
from flwr_fbo.lab.experiment_runner.estimates import Estimate
from flwr_fbo.lab.experiment_runner.nonlinear_bandit_design import NonlinearDesign
from flwr_fbo.lab.experiment_runner.nonlinear_bandit_methods import (
    METHODS,
    NonlinearMethod,
    Playable,
)
from flwr_fbo.lab.experiment_runner.runs import RegretRun, Run
from flwr_fbo.lab.experiment_runner.wording import ONE_SEED, helped
from flwr_fbo.lab.simulation.progress import telling
from flwr_fbo.lab.simulation.turns import FederationRun


@dataclass(frozen=True, kw_only=True)
class NonlinearRun(RegretRun):
    """What one method did on one seed; its regret is of all agents together.

    Attributes
    ----------
    num_scalars : list of int
        Sent by the end of each round.
    num_synchronisations : int
    """

    num_scalars: list[int]
    num_synchronisations: int

    @property
    def synchronisations(self) -> FloatArray:
        """How many there were, as an array of one."""
        return np.array([float(self.num_synchronisations)])

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


@dataclass(frozen=True, kw_only=True)
class NonlinearBanditExperiment(NonlinearDesign):
    """Methods on a non-linear bandit, over paired seeds; iterations are rounds.

    Attributes
    ----------
    methods : tuple of str
        All unless given, but for other readings of Fed-GO-UCB.
    """

    run_type: ClassVar[type[Run]] = NonlinearRun
    counts_scalars: ClassVar[bool] = True

    methods: tuple[str, ...] = tuple(n for n, m in METHODS.items() if not m.is_reading)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.methods:
            METHODS[name].simulation(self)  # which names what it does not allow
        ok = self.total_exploration is not None or "phase-two" not in self.methods
        allowed = "phase-two only with total_exploration"
        require(ok, "methods", self.methods, allowed)

    @property
    def known_methods(self) -> Mapping[str, NonlinearMethod]:
        """All methods that it could have, by name."""
        return METHODS

    def recipe(self, method: str) -> dict[str, Any]:
        """Return what decides a method's runs, whatever experiment they are part of."""
        constants = {one for m in METHODS.values() for one in m.depends_on}
        unused = constants.difference(METHODS[method].depends_on)
        values = super().recipe(method)
        return {name: value for name, value in values.items() if name not in unused}

    def check(self) -> None:
        """Raise, before any work is done, if its data are missing or damaged."""
        self.task.check()

    def batches(self, methods: Sequence[str]) -> list[list[str]]:
        """Return which methods are one simulation, and differ in what they count."""
        batches: dict[Playable, list[str]] = {}
        for name in methods:
            batches.setdefault(METHODS[name].simulation(self), []).append(name)
        return list(batches.values())

    def play(self, methods: Sequence[str], seed: int) -> list[NonlinearRun]:
        """Run some of the methods on one seed."""
        batches = self.batches(methods)
        return [run for batch in telling(batches) for run in self._play(batch, seed)]

    def _play(self, names: Sequence[str], seed: int) -> list[NonlinearRun]:
        """Run methods that are one simulation."""
        began = time.process_time()
        run = METHODS[names[0]].simulation(self).run(seed)
        seconds = (time.process_time() - began) / len(names)
        return [_counted(METHODS[name], seed, run, seconds) for name in names]

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

    def estimates(self) -> dict[str, Column]:
        """Return how the estimates of rows are made and shown, by name."""
        over = partial(Column, sign="+", digits=1)
        return {
            "regret": Column("regret", digits=1),
            "over_alone": over("over N-GO*", control="n-go-ucb"),
            "over_linear": over("over linear*", control="dislinucb"),
            "over_no_phase_one": over("", control="no-phase-one"),
            "over_each_once": over("", control="each-once"),
            "scalars": Column("scalars", humanised=True, of="scalars"),
            "synchronisations": Column(
                "syncs", digits=0, of="synchronisations", reads="end"
            ),
        }

    def summarize(
        self, runs: Sequence[Run], until: int | None = None
    ) -> dict[str, NonlinearRow]:
        """Return a row a method; see `Experiment.summarize`."""
        rows = summarize(self, NonlinearRow, runs, until)
        if until in (None, self.num_iterations):
            return rows
        return {n: replace(row, synchronisations=None) for n, row in rows.items()}

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

    def verdict(self, rows: Mapping[str, Any]) -> list[str]:
        """Say in words whether federation helped, and phase I, and what it cost."""
        if any(row.regret.num_runs < 2 for row in rows.values()):
            return [ONE_SEED]
        lines = []
        for row in rows.values():
            if row.over_alone is not None and METHODS[row.method].releases:
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


def _of_communication(ours: NonlinearRow, always: NonlinearRow) -> str:
    """Say how much less than One-GO-UCB was sent."""
    sent, most = ours.scalars.mean, always.scalars.mean
    return (
        f"{ours.label} sends {humanised(sent)} scalars, {sent / most:.2%} of the "
        f"{humanised(most)} of {always.label}."
    )

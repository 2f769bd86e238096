"""The table of an experiment of non-linear bandits: runs, rows, columns, verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo.experiment_runner.base import Column, Row, Run
from flwr_fbo.experiment_runner.estimates import Estimate
from flwr_fbo.experiment_runner.nonlinear_bandit_design import NonlinearDesign
from flwr_fbo.experiment_runner.nonlinear_bandit_methods import METHODS
from flwr_fbo.experiment_runner.regret_run import RegretRun
from flwr_fbo.experiment_runner.summary import summarize
from flwr_fbo.experiment_runner.wording import ONE_SEED, helped, humanised

FloatArray = NDArray[np.float64]


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
class NonlinearTable(NonlinearDesign):
    """The table of an experiment of non-linear bandits."""

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


def _of_communication(ours: NonlinearRow, always: NonlinearRow) -> str:
    """Say how much less than One-GO-UCB was sent."""
    sent, most = ours.scalars.mean, always.scalars.mean
    return (
        f"{ours.label} sends {humanised(sent)} scalars, {sent / most:.2%} of the "
        f"{humanised(most)} of {always.label}."
    )

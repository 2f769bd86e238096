"""The table of an experiment of non-linear bandits: runs, rows, columns, verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._validation import require
from flwr_fbo.experiment_runner.base import Column, Row, Run
from flwr_fbo.experiment_runner.curves import curves_by_method, epsilon_of, scalars_of
from flwr_fbo.experiment_runner.estimates import Estimate
from flwr_fbo.experiment_runner.nonlinear_bandit_design import NonlinearDesign
from flwr_fbo.experiment_runner.nonlinear_bandit_methods import METHODS
from flwr_fbo.experiment_runner.wording import ONE_SEED, helped, humanised

FloatArray = NDArray[np.float64]


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


# By the estimate of a row they show.
COLUMNS = {
    "regret": Column("regret", digits=1),
    "over_alone": Column("over N-GO*", "+", digits=1),
    "over_linear": Column("over linear*", "+", digits=1),
    "scalars": Column("scalars", humanised=True),
    "synchronisations": Column("syncs", digits=0),
}


def summarize(
    experiment: NonlinearDesign, runs: Sequence[Run], until: int | None
) -> dict[str, NonlinearRow]:
    """Return a row a method; see `Experiment.summarize`."""
    rounds = experiment.num_iterations
    last = rounds if until is None else until
    require(1 <= last <= rounds, "until", last, f"1 to {rounds}")
    curves = curves_by_method(experiment.methods, runs)
    regret = {name: curve[:, last - 1] for name, curve in curves.items()}
    scalars = curves_by_method(experiment.methods, runs, scalars_of)
    counts = curves_by_method(experiment.methods, runs, _synchronisations_of)

    def over(name: str, other: str) -> Estimate | None:
        if name == other or other not in regret:
            return None
        return Estimate.of(regret[name] - regret[other])

    return {
        name: NonlinearRow(
            name,
            experiment.label_of(name),
            epsilon_of(runs, name),
            Estimate.of(regret[name]),
            over(name, "n-go-ucb"),
            over(name, "dislinucb"),
            over(name, "no-phase-one"),
            over(name, "each-once"),
            Estimate.of(scalars[name][:, last - 1]),
            Estimate.of(counts[name]) if last == rounds else None,
        )
        for name in experiment.methods
    }


def notes(experiment: NonlinearDesign, until: int | None) -> tuple[str, list[str]]:
    """Return the table's title, and what is to be said below it."""
    num_rounds = experiment.num_iterations
    rounds = until or num_rounds
    title = f"Regret of {experiment.num_agents} agents together in {rounds} rounds"
    return title, [
        "* paired by seed, to N-GO-UCB (agents alone) and DisLinUCB; negative is "
        "better.",
        "Rewards are maximised; regret is by how much the best action's mean is "
        "higher.",
        f"scalars: sent by agents and server; "
        f"{humanised(experiment.scalars_a_synchronisation)} a synchronisation of the "
        "network's sums. If One-GO-UCB sent every point and "
        "its reward to all instead, which is raw data, it would send "
        f"{humanised(experiment.scalars_of_points)} in {num_rounds} rounds.",
        "each once: agents try each action once, together, and then play the best; "
        "no model.",
        "GLB-UCB is Fed-GLB-UCB; kernel UCB is ApproxDisKernelUCB.",
        "NOT PRIVATE: gradients, sums and points are sent as they are.",
    ]


def verdict(rows: Mapping[str, NonlinearRow]) -> list[str]:
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

"""The table of an experiment of linear bandits: runs, rows, columns and verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._validation import require
from flwr_fbo.experiment_runner.base import Column, Row, Run
from flwr_fbo.experiment_runner.curves import curves_by_method, epsilon_of
from flwr_fbo.experiment_runner.estimates import Estimate
from flwr_fbo.experiment_runner.linear_bandit_design import BanditDesign
from flwr_fbo.experiment_runner.linear_bandit_methods import BanditMethod
from flwr_fbo.experiment_runner.wording import ONE_SEED, carried, helped

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class RegretRun(Run):
    """What one method did on one seed.

    Attributes
    ----------
    regret : list of float
        That an agent has added up, in the mean, after each of the experiment's
        ``iterations``.
    """

    regret: list[float]

    @property
    def curve(self) -> FloatArray:
        """The regret, as an array."""
        return np.array(self.regret)


@dataclass(frozen=True)
class RegretRow(Row):
    """One method, beside the two it is compared to on the same seeds.

    Attributes
    ----------
    regret : Estimate
        That an agent has added up.
    over_independent, over_noise_only : Estimate or None
        The paired difference to that of a control: negative where this method is
        better; None for the control itself.
    ratio : Estimate or None
        The paired ratio to that of agents without communication.
    """

    regret: Estimate
    over_independent: Estimate | None
    ratio: Estimate | None
    over_noise_only: Estimate | None


# By the estimate of a row they show.
COLUMNS = {
    "regret": Column("regret", digits=1),
    "over_independent": Column("over indep.*", "+", digits=1),
    "ratio": Column("ratio to it*", digits=3),
    "over_noise_only": Column("over noise*", "+", digits=0),
}


def summarize(
    experiment: BanditDesign,
    known: Mapping[str, BanditMethod],
    runs: Sequence[Run],
    until: int | None,
) -> dict[str, RegretRow]:
    """Return a row a method; see `Experiment.summarize`."""
    last = experiment.num_iterations if until is None else until
    nearest = int(np.argmin(np.abs(experiment.iterations - last)))
    kept = int(experiment.iterations[nearest])
    allowed = f"a trial whose regret was kept; {kept} is the nearest"
    require(last == kept, "until", last, allowed)
    curves = curves_by_method(experiment.methods, runs)
    regret = {name: curve[:, nearest] for name, curve in curves.items()}

    def beside(
        name: str, base: str, compare: Callable[[Any, Any], Any]
    ) -> Estimate | None:
        control = known[name].control(base)
        if name == control or control not in regret:
            return None
        return Estimate.of(compare(regret[name], regret[control]))

    return {
        name: RegretRow(
            name,
            experiment.label_of(name),
            epsilon_of(runs, name),
            Estimate.of(regret[name]),
            beside(name, "independent", np.subtract),
            beside(name, "independent", np.divide),
            beside(name, "noise-only", np.subtract),
        )
        for name in experiment.methods
    }


def notes(
    experiment: BanditDesign, known: Mapping[str, BanditMethod], until: int | None
) -> tuple[str, list[str]]:
    """Return the table's title, and what is to be said below it."""
    title = f"Regret of an agent in {until or experiment.num_iterations} trials"
    lines = ["* paired by seed; negative is better, and a ratio below 1."]
    if {"fed-ucb-raw", "paper"} & {known[name].base for name in experiment.methods}:
        lines.append(
            "† acts on its raw data between synchronisations: the guarantee holds "
            "only with all other records fixed."
        )
    delta = experiment.privacy.delta
    lines.append(
        f"epsilon: of an agent's releases, at delta = {delta:g}, had "
        "the noise been real. The noise of an experiment is seeded: NOT PRIVATE."
    )
    return title, lines


def verdict(
    known: Mapping[str, BanditMethod], rows: Mapping[str, RegretRow]
) -> list[str]:
    """Say in words whether federation helped, with and without privacy."""
    compared = [row for row in rows.values() if known[row.method].controls]
    if any(row.regret.num_runs < 2 for row in compared):
        return [ONE_SEED]
    lines = []
    for row in compared:
        assert row.over_independent is not None  # a control that is there
        gain = -row.over_independent
        lines.append(f"{row.label} {helped(gain, 'independent agents')}")
        ours = known[row.method].base == "fed-ucb"
        if ours and row.over_noise_only is not None:
            lines.append(carried(row.label, -row.over_noise_only))
    return lines

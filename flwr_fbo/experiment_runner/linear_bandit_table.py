"""The table of an experiment of linear bandits: rows, columns and verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from flwr_fbo.experiment_runner.base import Column, Row, Run
from flwr_fbo.experiment_runner.estimates import Estimate
from flwr_fbo.experiment_runner.linear_bandit_design import BanditDesign
from flwr_fbo.experiment_runner.linear_bandit_methods import METHODS, BanditMethod
from flwr_fbo.experiment_runner.summary import summarize
from flwr_fbo.experiment_runner.wording import ONE_SEED, carried, helped


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


@dataclass(frozen=True, kw_only=True)
class BanditTable(BanditDesign):
    """The methods of an experiment of linear bandits, and its table."""

    @property
    def known_methods(self) -> Mapping[str, BanditMethod]:
        """All methods that it could have, by name."""
        if self.sweep is None:
            return METHODS
        at_points = [
            m.at(p) for m in METHODS.values() for p in self.sweep.points(m.depends_on)
        ]
        return {method.name: method for method in at_points}

    def estimates(self) -> dict[str, Column]:
        """Return how the estimates of rows are made and shown, by name."""
        beside = partial(Column, control="independent")
        return {
            "regret": Column("regret", digits=1),
            "over_independent": beside("over indep.*", "+", digits=1),
            "ratio": beside("ratio to it*", digits=3, compare=np.divide),
            "over_noise_only": Column(
                "over noise*", "+", digits=0, control="noise-only"
            ),
        }

    def summarize(
        self, runs: Sequence[Run], until: int | None = None
    ) -> dict[str, RegretRow]:
        """Return a row a method; see `Experiment.summarize`."""
        return summarize(self, RegretRow, runs, until)

    def notes(self, runs: Sequence[Run], until: int | None) -> tuple[str, list[str]]:
        """Return the table's title, and what is to be said below it."""
        known, delta = self.known_methods, self.privacy.delta
        title = f"Regret of an agent in {until or self.num_iterations} trials"
        lines = ["* paired by seed; negative is better, and a ratio below 1."]
        if {"fed-ucb-raw", "paper"} & {known[name].base for name in self.methods}:
            lines.append(
                "† acts on its raw data between synchronisations: the guarantee holds "
                "only with all other records fixed."
            )
        lines.append(
            f"epsilon: of an agent's releases, at delta = {delta:g}, had "
            "the noise been real. The noise of an experiment is seeded: NOT PRIVATE."
        )
        return title, lines

    def verdict(self, rows: Mapping[str, Any]) -> list[str]:
        """Say in words whether federation helped, with and without privacy."""
        known = self.known_methods
        compared = [row for row in rows.values() if known[row.method].controls]
        if any(row.regret.num_runs < 2 for row in compared):
            return [ONE_SEED]
        lines = []
        for row in compared:
            gain = -row.over_independent  # a control that is there
            lines.append(f"{row.label} {helped(gain, 'independent agents')}")
            ours = known[row.method].base == "fed-ucb"
            if ours and row.over_noise_only is not None:
                lines.append(carried(row.label, -row.over_noise_only))
        return lines

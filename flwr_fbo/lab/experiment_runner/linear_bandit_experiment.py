"""Experiments of linear bandits: private FedUCB beside its controls and the published.

The environment of Dubey & Pentland, *Differentially-Private Federated Linear Bandits*
(NeurIPS 2020), section 4.4. All methods of a seed play the same trials, under the same
noise; what is compared is the regret that an agent has added up in T trials. With a
`Sweep` they are played at several settings, as methods with names of their own.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.validation import require, require_int, require_known
from flwr_fbo.algorithms.linear_bandit.settings import DeterminantTrigger
from flwr_fbo.lab.experiment_runner.base import Column, Row
from flwr_fbo.lab.experiment_runner.curves import summarize
from flwr_fbo.lab.experiment_runner.estimates import Estimate
from flwr_fbo.lab.experiment_runner.linear_bandit_design import BanditDesign
from flwr_fbo.lab.experiment_runner.linear_bandit_methods import (
    METHODS,
    OF_SCHEDULE,
    BanditMethod,
    methods_at,
)
from flwr_fbo.lab.experiment_runner.runs import RegretRun, Run
from flwr_fbo.lab.experiment_runner.sweep import FIELDS, Value, text_of
from flwr_fbo.lab.experiment_runner.wording import ONE_SEED, carried, helped
from flwr_fbo.lab.simulation.linear_bandits import (
    BanditRun,
    BanditSimulation,
    play_together,
)
from flwr_fbo.lab.simulation.mean_field import mean_field_regret
from flwr_fbo.lab.simulation.progress import telling
from flwr_fbo.lab.tasks.linear_bandit import LinearBanditTask

# How many points a curve has; fewer where they would fall together.
_CURVE_LENGTH = 100


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
class BanditExperiment(BanditDesign):
    """Methods on linear bandits, over paired seeds; iterations are trials.

    Attributes
    ----------
    methods : tuple of str
        All but ``"full"``, and those for graphs, unless given. With a sweep, each at
        all of its points.
    """

    log_axes: ClassVar[bool] = True

    methods: tuple[str, ...] = tuple(name for name, m in METHODS.items() if m.usual)

    def __post_init__(self) -> None:
        for name in self.methods:
            if name not in self.known_methods:
                require_known("methods", name, METHODS)
        at_points = [one for name in self.methods for one in self._at_points(name)]
        object.__setattr__(self, "methods", tuple(at_points))
        super().__post_init__()
        first, last = self.first_synchronisation, self.num_iterations - 1
        require_int("first_synchronisation", first, 1)
        allowed = f"at most {last}, before the last trial"
        require(first <= last, "first_synchronisation", first, allowed)
        self._check_sweep()
        allowed = "1, without a graph"
        ok = self.graph is not None or self.hops == 1
        require(ok, "hops", self.hops, allowed)
        ok = self.graph is None or self.simulator == "exact"
        require(ok, "simulator", self.simulator, "'exact', with a graph")
        for name in self.methods:
            needs_graph = self.known_methods[name].needs_graph
            ok = self.graph is not None or not needs_graph
            require(ok, "methods", name, "only with a graph")
            self.simulation(name)  # whether all can be played

    def _at_points(self, method: str) -> list[str]:
        """Return a method's names at all points of the sweep."""
        known = self.known_methods
        names = [name for name, one in known.items() if one.base == method]
        return names or [method]

    def _check_sweep(self) -> None:
        """Raise unless what the experiment says of a swept field is one of its values.

        What counts are the values of the sweep: any other would mislead.
        """
        for name, values in self.sweep.values.items() if self.sweep else ():
            own = self.setting(name)
            allowed = f"one of {', '.join(map(text_of, values))} ([sweep])"
            require(own in values, name, own, allowed)

    def setting(self, name: str) -> Value | None:
        """Return what a field of a sweep is here."""
        table = FIELDS[name].table
        value = getattr(getattr(self, table) if table else self, name)
        return cast(Value | None, value)

    def with_epsilon(self, epsilon: float) -> Self:
        """Return the same experiment at another epsilon; see `Experiment`."""
        swept = self.sweep is not None and self.sweep.epsilon is not None
        require(not swept, "epsilon", epsilon, "left out: it is swept")
        return super().with_epsilon(epsilon)

    def plain(self, method: str) -> BanditExperiment:
        """Return the experiment without a sweep that a method belongs to."""
        if self.sweep is None:
            return self
        chosen = self.known_methods[method]
        tables: dict[str, dict[str, Any]] = {"": {}, "privacy": {}, "task": {}}
        for name, value in chosen.point:
            tables[FIELDS[name].table][name] = value
        return replace(
            self,
            **tables[""],
            privacy=replace(self.privacy, **tables["privacy"]),
            task=replace(self.task, **tables["task"]),
            methods=(chosen.base, *METHODS[chosen.base].controls),
            sweep=None,
            claims=(),
        )

    def simulation(self, method: str) -> BanditSimulation:
        """Return what a method plays."""
        return self.known_methods[method].simulation(self.plain(method))

    def recipe(self, method: str) -> dict[str, Any]:
        """Return what decides a method's runs: of a sweep, those of its point."""
        chosen = self.known_methods[method]
        if self.sweep is not None:
            return self.plain(method).recipe(chosen.base)
        values = super().recipe(method)
        unused = ["sweep"]
        if not chosen.scheduled:
            unused += [*OF_SCHEDULE, "first_synchronisation"]
        elif self.graph is None:
            unused += ["graph", "hops"]
        return {name: value for name, value in values.items() if name not in unused}

    def batches(self, methods: Sequence[str]) -> list[list[str]]:
        """Return together what plays the same trials, which are then drawn once."""
        batches: dict[tuple[LinearBanditTask, int] | str, list[str]] = {}
        for name in methods:
            plain = self.plain(name)
            exact = plain.simulator == "exact"
            key = (plain.task, plain.num_agents) if exact else name
            batches.setdefault(key, []).append(name)
        return list(batches.values())

    def play(self, methods: Sequence[str], seed: int) -> list[RegretRun]:
        """Run some of the methods on one seed, on the same trials."""
        batches = self.batches(methods)
        return [run for batch in telling(batches) for run in self._play(batch, seed)]

    def _play(self, batch: Sequence[str], seed: int) -> list[RegretRun]:
        began = time.process_time()
        curves = self._curves(batch, seed)
        seconds = (time.process_time() - began) / len(curves)
        known = self.known_methods
        return [
            RegretRun(
                method=name,
                seed=seed,
                epsilon=known[name].epsilon(self.plain(name).privacy),
                private=not known[name].releases and not known[name].noisy,
                seconds=seconds,
                regret=[float(value) for value in curve],
            )
            for name, curve in zip(batch, curves, strict=True)
        ]

    def _curves(self, batch: Sequence[str], seed: int) -> list[FloatArray]:
        """Return an agent's regret, added up, after each of ``steps``."""
        simulations = [self.simulation(name) for name in batch]
        # Seeds of bandits are even, and seeds of noise odd: no two are the same.
        seeds = 2 * seed, 2 * seed + 1
        if self.plain(batch[0]).simulator == "mean-field":
            return [mean_field_regret(one, *seeds, self.steps) for one in simulations]
        return [self._curve(run) for run in play_together(simulations, *seeds)]

    def _curve(self, run: BanditRun) -> FloatArray:
        per_agent = np.cumsum(run.regret) / len(run.running_sums)
        return np.asarray(per_agent[self.steps - 1])

    @property
    def steps(self) -> NDArray[np.intp]:
        """After how many trials the runs' curves have their values."""
        even_on_log_scale = np.geomspace(1, self.num_iterations, _CURVE_LENGTH)
        return np.unique(np.round(even_on_log_scale).astype(np.intp))

    @property
    def axes(self) -> tuple[str, str]:
        """What the figure's two axes are called."""
        return "trial", "cumulative regret of an agent"

    def spending(self, method: str) -> FloatArray:
        """Return an agent's epsilon: all of it, from its first release on."""
        known = self.known_methods[method]
        spent = known.epsilon(self.plain(method).privacy)
        return np.where(self._num_synchronisations_of(method) > 0, spent, 0.0)

    def sending(self, method: str, runs: Sequence[Run]) -> FloatArray | None:
        """Return how many numbers have been sent; None among peers.

        Every agent sends its sum at each synchronisation, and gets that of all.
        """
        if self.simulation(method).graph is not None:
            return None
        simulation = self.simulation(method)
        shape = simulation.settings.releases.sum_shape
        numbers = 2 * simulation.num_agents * math.prod(shape)
        return numbers * self._num_synchronisations_of(method)

    def _num_synchronisations_of(self, method: str) -> FloatArray:
        """Return how often a method has synchronised by each of ``steps``."""
        simulation = self.simulation(method)
        assert not isinstance(simulation.schedule, DeterminantTrigger)
        if simulation.control == "random":
            return np.zeros(len(self.steps))
        counts = [bisect_right(simulation.schedule, step) for step in self.steps]
        return np.array(counts, dtype=np.float64)

    @property
    def known_methods(self) -> Mapping[str, BanditMethod]:
        """All methods that it could have, by name."""
        return METHODS if self.sweep is None else methods_at(self.sweep)

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
        if any("†" in known[name].label for name in self.methods):
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

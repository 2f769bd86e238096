"""Experiments of linear bandits: private FedUCB beside its controls and the published.

The environment of Dubey & Pentland, *Differentially-Private Federated Linear Bandits*
(NeurIPS 2020), section 6. All methods of a seed play the same trials, under the same
noise; what is compared is the regret that an agent has added up in T trials. With a
`Sweep` they are played at several settings, as methods with names of their own.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._validation import nearest, require, require_fraction, require_int
from flwr_fbo.experiment_runner.base import (
    Column,
    Experiment,
    Method,
    PrivacySetting,
    Row,
    Run,
)
from flwr_fbo.experiment_runner.curves import curves_by_method, epsilon_of
from flwr_fbo.experiment_runner.estimates import Estimate
from flwr_fbo.experiment_runner.sweep import (
    FIELDS,
    Point,
    Sweep,
    Value,
    label_at,
    name_at,
    text_of,
)
from flwr_fbo.experiment_runner.wording import ONE_SEED, carried, helped
from flwr_fbo.privacy.accounting import check_epsilon
from flwr_fbo.privacy.continual import ContinualSettings
from flwr_fbo.protocol.linear_ucb_settings import (
    DeterminantTrigger,
    LinearUCBSettings,
    LocalData,
    Width,
)
from flwr_fbo.protocol.peer_graph import GraphName, PeerGraph, Pooling
from flwr_fbo.simulation.linear_bandits import (
    BanditRun,
    BanditSimulation,
    Baseline,
    Control,
    geometric_schedule,
    play_together,
)
from flwr_fbo.tasks.linear_bandit import LinearBanditTask

FloatArray = NDArray[np.float64]

# What has no part in what agents do that never synchronise by the schedule.
_OF_SCHEDULE = ("num_synchronisations", "graph", "hops")

# How many points a curve has; fewer where they would fall together.
_CURVE_LENGTH = 100


@dataclass(frozen=True)
class BanditPrivacy(PrivacySetting):
    """The privacy setting of an experiment of bandits.

    Attributes
    ----------
    epsilon : float
        From 1e-3 to 1e3, of all releases of an agent together.
    delta : float
        Below 1.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        require_fraction("delta", self.delta)

    def at(self, epsilon: float) -> BanditPrivacy:
        """Return the same setting at another epsilon."""
        return replace(self, epsilon=epsilon)


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


@dataclass(frozen=True)
class BanditMethod(Method):
    """One curve of an experiment of bandits.

    Attributes
    ----------
    simulation : callable
        Takes an experiment; returns what is played.
    releases : bool
        Whether agents release anything of theirs.
    scheduled : bool
        Whether the schedule, and the graph, have a part in what it does.
    base : str
        The method that it is at a point of a sweep; itself unless given.
    point : tuple of (str, float)
        The settings there.
    """

    simulation: Callable[[BanditExperiment], BanditSimulation]
    releases: bool = True
    scheduled: bool = True
    base: str = ""
    point: Point = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", self.base or self.name)

    def epsilon(self, privacy: BanditPrivacy) -> float:
        """Return what an agent spends."""
        if not self.releases:
            return 0.0
        return privacy.epsilon if self.noisy else math.inf

    def depends_on(self, field: str) -> bool:
        """Return whether a field of a sweep has a part in what it does."""
        of_schedule = dict.fromkeys(_OF_SCHEDULE, self.scheduled)
        return {"epsilon": self.noisy, **of_schedule}.get(field, True)

    def at(self, point: Point) -> BanditMethod:
        """Return the method at a point of a sweep, beside its controls there."""
        return replace(
            self,
            name=name_at(self.name, point),
            label=label_at(self.label, point),
            controls=tuple(_name_at(name, point) for name in self.controls),
            noise_only=self.noise_only and _name_at(self.noise_only, point),
            base=self.name,
            point=point,
        )


def _private(
    experiment: BanditExperiment,
    local_data: LocalData = "released",
    control: Control | None = None,
    pooling: Pooling = "neighbourhood",
) -> BanditSimulation:
    settings = LinearUCBSettings(
        experiment.releases,
        experiment.num_agents,
        width=experiment.width,
        local_data=local_data,
    )
    trials, schedule = experiment.num_iterations, experiment.schedule
    central = BanditSimulation(settings, experiment.task, trials, schedule, control)
    if experiment.graph is None or control == "random":
        return central
    return central.among_peers(experiment.peers(pooling))


def _published(experiment: BanditExperiment) -> BanditSimulation:
    """Return the paper's noise, shifts and width, of agents that use their raw data.

    Among peers, its cliques and its estimators, too.
    """
    ours = _private(experiment, "raw", pooling="clique")
    releases = replace(ours.settings.releases, mechanism="tree", calibration="paper")
    settings = replace(ours.settings, releases=releases, width="paper")
    return replace(ours, settings=settings)


def _baseline(
    experiment: BanditExperiment, name: Baseline, pooling: Pooling = "neighbourhood"
) -> BanditSimulation:
    return _private(experiment, pooling=pooling).baseline(name)


_PRIVATE: dict[str, Any] = {
    "controls": ("independent", "noise-only"),
    "noisy": True,
    "noise_only": "noise-only",
}
_ALL = (
    BanditMethod("fed-ucb", "FedUCB", _private, **_PRIVATE),
    BanditMethod(
        "fed-ucb-raw", "FedUCB raw†", partial(_private, local_data="raw"), **_PRIVATE
    ),
    BanditMethod("paper", "published†", _published, **_PRIVATE),
    BanditMethod(
        "cliques", "FedUCB, cliques", partial(_private, pooling="clique"), **_PRIVATE
    ),
    BanditMethod(
        "non-private",
        "non-private",
        partial(_baseline, name="non-private"),
        controls=("independent",),
    ),
    BanditMethod(
        "cliques-non-private",
        "cliques, non-private",
        partial(_baseline, name="non-private", pooling="clique"),
        controls=("independent",),
    ),
    BanditMethod(
        "full",
        "full",
        partial(_baseline, name="full"),
        controls=("independent",),
        scheduled=False,
    ),
    BanditMethod(
        "independent",
        "independent",
        partial(_baseline, name="independent"),
        releases=False,
        scheduled=False,
    ),
    BanditMethod(
        "noise-only",
        "noise-only",
        partial(_private, control="noise-only"),
        releases=False,
        noisy=True,
    ),
    BanditMethod(
        "random",
        "random",
        partial(_private, control="random"),
        releases=False,
        scheduled=False,
    ),
)
_METHODS = {method.name: method for method in _ALL}
# What the paper does among peers, with our noise, or none.
_AMONG_PEERS = ("cliques", "cliques-non-private")


def _name_at(method: str, point: Point) -> str:
    """Return what a method is called at that of a point which it depends on."""
    counts = _METHODS[method].depends_on
    return name_at(method, tuple(one for one in point if counts(one[0])))


_USUAL = tuple(name for name in _METHODS if name not in ("full", *_AMONG_PEERS))


@dataclass(frozen=True, kw_only=True)
class BanditExperiment(Experiment):
    """Methods on linear bandits, over paired seeds; iterations are trials.

    Attributes
    ----------
    task : LinearBanditTask
    privacy : BanditPrivacy
    num_synchronisations : int
        n, fixed in advance, the gaps growing: see `geometric_schedule`.
    first_synchronisation : int
        After how many trials. What is there before is exploration, for agents that act
        on released data only.
    width : {"exact", "observed", "paper"}
        Of all methods but ``"paper"``, which has its own.
    graph : {"complete", "ring", "star", "line", "random"}, optional
        Along which agents talk; there is a centre unless given. See `PeerGraph.named`.
    hops : int
        How far messages travel in a graph.
    methods : tuple of str
        All but ``"full"``, and those for graphs, unless given. With a sweep, each at
        all of its points.
    sweep : Sweep, optional
        What else than the above to play them at.
    """

    log_axes: ClassVar[bool] = True

    task: LinearBanditTask
    privacy: BanditPrivacy
    num_synchronisations: int = 16
    first_synchronisation: int = 100
    width: Width = "observed"
    graph: GraphName | None = None
    hops: int = 1
    methods: tuple[str, ...] = _USUAL
    sweep: Sweep | None = None

    def __post_init__(self) -> None:
        for name in self.methods:
            known = name in {*_METHODS, *self.known_methods}
            require(known, "methods", name, nearest(name, _METHODS))
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
        for name in self.methods:
            needs = self.known_methods[name].base in _AMONG_PEERS
            ok = self.graph is not None or not needs
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

    def peers(self, pooling: Pooling) -> PeerGraph:
        """Return the graph.

        With neighbourhoods, which are ours, there is one estimator an agent; with the
        paper's cliques as many as hops.
        """
        estimators = self.hops if pooling == "clique" else 1
        return PeerGraph.named(
            str(self.graph),
            self.num_agents,
            hops=self.hops,
            pooling=pooling,
            num_estimators=estimators,
        )

    @property
    def known_methods(self) -> Mapping[str, BanditMethod]:
        """All methods that it could have, by name."""
        if self.sweep is None:
            return _METHODS
        at_points = [m.at(p) for m in _ALL for p in self.sweep.points(m.depends_on)]
        return {method.name: method for method in at_points}

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
            methods=(chosen.base, *_METHODS[chosen.base].controls),
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
            unused += [*_OF_SCHEDULE, "first_synchronisation"]
        elif self.graph is None:
            unused += ["graph", "hops"]
        return {name: value for name, value in values.items() if name not in unused}

    @property
    def lower_is_better(self) -> bool:
        """Regret is."""
        return True

    def check(self) -> None:
        """Return: it needs no data."""

    @property
    def releases(self) -> ContinualSettings:
        """What an agent hands out."""
        epsilon, delta = self.privacy.epsilon, self.privacy.delta
        n, d = self.num_synchronisations, self.task.dimension
        return ContinualSettings(n, d, epsilon, delta)

    @property
    def schedule(self) -> list[int]:
        """After how many trials there is a synchronisation."""
        trials, n = self.num_iterations, self.num_synchronisations
        return geometric_schedule(trials, n, self.first_synchronisation)

    def batches(self, methods: Sequence[str]) -> list[list[str]]:
        """Return together what plays the same trials, which are then drawn once."""
        batches: dict[tuple[LinearBanditTask, int], list[str]] = {}
        for name in methods:
            plain = self.plain(name)
            batches.setdefault((plain.task, plain.num_agents), []).append(name)
        return list(batches.values())

    def play(self, methods: Sequence[str], seed: int) -> list[RegretRun]:
        """Run some of the methods on one seed, on the same trials."""
        batches = self.batches(methods)
        return [run for batch in batches for run in self._play(batch, seed)]

    def _play(self, batch: Sequence[str], seed: int) -> list[RegretRun]:
        began = time.perf_counter()
        simulations = [self.simulation(name) for name in batch]
        # Seeds of bandits are even, and seeds of noise odd: no two are the same.
        runs = play_together(simulations, 2 * seed, 2 * seed + 1)
        seconds = (time.perf_counter() - began) / len(runs)
        known = self.known_methods
        return [
            RegretRun(
                method=name,
                seed=seed,
                epsilon=known[name].epsilon(self.plain(name).privacy),
                private=not known[name].releases and not known[name].noisy,
                seconds=seconds,
                regret=self._curve(run),
            )
            for name, run in zip(batch, runs, strict=True)
        ]

    def _curve(self, run: BanditRun) -> list[float]:
        per_agent = np.cumsum(run.regret) / len(run.running_sums)
        return [float(value) for value in per_agent[self.iterations - 1]]

    def run_of(self, values: Mapping[str, Any]) -> RegretRun:
        """Return the run of a line of results."""
        regret = [float(value) for value in values["regret"]]
        expected = len(self.iterations)
        require(len(regret) == expected, "regret", len(regret), f"{expected} numbers")
        return RegretRun(**Run.common_of(values), regret=regret)

    @property
    def iterations(self) -> NDArray[np.intp]:
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
        plain = self.plain(method)
        numbers = 2 * plain.num_agents * math.prod(plain.releases.sum_shape)
        return numbers * self._num_synchronisations_of(method)

    def _num_synchronisations_of(self, method: str) -> FloatArray:
        """Return how often a method has synchronised by each of ``iterations``."""
        simulation = self.simulation(method)
        assert not isinstance(simulation.schedule, DeterminantTrigger)
        if simulation.control == "random":
            return np.zeros(len(self.iterations))
        counts = np.searchsorted(simulation.schedule, self.iterations, side="right")
        return np.asarray(counts, dtype=np.float64)

    def summarize(
        self, runs: Sequence[Run], until: int | None = None
    ) -> dict[str, RegretRow]:
        """Return a row a method; see `Experiment.summarize`."""
        last = self.num_iterations if until is None else until
        nearest = int(np.argmin(np.abs(self.iterations - last)))
        kept = int(self.iterations[nearest])
        allowed = f"a trial whose regret was kept; {kept} is the nearest"
        require(last == kept, "until", last, allowed)
        known = self.known_methods
        curves = curves_by_method(self.methods, runs)
        regret = {name: curve[:, nearest] for name, curve in curves.items()}

        def beside(
            name: str, base: str, compare: Callable[[Any, Any], Any]
        ) -> Estimate | None:
            control = _name_at(base, known[name].point)
            if name == control or control not in regret:
                return None
            return Estimate.of(compare(regret[name], regret[control]))

        return {
            name: RegretRow(
                name,
                self.label_of(name),
                epsilon_of(runs, name),
                Estimate.of(regret[name]),
                beside(name, "independent", np.subtract),
                beside(name, "independent", np.divide),
                beside(name, "noise-only", np.subtract),
            )
            for name in self.methods
        }

    def columns(self) -> dict[str, Column]:
        """Return the columns of the table, by the estimate of a row they show."""
        return {
            "regret": Column("regret", digits=1),
            "over_independent": Column("over indep.*", "+", digits=1),
            "ratio": Column("ratio to it*", digits=3),
            "over_noise_only": Column("over noise*", "+", digits=0),
        }

    def notes(self, runs: Sequence[Run], until: int | None) -> tuple[str, list[str]]:
        """Return the table's title, and what is to be said below it."""
        title = f"Regret of an agent in {until or self.num_iterations} trials"
        lines = ["* paired by seed; negative is better, and a ratio below 1."]
        known = self.known_methods
        if {"fed-ucb-raw", "paper"} & {known[name].base for name in self.methods}:
            lines.append(
                "† acts on its raw data between synchronisations: the guarantee holds "
                "only with all other records fixed."
            )
        lines.append(
            f"epsilon: of an agent's releases, at delta = {self.privacy.delta:g}, had "
            "the noise been real. The noise of an experiment is seeded: NOT PRIVATE."
        )
        return title, lines

    def verdict(self, rows: Mapping[str, Any]) -> list[str]:
        """Say in words whether federation helped, with and without privacy."""
        known = self.known_methods
        compared: list[RegretRow]
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

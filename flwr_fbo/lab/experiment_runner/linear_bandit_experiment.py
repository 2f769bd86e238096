"""Experiments of linear bandits: private FedUCB beside its controls and the published.

The environment of Dubey & Pentland, *Differentially-Private Federated Linear Bandits*
(NeurIPS 2020), section 4.4. All methods of a seed play the same trials, under the same
noise; what is compared is the regret that an agent has added up in T trials. With a
`Sweep` they are played at several settings, as methods with names of their own.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import product
from typing import Any, ClassVar, Literal, Self, cast

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common import pictures as palette
from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.fields import integer
from flwr_fbo._common.validation import (
    require,
    require_fraction,
    require_known,
)
from flwr_fbo.bandits.linear.peer_graph import GraphName, PeerGraph, Pooling
from flwr_fbo.bandits.linear.settings import (
    LinearUCBSettings,
    LocalData,
    Width,
    geometric_schedule,
)
from flwr_fbo.lab.experiment_runner import looks
from flwr_fbo.lab.experiment_runner.base import (
    Column,
    Experiment,
    Method,
    PrivacySetting,
    RegretRun,
    Run,
    by_name,
)
from flwr_fbo.lab.experiment_runner.curves import ONE_SEED, carried, helped
from flwr_fbo.lab.experiment_runner.estimates import Row
from flwr_fbo.lab.simulation.linear_bandits import (
    BanditSimulation,
    Baseline,
    Control,
    play_together,
)
from flwr_fbo.lab.simulation.mean_field import mean_field_regret
from flwr_fbo.lab.tasks.linear_bandit import LinearBanditTask
from flwr_fbo.privacy.continual_settings import Calibration, ContinualSettings
from flwr_fbo.privacy.factorisation import Mechanism
from flwr_fbo.privacy.gaussian import check_epsilon
from flwr_fbo.privacy.guarantee import EXAMPLE, PrivacyUnit

Value = float | str
# How bandits are played: trial by trial, or as in `simulation.mean_field`.
Simulator = Literal["exact", "mean-field"]

# The values of some fields of a sweep, each with its field.
Point = tuple[tuple[str, Value], ...]


@dataclass(frozen=True)
class SweptField:
    """Name of a field of a sweep, and its place.

    Attributes
    ----------
    letter : str
        In labels.
    text : str
        On an axis.
    table : {"", "privacy", "task"}
        The table of an experiment's file in which it is set; none: at its top.
    scale : {"log", "names"}
        Scale of an axis.
    """

    letter: str
    text: str
    table: Literal["", "privacy", "task"] = ""
    scale: Literal["log", "names"] = "log"


FIELDS = {
    "epsilon": SweptField("epsilon", "epsilon", "privacy"),
    "num_agents": SweptField("M", "agents"),
    "num_synchronisations": SweptField("n", "synchronisations"),
    "dimension": SweptField("d", "dimension", "task"),
    "gap": SweptField("gap", "gap between the best action and others", "task"),
    "graph": SweptField("graph", "graph", scale="names"),
    "simulator": SweptField("simulator", "simulator", scale="names"),
}


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Settings with several values; methods are played at all combinations of these.

    What is None is as everywhere else in the experiment.

    Attributes
    ----------
    axis : str, optional
        The one of them that a figure has on its x axis. Unless given, it shows curves.
    epsilon : tuple of float, optional
        Values of epsilon.
    num_agents : tuple of int, optional
        Numbers of agents.
    num_synchronisations : tuple of int, optional
        Numbers of synchronisations.
    dimension : tuple of int, optional
        Dimensions d of an action.
    gap : tuple of float, optional
        Gaps between the best arm's mean reward and the others'.
    graph : tuple of str, optional
        Names of graphs; see `PeerGraph.named`.
    simulator : tuple of str, optional
        Simulators, ``"exact"`` or ``"mean-field"``.
    """

    axis: str | None = None
    epsilon: tuple[float, ...] | None = None
    num_agents: tuple[int, ...] | None = None
    num_synchronisations: tuple[int, ...] | None = None
    dimension: tuple[int, ...] | None = None
    gap: tuple[float, ...] | None = None
    graph: tuple[GraphName, ...] | None = None
    simulator: tuple[Simulator, ...] | None = None

    def __post_init__(self) -> None:
        for name, values in self.values.items():
            is_valid = 0 < len(values) == len(set(values))
            require(is_valid, f"sweep.{name}", values, "at least one value, none twice")
        if self.axis is not None:
            require_known("sweep.axis", self.axis, self.values)

    @property
    def values(self) -> dict[str, tuple[Value, ...]]:
        """The values of what is swept, by field."""
        values = {name: getattr(self, name) for name in FIELDS}
        return {name: each for name, each in values.items() if each is not None}

    def points(self, depends_on: Callable[[str], bool]) -> list[Point]:
        """Return all combinations of the values of the fields that count."""
        values = {name: v for name, v in self.values.items() if depends_on(name)}
        grid = product(*values.values())
        return [tuple(zip(values, combination, strict=True)) for combination in grid]


def name_at(name: str, point: Point) -> str:
    """Return what a method is called in files and commands, at a point."""
    settings = ",".join(f"{field}={text_of(value)}" for field, value in point)
    return f"{name}@{settings}" if settings else name


def label_at(label: str, point: Point) -> str:
    """Return the same for tables and figures."""
    settings = ", ".join(
        f"{FIELDS[field].letter}={text_of(value)}" for field, value in point
    )
    return f"{label} ({settings})" if settings else label


def text_of(value: Value) -> str:
    """Return a name, or the shortest text of a number that is of no other one."""
    if isinstance(value, str):
        return value
    return np.format_float_positional(value, trim="-")


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


# What has no part in what agents do that never synchronise by the schedule.
OF_SCHEDULE = ("num_synchronisations", "graph")


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
    usual : bool
        Whether an experiment has it that does not name its methods.
    needs_graph : bool
        Whether it can be played only where agents talk along a graph.
    point : tuple of (str, float)
        The settings there.
    """

    simulation: Callable[[BanditExperiment], BanditSimulation]
    releases: bool = True
    scheduled: bool = True
    usual: bool = True
    needs_graph: bool = False
    point: Point = ()

    def epsilon(self, privacy: BanditPrivacy) -> float:
        """Return what an agent spends."""
        if not self.releases:
            return 0.0
        return privacy.epsilon if self.noisy else math.inf

    def depends_on(self, field: str) -> bool:
        """Return whether a field of a sweep has a part in what it does."""
        of_schedule = dict.fromkeys(OF_SCHEDULE, self.scheduled)
        return {"epsilon": self.noisy, **of_schedule}.get(field, True)

    def at(self, point: Point) -> BanditMethod:
        """Return the method at a point of a sweep, beside its controls there."""
        return replace(
            self,
            name=name_at(self.name, point),
            label=label_at(self.label, point),
            controls=tuple(_name_at(name, point) for name in self.controls),
            noise_only=self.noise_only and _name_at(self.noise_only, point),
            second_reading=self.second_reading and _name_at(self.second_reading, point),
            look=None if point else self.look,
            point=point,
        )

    def control(self, name: str) -> str:
        """Return what a control is called at this method's point of a sweep."""
        if name == "noise-only" and self.noise_only is not None:
            return self.noise_only
        return _name_at(name, self.point)


def _simulation(
    experiment: BanditExperiment,
    settings: LinearUCBSettings,
    pooling: Pooling,
    control: Control | None = None,
) -> BanditSimulation:
    central = BanditSimulation(
        settings,
        experiment.num_agents,
        experiment.task,
        experiment.num_iterations,
        experiment.schedule,
        control,
    )
    if experiment.graph is None or control == "random":
        return central
    return central.among_peers(experiment.peers(pooling))


def _private(
    experiment: BanditExperiment,
    local_data: LocalData = "released",
    control: Control | None = None,
    pooling: Pooling = "neighbourhood",
) -> BanditSimulation:
    settings = LinearUCBSettings(
        experiment.releases(), width="observed", local_data=local_data
    )
    return _simulation(experiment, settings, pooling, control)


def _published(
    experiment: BanditExperiment, width: Width, control: Control | None = None
) -> BanditSimulation:
    """Return the paper's noise, shifts and width, of agents that use their raw data.

    Among peers, its cliques and its estimators, too.
    """
    releases = experiment.releases(mechanism="tree", calibration="paper")
    settings = LinearUCBSettings(releases, width=width, local_data="raw")
    return _simulation(experiment, settings, "clique", control)


def _baseline(
    experiment: BanditExperiment, name: Baseline, pooling: Pooling = "neighbourhood"
) -> BanditSimulation:
    # A tree may have the most releases; of its noise nothing is left.
    settings = LinearUCBSettings(
        experiment.releases("tree"), local_data="released", width="observed"
    )
    return _simulation(experiment, settings, pooling).baseline(name)


def _alone(experiment: BanditExperiment) -> BanditSimulation:
    """Return agents that play plain LinUCB: ridge 1, and an alpha of 1.

    Of .1, .3 and 1 that is the best one in this environment, and libraries' default.
    """
    releases = experiment.releases("tree")
    settings = LinearUCBSettings(releases, local_data="own", width=1.0)
    return _simulation(experiment, settings, "neighbourhood").baseline("independent")


def _control(name: Control, **values: Any) -> BanditMethod:
    play = partial(_private, control=name)
    return BanditMethod(name, name, play, releases=False, **values)


def _open(name: Baseline, **values: Any) -> BanditMethod:
    return BanditMethod(name, name, partial(_baseline, name=name), **values)


_BESIDE = ("independent",)
_PRIVATE: dict[str, Any] = {
    "controls": (*_BESIDE, "noise-only"),
    "noisy": True,
    "noise_only": "noise-only",
}


def _published_methods(
    name: str,
    label: str,
    width: Width,
    color: str,
    *,
    usual: bool = False,
    second: str | None = None,
) -> list[BanditMethod]:
    """Return the published method of a width, its noise alone, and it without noise.

    ``second`` names the method of another width, the second reading of this one.
    """
    noise_only = f"{name}-noise-only"
    return [
        BanditMethod(
            name,
            f"{label}†",
            partial(_published, width=width),
            controls=(*_BESIDE, noise_only),
            noisy=True,
            noise_only=noise_only,
            second_reading=second,
            usual=usual,
            look=(color, "--", "x"),
        ),
        BanditMethod(
            noise_only,
            f"{label}, noise-only",
            partial(_published, width=width, control="noise-only"),
            releases=False,
            noisy=True,
            usual=usual,
            look=(color, ":", "^"),
        ),
        BanditMethod(
            f"{name}-open",
            f"{label}, no noise",
            lambda experiment: _published(experiment, width).baseline("non-private"),
            controls=_BESIDE,
            second_reading=second and f"{second}-open",
            usual=False,
            look=(color, "-", "s"),
        ),
    ]


_IN_CLIQUES: dict[str, Any] = {"usual": False, "needs_graph": True}
METHODS = by_name(
    BanditMethod("fed-ucb", "FedUCB", _private, look=looks.OURS, **_PRIVATE),
    BanditMethod(
        "fed-ucb-raw",
        "FedUCB raw†",
        partial(_private, local_data="raw"),
        look=(palette.SKY, "--", "d"),
        **_PRIVATE,
    ),
    *_published_methods(
        "paper",
        "published",
        "paper",
        palette.PINK,
        usual=True,
        second="paper-authors",
    ),
    *_published_methods(
        "paper-authors", "published, width x .01", "authors", palette.BROWN
    ),
    BanditMethod(
        "cliques",
        "FedUCB, cliques",
        partial(_private, pooling="clique"),
        look=(palette.ORANGE, "--", "s"),
        **_IN_CLIQUES,
        **_PRIVATE,
    ),
    _open("non-private", controls=_BESIDE, look=looks.OPEN),
    BanditMethod(
        "cliques-non-private",
        "cliques, non-private",
        partial(_baseline, name="non-private", pooling="clique"),
        controls=_BESIDE,
        look=(palette.BROWN, ":", "*"),
        **_IN_CLIQUES,
    ),
    _open(
        "full",
        controls=_BESIDE,
        scheduled=False,
        usual=False,
        look=(palette.ORANGE, ":", "P"),
    ),
    _open("independent", releases=False, scheduled=False, look=looks.ALONE),
    BanditMethod(
        "alone",
        "LinUCB alone",
        _alone,
        releases=False,
        scheduled=False,
        look=(looks.ALONE[0], "--", "o"),
    ),
    _control("noise-only", noisy=True, look=looks.UNINFORMED),
    _control("random", scheduled=False, look=looks.RANDOM),
)


@lru_cache(maxsize=8)  # it is asked for at each of many methods
def methods_at(sweep: Sweep) -> Mapping[str, BanditMethod]:
    """Return all methods at the points of a sweep, by name."""
    at_points = [m.at(p) for m in METHODS.values() for p in sweep.points(m.depends_on)]
    return by_name(*at_points)


def _name_at(method: str, point: Point) -> str:
    """Return what a method is called at that of a point which it depends on."""
    counts = METHODS[method].depends_on
    return name_at(method, tuple(setting for setting in point if counts(setting[0])))


# How many points a curve has; fewer where they would fall together.
_CURVE_LENGTH = 100


@dataclass(frozen=True, kw_only=True)
class BanditExperiment(Experiment):
    """Methods on linear bandits, over paired seeds; iterations are trials.

    Attributes
    ----------
    task : LinearBanditTask
        Linear bandits that are played.
    privacy : BanditPrivacy
        Privacy of the agents' releases.
    num_iterations : int
        Trials of each agent, >= 1.
    num_synchronisations : int
        n, fixed in advance, the gaps growing: see `geometric_schedule`. With one for
        each trial from the first one on, after every trial.
    first_synchronisation : int
        Number of trials before the first one. What is there before is exploration, for
        agents that act on released data only.
    graph : {"complete", "ring", "star", "line", "random"}, optional
        Along which agents talk, one hop far; there is a centre unless given. See
        `PeerGraph.named`.
    simulator : {"exact", "mean-field"}
        Whether every trial is played, or what agents do on average: see
        `simulation.mean_field`. That takes seconds, however many trials and agents
        there are.
    sweep : Sweep, optional
        Other settings to play them at.
    methods : tuple of str
        All but ``"full"``, and those for graphs, unless given. With a sweep, each at
        all of its points.
    """

    task: LinearBanditTask
    privacy: BanditPrivacy
    num_iterations: int = field(metadata=integer(1))
    num_synchronisations: int = 16
    first_synchronisation: int = field(default=100, metadata=integer(1))
    graph: GraphName | None = None
    simulator: Simulator = "exact"
    sweep: Sweep | None = None
    log_axes: ClassVar[bool] = True
    unit: ClassVar[PrivacyUnit] = EXAMPLE

    methods: tuple[str, ...] = tuple(name for name, m in METHODS.items() if m.usual)

    def __post_init__(self) -> None:
        for name in self.methods:
            if name not in self.known_methods:
                require_known("methods", name, METHODS)
        at_points = [
            at_point for name in self.methods for at_point in self._at_points(name)
        ]
        object.__setattr__(self, "methods", tuple(at_points))
        super().__post_init__()
        first, last = self.first_synchronisation, self.num_iterations - 1
        expected = f"at most {last}, before the last trial"
        require(first <= last, "first_synchronisation", first, expected)
        self._check_sweep()
        is_valid = self.graph is None or self.simulator == "exact"
        require(is_valid, "simulator", self.simulator, "'exact', with a graph")
        for name in self.methods:
            needs_graph = self.known_methods[name].needs_graph
            is_valid = self.graph is not None or not needs_graph
            require(is_valid, "methods", name, "only with a graph")
            self.simulation(name)  # whether all can be played

    def _at_points(self, method: str) -> list[str]:
        """Return a method's names at all points of the sweep."""
        known = self.known_methods
        names = [
            name for name, known_method in known.items() if known_method.base == method
        ]
        return names or [method]

    def _check_sweep(self) -> None:
        """Raise unless what the experiment says of a swept field is one of its values.

        What counts are the values of the sweep: any other would mislead.
        """
        for name, values in self.sweep.values.items() if self.sweep else ():
            setting = self.setting(name)
            expected = f"one of {', '.join(map(text_of, values))} ([sweep])"
            require(setting in values, name, setting, expected)

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
            unused.append("graph")
        return {name: value for name, value in values.items() if name not in unused}

    def batch_key(self, method: str) -> Hashable:
        """Return what methods share that are played on the same trials, drawn once."""
        plain = self.plain(method)
        exact = plain.simulator == "exact"
        return (plain.task, plain.num_agents) if exact else method

    def play_batch(self, batch: Sequence[str], seed: int) -> list[RegretRun]:
        """Run methods on the same trials."""
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
            return [
                mean_field_regret(simulation, *seeds, self.steps)
                for simulation in simulations
            ]
        runs = zip(simulations, play_together(simulations, *seeds), strict=True)
        at = self.steps - 1
        return [
            np.cumsum(run.regret)[at] / simulation.num_agents
            for simulation, run in runs
        ]

    @property
    def steps(self) -> NDArray[np.intp]:
        """After how many trials the runs' curves have their values."""
        even_on_log_scale = np.geomspace(1, self.num_iterations, _CURVE_LENGTH)
        return np.unique(np.round(even_on_log_scale).astype(np.intp))

    @property
    def axes(self) -> tuple[str, str]:
        """Labels of the figure's two axes."""
        return "trial", "cumulative regret of an agent"

    def num_sent(self, method: str, runs: Sequence[Run]) -> float | None:
        """Return how many numbers are sent; None among peers.

        Every agent sends its sum at each synchronisation, and gets that of all.
        """
        simulation = self.simulation(method)
        if simulation.graph is not None:
            return None
        if simulation.control == "random":
            return 0
        shape = simulation.settings.releases.sum_shape
        each = 2 * simulation.num_agents * math.prod(shape)
        return each * len(simulation.schedule)

    @property
    def known_methods(self) -> Mapping[str, BanditMethod]:
        """All methods that it could have, by name."""
        return METHODS if self.sweep is None else methods_at(self.sweep)

    def estimates(self) -> dict[str, Column]:
        """Return how the estimates of rows are made and shown, by name.

        ``over_`` names are paired differences to a control, negative where the method
        is better.
        """
        beside = partial(Column, control="independent")
        return {
            "regret": Column("regret", digits=1),
            "over_independent": beside("over indep.*", "+", digits=1),
            "ratio": beside("ratio to it*", digits=3, compare=np.divide),
            "over_noise_only": Column(
                "over noise*", "+", digits=0, control="noise-only"
            ),
        }

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
            f"epsilon: of an agent's releases, {self.unit.terms(delta)}, had "
            "the noise been real. The noise of an experiment is seeded: NOT PRIVATE."
        )
        return title, lines

    def verdict(self, rows: Mapping[str, Row]) -> list[str]:
        """Say in words whether federation helped, with and without privacy."""
        known = self.known_methods
        compared = [row for row in rows.values() if known[row.method].controls]
        if any(row.estimates["regret"].num_runs < 2 for row in compared):
            return [ONE_SEED]
        lines = []
        for row in compared:
            gain = -row.estimates["over_independent"]
            lines.append(f"{row.label} {helped(gain, 'independent agents')}")
            over_noise = row.estimates.get("over_noise_only")
            if known[row.method].base == "fed-ucb" and over_noise is not None:
                lines.append(carried(row.label, -over_noise))
        return lines

    def peers(self, pooling: Pooling) -> PeerGraph:
        """Return the graph, with one estimator an agent."""
        return PeerGraph.named(
            str(self.graph), self.num_agents, pooling=pooling, num_estimators=1
        )

    def releases(
        self, mechanism: Mechanism = "toeplitz", calibration: Calibration = "exact"
    ) -> ContinualSettings:
        """Return what an agent hands out."""
        return ContinualSettings(
            num_releases=self.num_synchronisations,
            dimension=self.task.dimension,
            epsilon=self.privacy.epsilon,
            delta=self.privacy.delta,
            mechanism=mechanism,
            calibration=calibration,
        )

    @property
    def schedule(self) -> Sequence[int]:
        """After how many trials there is a synchronisation."""
        trials, n = self.num_iterations, self.num_synchronisations
        after_every = range(self.first_synchronisation, trials)
        if n == len(after_every):
            return after_every
        return geometric_schedule(trials, n, self.first_synchronisation)

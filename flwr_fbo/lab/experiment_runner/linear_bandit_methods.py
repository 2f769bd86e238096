"""The methods of an experiment of linear bandits: FedUCB and its controls.

Each is registered where it is defined, and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

from flwr_fbo._common import pictures
from flwr_fbo.algorithms.linear_bandit.peer_graph import Pooling
from flwr_fbo.algorithms.linear_bandit.settings import (
    LinearUCBSettings,
    LocalData,
    Width,
)
from flwr_fbo.lab.experiment_runner import looks
from flwr_fbo.lab.experiment_runner.linear_bandit_design import (
    BanditDesign,
    BanditPrivacy,
)
from flwr_fbo.lab.experiment_runner.methods import Method, by_name
from flwr_fbo.lab.experiment_runner.sweep import Point, Sweep, label_at, name_at
from flwr_fbo.lab.simulation.linear_bandits import BanditSimulation, Baseline, Control

# What has no part in what agents do that never synchronise by the schedule.
OF_SCHEDULE = ("num_synchronisations", "graph", "hops")


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
    base : str
        The method that it is at a point of a sweep; itself unless given.
    point : tuple of (str, float)
        The settings there.
    """

    simulation: Callable[[BanditDesign], BanditSimulation]
    releases: bool = True
    scheduled: bool = True
    usual: bool = True
    needs_graph: bool = False
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
            look=None if point else self.look,
            base=self.name,
            point=point,
        )

    def control(self, name: str) -> str:
        """Return what a control is called at this method's point of a sweep."""
        if name == "noise-only" and self.noise_only is not None:
            return self.noise_only
        return _name_at(name, self.point)


def _simulation(
    experiment: BanditDesign,
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
    experiment: BanditDesign,
    local_data: LocalData = "released",
    control: Control | None = None,
    pooling: Pooling = "neighbourhood",
) -> BanditSimulation:
    settings = LinearUCBSettings(
        experiment.releases(), width=experiment.width, local_data=local_data
    )
    return _simulation(experiment, settings, pooling, control)


def _published(
    experiment: BanditDesign, width: Width, control: Control | None = None
) -> BanditSimulation:
    """Return the paper's noise, shifts and width, of agents that use their raw data.

    Among peers, its cliques and its estimators, too.
    """
    releases = experiment.releases(mechanism="tree", calibration="paper")
    settings = LinearUCBSettings(releases, width=width, local_data="raw")
    return _simulation(experiment, settings, "clique", control)


def _published_open(experiment: BanditDesign, width: Width) -> BanditSimulation:
    return _published(experiment, width).baseline("non-private")


def _baseline(
    experiment: BanditDesign, name: Baseline, pooling: Pooling = "neighbourhood"
) -> BanditSimulation:
    # A tree may have the most releases; of its noise nothing is left.
    settings = LinearUCBSettings(experiment.releases("tree"), width=experiment.width)
    return _simulation(experiment, settings, pooling).baseline(name)


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
    name: str, label: str, width: Width, color: str, *, usual: bool
) -> list[BanditMethod]:
    """Return the published method of a width, its noise alone, and it without noise."""
    noise_only = f"{name}-noise-only"
    return [
        BanditMethod(
            name,
            f"{label}†",
            partial(_published, width=width),
            controls=(*_BESIDE, noise_only),
            noisy=True,
            noise_only=noise_only,
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
            partial(_published_open, width=width),
            controls=_BESIDE,
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
        look=(pictures.SKY, "--", "d"),
        **_PRIVATE,
    ),
    *_published_methods("paper", "published", "paper", pictures.PINK, usual=True),
    *_published_methods(
        "paper-authors",
        "published, width x .01",
        "authors",
        pictures.BROWN,
        usual=False,
    ),
    BanditMethod(
        "cliques",
        "FedUCB, cliques",
        partial(_private, pooling="clique"),
        look=(pictures.ORANGE, "--", "s"),
        **_IN_CLIQUES,
        **_PRIVATE,
    ),
    _open("non-private", controls=_BESIDE, look=looks.OPEN),
    BanditMethod(
        "cliques-non-private",
        "cliques, non-private",
        partial(_baseline, name="non-private", pooling="clique"),
        controls=_BESIDE,
        look=(pictures.BROWN, ":", "*"),
        **_IN_CLIQUES,
    ),
    _open(
        "full",
        controls=_BESIDE,
        scheduled=False,
        usual=False,
        look=(pictures.ORANGE, ":", "P"),
    ),
    _open("independent", releases=False, scheduled=False, look=looks.ALONE),
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
    return name_at(method, tuple(one for one in point if counts(one[0])))

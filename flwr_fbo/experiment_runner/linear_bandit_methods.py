"""The methods of an experiment of linear bandits: FedUCB and its controls.

Each is registered where it is defined, and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from flwr_fbo.experiment_runner.base import Method
from flwr_fbo.experiment_runner.linear_bandit_design import BanditDesign, BanditPrivacy
from flwr_fbo.experiment_runner.sweep import Point, label_at, name_at
from flwr_fbo.protocol.linear_ucb_settings import LinearUCBSettings, LocalData
from flwr_fbo.protocol.peer_graph import Pooling
from flwr_fbo.simulation.linear_bandits import BanditSimulation, Baseline, Control

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
        """Return what a control is called at this method's point."""
        return _name_at(name, self.point)


def _private(
    experiment: BanditDesign,
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


def _published(experiment: BanditDesign) -> BanditSimulation:
    """Return the paper's noise, shifts and width, of agents that use their raw data.

    Among peers, its cliques and its estimators, too.
    """
    ours = _private(experiment, "raw", pooling="clique")
    releases = replace(ours.settings.releases, mechanism="tree", calibration="paper")
    settings = replace(ours.settings, releases=releases, width="paper")
    return replace(ours, settings=settings)


def _baseline(
    experiment: BanditDesign, name: Baseline, pooling: Pooling = "neighbourhood"
) -> BanditSimulation:
    return _private(experiment, pooling=pooling).baseline(name)


_PRIVATE: dict[str, Any] = {
    "controls": ("independent", "noise-only"),
    "noisy": True,
    "noise_only": "noise-only",
}
_ALL = (
    BanditMethod(
        "fed-ucb",
        "FedUCB",
        _private,
        **_PRIVATE,
        look=("#0072b2", "-", "D"),
    ),
    BanditMethod(
        "fed-ucb-raw",
        "FedUCB raw†",
        partial(_private, local_data="raw"),
        **_PRIVATE,
        look=("#56b4e9", "--", "d"),
    ),
    BanditMethod(
        "paper",
        "published†",
        _published,
        **_PRIVATE,
        look=("#cc79a7", "--", "x"),
    ),
    BanditMethod(
        "cliques",
        "FedUCB, cliques",
        partial(_private, pooling="clique"),
        usual=False,
        needs_graph=True,
        **_PRIVATE,
        look=("#e69f00", "--", "s"),
    ),
    BanditMethod(
        "non-private",
        "non-private",
        partial(_baseline, name="non-private"),
        controls=("independent",),
        look=("#009e73", "--", "s"),
    ),
    BanditMethod(
        "cliques-non-private",
        "cliques, non-private",
        partial(_baseline, name="non-private", pooling="clique"),
        controls=("independent",),
        usual=False,
        needs_graph=True,
        look=("#8c564b", ":", "*"),
    ),
    BanditMethod(
        "full",
        "full",
        partial(_baseline, name="full"),
        controls=("independent",),
        scheduled=False,
        usual=False,
        look=("#e69f00", ":", "P"),
    ),
    BanditMethod(
        "independent",
        "independent",
        partial(_baseline, name="independent"),
        releases=False,
        scheduled=False,
        look=("#000000", "-", "o"),
    ),
    BanditMethod(
        "noise-only",
        "noise-only",
        partial(_private, control="noise-only"),
        releases=False,
        noisy=True,
        look=("#d55e00", "-.", "^"),
    ),
    BanditMethod(
        "random",
        "random",
        partial(_private, control="random"),
        releases=False,
        scheduled=False,
        look=("#7f7f7f", ":", "v"),
    ),
)
METHODS = {method.name: method for method in _ALL}


def _name_at(method: str, point: Point) -> str:
    """Return what a method is called at that of a point which it depends on."""
    counts = METHODS[method].depends_on
    return name_at(method, tuple(one for one in point if counts(one[0])))

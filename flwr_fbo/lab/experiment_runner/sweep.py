"""Which settings an experiment of bandits is played at: a grid, and its points."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import ClassVar, Literal

import numpy as np
from pydantic import ConfigDict

from flwr_fbo._common.validation import require, require_known
from flwr_fbo.algorithms.linear_bandit.peer_graph import GraphName
from flwr_fbo.lab.tasks.base import STRICT

Value = float | str
# How bandits are played: trial by trial, or as in `simulation.mean_field`.
Simulator = Literal["exact", "mean-field"]

# The values of some fields of a sweep, each with its field.
Point = tuple[tuple[str, Value], ...]


@dataclass(frozen=True)
class SweptField:
    """What a field of a sweep is called, and where it belongs.

    Attributes
    ----------
    letter : str
        In labels.
    text : str
        On an axis.
    table : {"", "privacy", "task"}
        The table of an experiment's file in which it is set; none: at its top.
    scale : {"log", "linear", "names"}
        Of an axis.
    """

    letter: str
    text: str
    table: Literal["", "privacy", "task"] = ""
    scale: Literal["log", "linear", "names"] = "log"


FIELDS = {
    "epsilon": SweptField("epsilon", "epsilon of an agent", "privacy"),
    "num_agents": SweptField("M", "agents"),
    "num_synchronisations": SweptField("n", "synchronisations"),
    "dimension": SweptField("d", "dimension", "task"),
    "gap": SweptField("gap", "gap between the best action and others", "task"),
    "graph": SweptField("graph", "graph", scale="names"),
    "hops": SweptField("hops", "hops of a message", scale="linear"),
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
    num_agents : tuple of int, optional
    num_synchronisations : tuple of int, optional
    dimension : tuple of int, optional
    gap : tuple of float, optional
    graph : tuple of str, optional
    hops : tuple of int, optional
    simulator : tuple of str, optional
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    axis: str | None = None
    epsilon: tuple[float, ...] | None = None
    num_agents: tuple[int, ...] | None = None
    num_synchronisations: tuple[int, ...] | None = None
    dimension: tuple[int, ...] | None = None
    gap: tuple[float, ...] | None = None
    graph: tuple[GraphName, ...] | None = None
    hops: tuple[int, ...] | None = None
    simulator: tuple[Simulator, ...] | None = None

    def __post_init__(self) -> None:
        for name, values in self.values.items():
            ok = 0 < len(values) == len(set(values))
            require(ok, f"sweep.{name}", values, "at least one value, none twice")
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
        return [tuple(zip(values, one, strict=True)) for one in grid]


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

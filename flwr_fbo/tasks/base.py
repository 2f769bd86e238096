"""What a task is to the rest of the package."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from optuna.distributions import BaseDistribution

Objective = Callable[[dict[str, Any]], float]


@dataclass(frozen=True, eq=False)
class Task:
    """A search space and one objective a client.

    Attributes
    ----------
    name : str
    space : mapping of str to Optuna distribution
    direction : {"maximize", "minimize"}
    unit : str
        What a value is, for the axis of a figure.
    objective : callable
        Takes the index of a client, the number of clients and a seed; returns the
        objective of that client.
    """

    name: str
    space: Mapping[str, BaseDistribution]
    direction: Literal["maximize", "minimize"]
    unit: str
    objective: Callable[[int, int, int], Objective]

"""Interface of a task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from optuna.distributions import BaseDistribution

from flwr_fbo._common.fields import check_fields
from flwr_fbo._common.random import Purpose, generator
from flwr_fbo._common.validation import require, require_int
from flwr_fbo.space.search_space import Params

Objective = Callable[[dict[str, Any]], float]


def require_clients(num_clients: Any, num_parts: int, part: str) -> None:
    """Raise ValueError unless there is a part of the data for each client.

    Parameters
    ----------
    num_clients : int
        Number of clients, of any type.
    num_parts : int
        Number of parts that the data has.
    part : str
        Name of one part, for the error.
    """
    require_int("num_agents", num_clients, 1)
    expected = f"at most {num_parts} (one {part} each)"
    require(num_clients <= num_parts, "num_agents", num_clients, expected)


class ObservationNoise:
    """The generators of one client's observation noise in one run.

    Each observation has one of its own, keyed by where it is on a coarse grid and how
    often that cell was observed before: draws are independent, and a run repeats. The
    bits of a setting decide nothing, as its last one differs between machines.

    Parameters
    ----------
    seed : int
        Seed of the run.
    client : int
        Number of the client, from 0.
    """

    def __init__(self, seed: int, client: int) -> None:
        self._seed, self._client = seed, client
        self._num_observed: Counter[tuple[int, ...]] = Counter()

    def generator(self, cell: tuple[int, ...]) -> np.random.Generator:
        """Return the generator of the next observation in a cell of the grid."""
        self._num_observed[cell] += 1
        key = (self._client, *cell, self._num_observed[cell], Purpose.OBSERVATION)
        return generator(self._seed, *key)


class Task(ABC):
    """A search space and one objective per client; its settings are its fields.

    A task is a frozen dataclass of plain values, so that an experiment's file can hold
    it, and its data are loaded where they are used: tasks travel to worker processes.

    Attributes
    ----------
    name : str
        Name of the task in a TOML file.
    direction : {"maximize", "minimize"}
        Direction of the objectives.
    unit : str
        Name of a value, for the axis of a figure.
    """

    name: str
    direction: ClassVar[Literal["maximize", "minimize"]]
    unit: ClassVar[str]

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def loss(self) -> str:
        """Name of 1 - value, for the axis of a figure that shows that."""
        return f"1 - {self.unit}"

    @property
    @abstractmethod
    def space(self) -> Mapping[str, BaseDistribution]:
        """The search space of all clients."""

    @property
    def customary(self) -> list[Params]:
        """Settings that a person would try first, whatever the data; public."""
        return []

    @property
    def listed(self) -> list[Params]:
        """The first settings of a public list for the task's learner (`Portfolio`)."""
        return []

    def group(self, seed: int) -> int:
        """Return a number that a seed's run has in common with those of like runs.

        Each run is a group of its own, unless a task draws its functions for several.
        """
        return seed

    def check(self, num_clients: int) -> None:
        """Raise, before any work is done, if the task cannot be run.

        Any number of clients fits unless a task says otherwise.

        Raises
        ------
        ValueError
            If it does not fit ``num_clients``.
        DataError
            If its data are missing or damaged.
        ImportError
            If it needs an extra that is not installed; the message names it.
        """
        require_int("num_agents", num_clients, 1)

    @abstractmethod
    def objective(self, client: int, num_clients: int, seed: int) -> Objective:
        """Return the objective of one client in one run.

        Parameters
        ----------
        client : int
            From 0 to ``num_clients - 1``.
        num_clients : int
            Number of clients in the run, >= 1.
        seed : int
            Seed of the run: of whatever is random about data and observations.
        """

    def truth(self, client: int, num_clients: int, seed: int) -> Objective | None:
        """Return the objective without its noise, for curves of test functions.

        None where what is observed is what counts.
        """
        return None

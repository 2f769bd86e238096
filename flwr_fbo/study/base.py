"""What every experiment is: methods over paired seeds, their runs, how they are told.

The kinds are those of `flwr_fbo.study.experiment`, which tunes, and
`flwr_fbo.study.bandits`. Running, results, tables and figures know only what is here.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict
from scipy.stats import t as student_t

from flwr_fbo._validation import nearest, require, require_int
from flwr_fbo.tasks.base import STRICT

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Run(ABC):
    """What one method did on one seed.

    Attributes
    ----------
    method : str
    seed : int
    epsilon : float
        Spent if the noise had been real: 0 where nothing of the agents was released,
        inf where it was without noise.
    private : bool
        Whether nothing unprotected was released; False under seeded noise.
    seconds : float
    """

    method: str
    seed: int
    epsilon: float
    private: bool
    seconds: float

    @property
    @abstractmethod
    def curve(self) -> FloatArray:
        """What is drawn, against the experiment's ``iterations``."""

    def to_json(self) -> str:
        """Return a line; what JSON lacks, NaN and infinity, becomes null."""
        return json.dumps(_json_of(asdict(self)), allow_nan=False)

    @staticmethod
    def common_of(values: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a line has of the attributes above."""
        epsilon = values["epsilon"]
        return {
            "method": str(values["method"]),
            "seed": int(values["seed"]),
            "epsilon": math.inf if epsilon is None else float(epsilon),
            "private": bool(values["private"]),
            "seconds": float(values["seconds"]),
        }


def _json_of(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _json_of(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_json_of(one) for one in value]
    finite = not isinstance(value, float) or math.isfinite(value)
    return value if finite else None


@dataclass(frozen=True)
class Method:
    """One curve of an experiment.

    Attributes
    ----------
    name : str
        For files and commands.
    label : str
        For tables and figures.
    controls : tuple of str
        The methods that must be shown beside it.
    noisy : bool
        Whether the privacy setting has a part in what it does.
    """

    name: str
    label: str
    controls: tuple[str, ...] = field(default=(), kw_only=True)
    noisy: bool = field(default=False, kw_only=True)


class PrivacySetting(ABC):
    """The privacy setting that the private methods of an experiment share."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    delta: float

    @abstractmethod
    def at(self, epsilon: float) -> Self:
        """Return the same setting at another epsilon."""


@dataclass(frozen=True)
class Estimate:
    """A mean over runs.

    Attributes
    ----------
    mean : float
    standard_error : float
        Of the mean, over runs; NaN from a single run.
    num_runs : int
    """

    mean: float
    standard_error: float
    num_runs: int

    @classmethod
    def of(cls, values: FloatArray) -> Estimate:
        """Return the estimate from one value a run."""
        num = len(values)
        error = float(np.std(values, ddof=1) / math.sqrt(num)) if num > 1 else math.nan
        return cls(float(np.mean(values)), error, num)

    def __neg__(self) -> Estimate:
        return replace(self, mean=-self.mean)

    @property
    def sign(self) -> Literal["positive", "negative", "unclear"]:
        """The sign that the 95% t interval shows, if it shows one."""
        if not math.isfinite(self.standard_error):
            return "unclear"
        reach = float(student_t.ppf(0.975, self.num_runs - 1)) * self.standard_error
        if abs(self.mean) <= reach:
            return "unclear"
        return "positive" if self.mean > 0 else "negative"

    @property
    def lower_bound(self) -> float:
        """The one-sided 95% bound, by Student's t; NaN from a single run."""
        reach = float(student_t.ppf(0.95, max(self.num_runs - 1, 1)))
        return self.mean - reach * self.standard_error


@dataclass(frozen=True)
class Row:
    """One method, beside those it is compared to; the estimates are its kind's.

    Attributes
    ----------
    method, label : str
    epsilon : float
    """

    method: str
    label: str
    epsilon: float


@dataclass(frozen=True)
class Column:
    """How a table shows one of the estimates of its rows.

    Attributes
    ----------
    heading : str
    sign : str
        ``"+"`` for differences.
    digits : int
        After the point; one less for each before it beyond the second.
    """

    heading: str
    sign: str = ""
    digits: int = 4


@dataclass(frozen=True, kw_only=True)
class Experiment(ABC):
    """Methods on a task, over paired seeds.

    Attributes
    ----------
    name : str
        For folders and commands.
    description : str
        One line.
    num_agents : int
        N >= 1.
    num_iterations : int
        T >= 1, of each agent.
    num_seeds : int
        Runs of each method, >= 1, unless the command says otherwise.
    privacy : PrivacySetting
    methods : tuple of str
        Names out of ``known_methods``. A federated method needs its controls beside it.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    known_methods: ClassVar[Mapping[str, Method]]
    # Whether a process plays all methods of a seed, which is cheaper then.
    plays_together: ClassVar[bool]
    # Whether a figure's axes are logarithmic.
    log_axes: ClassVar[bool]

    name: str
    num_agents: int
    num_iterations: int
    privacy: PrivacySetting
    description: str = ""
    num_seeds: int = 5
    methods: tuple[str, ...]

    def __post_init__(self) -> None:
        ok = self.name.replace("-", "").replace("_", "").isalnum()
        require(ok, "name", self.name, "letters, digits, '-' and '_'")
        for attribute in ("num_agents", "num_iterations", "num_seeds"):
            require_int(attribute, getattr(self, attribute), 1)
        known = self.known_methods
        for name in self.methods:
            require(name in known, "methods", name, nearest(name, known))
        twice = len(set(self.methods)) < len(self.methods)
        ok = len(self.methods) > 0 and not twice
        require(ok, "methods", self.methods, "at least one, none twice")
        for name in self.methods:
            missing = set(known[name].controls) - set(self.methods)
            allowed = f"{name} beside its controls: {sorted(missing)} missing"
            require(not missing, "methods", self.methods, allowed)

    def with_epsilon(self, epsilon: float) -> Self:
        """Return the same experiment at another epsilon, under a name of its own.

        Raises
        ------
        ValueError
            If epsilon is not allowed.
        """
        name = f"{self.name}-epsilon-{epsilon:g}".replace(".", "_").replace("+", "")
        return replace(self, name=name, privacy=self.privacy.at(epsilon))

    def to_dict(self) -> dict[str, Any]:
        """Return the experiment as JSON values, without what may change as it runs."""
        values = asdict(self)
        for changing in ("description", "num_seeds"):
            del values[changing]
        values["methods"] = list(self.methods)
        return values

    def label_of(self, method: str) -> str:
        """Return what tables and figures call a method."""
        return self.known_methods[method].label

    @abstractmethod
    def check(self) -> None:
        """Raise, before any work is done, if it cannot be run: see `Task.check`."""

    @abstractmethod
    def play(self, methods: Sequence[str], seed: int) -> Sequence[Run]:
        """Run some of the methods on one seed."""

    @abstractmethod
    def run_of(self, values: Mapping[str, Any]) -> Run:
        """Return the run of a line of results."""

    @property
    @abstractmethod
    def iterations(self) -> NDArray[np.intp]:
        """Where the runs' curves have their values."""

    @property
    @abstractmethod
    def axes(self) -> tuple[str, str]:
        """What the figure's two axes are called."""

    @abstractmethod
    def summarize(self, runs: Sequence[Run], until: int | None) -> Mapping[str, Row]:
        """Return a row a method, by name, over the seeds that all methods have run.

        Parameters
        ----------
        runs : sequence of Run
        until : int, optional
            The last iteration that counts, from 1 to T; T unless given.

        Raises
        ------
        ValueError
            If there is no such seed, or no such iteration.
        """

    @abstractmethod
    def columns(self) -> Mapping[str, Column]:
        """Return the columns of the table, by the estimate of a row they show."""

    @abstractmethod
    def notes(self, runs: Sequence[Run], until: int | None) -> tuple[str, list[str]]:
        """Return the table's title, and what is to be said below it."""

    def counts(self, runs: Sequence[Run]) -> dict[str, int]:
        """Return what is to be counted over all runs, by name, for JSON."""
        return {}

    @abstractmethod
    def verdict(self, rows: Mapping[str, Any]) -> list[str]:
        """Say in words whether federation helped, with and without privacy."""


def common_seeds(experiment: Experiment, runs: Sequence[Run]) -> list[int]:
    """Return the seeds that every method of the experiment has run, in order."""
    seeds = [{r.seed for r in runs if r.method == name} for name in experiment.methods]
    return sorted(set.intersection(*seeds))


def curves_of(runs: Sequence[Run], method: str, seeds: Sequence[int]) -> FloatArray:
    """Return the method's curves, one a seed."""
    by_seed = {run.seed: run.curve for run in runs if run.method == method}
    return np.array([by_seed[seed] for seed in seeds])


def curves_by_method(
    experiment: Experiment, runs: Sequence[Run]
) -> dict[str, FloatArray]:
    """Return the curves of all methods, over the seeds that all have run.

    Raises
    ------
    ValueError
        If there is no such seed.
    """
    seeds = common_seeds(experiment, runs)
    require(len(seeds) > 0, "results", len(runs), "one seed that all methods have run")
    return {name: curves_of(runs, name, seeds) for name in experiment.methods}


def epsilon_of(runs: Sequence[Run], method: str) -> float:
    """Return the largest epsilon that a method spent."""
    return max(run.epsilon for run in runs if run.method == method)


def helped(gain: Estimate, control: str) -> str:
    """Say what a gain over a control shows; positive is better."""
    text = {
        "positive": f"does better than {control}",
        "negative": f"does worse than {control}",
        "unclear": f"does as well as {control}, as far as these runs show",
    }[gain.sign]
    return f"{text}: {gain.mean:+.4f} ± {gain.standard_error:.4f} (95% t interval)."


def carried(label: str, signal: Estimate) -> str:
    """Say whether agents' messages carried something through the noise."""
    if signal.sign == "positive":
        return (
            f"{label} beats its noise-only control: the agents' messages carried "
            "something through the noise."
        )
    return (
        f"These runs cannot show that {label} does better than noise-only, its "
        "control with every message zeroed "
        f"({signal.mean:+.4f} ± {signal.standard_error:.4f}): no gain of the "
        "federation is shown."
    )


ONE_SEED = "One seed shows no standard error, and so allows no verdict."

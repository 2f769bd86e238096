"""Base of all experiments: methods over paired seeds, their runs and their table.

Running, results, tables and figures know only what is here, and not which kind of
experiment they have before them.
"""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, ConfigDict, TypeAdapter

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.conversion import finite
from flwr_fbo._common.fields import check_fields, flag, integer, positive
from flwr_fbo._common.validation import require, require_known
from flwr_fbo.lab.experiment_runner.estimates import Row
from flwr_fbo.lab.experiment_runner.looks import Look
from flwr_fbo.privacy.guarantee import CLIENT, PrivacyUnit


@dataclass(frozen=True, kw_only=True)
class Run(ABC):
    """Result of one method on one seed.

    Attributes
    ----------
    method : str
        Name of the method.
    seed : int
        Seed of the run, which all methods share.
    epsilon : float
        Spent if the noise had been real: 0 where nothing of the agents was released,
        inf where it was without noise.
    private : bool
        Whether nothing unprotected was released; False under seeded noise.
    seconds : float
        Seconds of CPU time.
    """

    method: str
    seed: int
    epsilon: Annotated[float, BeforeValidator(lambda v: math.inf if v is None else v)]
    private: bool
    seconds: float

    @property
    @abstractmethod
    def curve(self) -> FloatArray:
        """Values that are drawn, against the experiment's ``steps``."""

    @property
    def scalars(self) -> FloatArray:
        """Numbers sent by then, where the experiment counts them."""
        raise NotImplementedError

    def compact(self) -> Self:
        """Return what tables and figures show of it, with six digits."""
        return replace(self, seconds=float(f"{self.seconds:.3g}"))

    def to_json(self) -> str:
        """Return a line; what JSON lacks, NaN and infinity, becomes null."""
        return json.dumps(finite(asdict(self)), allow_nan=False)


@cache
def reader(kind: type[Any]) -> TypeAdapter[Any]:
    """Return what makes an experiment, or a run, of the values in a file."""
    return TypeAdapter(kind)


def six_digits(values: Iterable[float]) -> list[float]:
    """Return numbers rounded to six significant digits."""
    return [float(f"{value:.6g}") for value in values]


@dataclass(frozen=True, kw_only=True)
class RegretRun(Run):
    """Result of one method on one seed, where agents play bandits.

    Attributes
    ----------
    regret : list of float
        Added up, after each of the experiment's ``steps``.
    """

    regret: list[float]

    @property
    def curve(self) -> FloatArray:
        """The regret, as an array."""
        return np.array(self.regret)

    def compact(self) -> Self:
        """Return it with six digits of the regret."""
        return replace(super().compact(), regret=six_digits(self.regret))


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
    noise_only : str, optional
        The control in which all its messages are zeroed; None where there is none.
    second_reading : str, optional
        The same method by a second reading of the paper, where its text leaves one
        open: claims are judged in both, where an experiment has both.
    look : tuple of str, optional
        Colour, line style and marker in figures; chosen from a palette unless given.
    base : str
        The method that it is a variant of; itself unless given.
    """

    name: str
    label: str
    controls: tuple[str, ...] = field(default=(), kw_only=True)
    noisy: bool = field(default=False, kw_only=True)
    noise_only: str | None = field(default=None, kw_only=True)
    second_reading: str | None = field(default=None, kw_only=True)
    look: Look | None = field(default=None, kw_only=True)
    base: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", self.base or self.name)

    def control(self, name: str) -> str:
        """Return the name of the control of that kind that belongs to this method."""
        return self.noise_only or name if name == "noise-only" else name


M = TypeVar("M", bound=Method)


def by_name(*methods: M) -> dict[str, M]:
    """Return methods by their names."""
    return {method.name: method for method in methods}


def methods_of_curve(
    name: str, curve: Any, known: Mapping[str, M], beside: tuple[str, ...], control: str
) -> list[M]:
    """Return the method that draws a curve, and its noise-only control if it has one.

    Parameters
    ----------
    name : str
        Name of the curve.
    curve : Curve or TransferCurve
        Curve; it names the method that it is a variant of.
    known : mapping of str to Method
        The methods without curves.
    beside : tuple of str
        The other controls of a curve that has a noise-only control.
    control : str
        The name of that one; another curve brings it where it is not this curve's own.

    Raises
    ------
    ValueError
        If a method or a control has the name.
    """
    is_valid = name not in known and not name.endswith("-noise-only")
    require(is_valid, "curves", name, "a name that no method or control has")
    of_curve: dict[str, Any] = {"curve": curve, "look": None}
    method = replace(known[curve.method], name=name, label=curve.label, **of_curve)
    if method.noise_only is None:
        return [method]
    method = replace(method, controls=(*beside, control), noise_only=control)
    if control != f"{name}-noise-only":
        return [method]
    zeroed, label = known["noise-only"], f"{curve.label}, noise-only"
    return [method, replace(zeroed, name=control, label=label, **of_curve)]


class PrivacySetting(ABC):
    """The privacy setting that the private methods of an experiment share."""

    delta: float

    @abstractmethod
    def at(self, epsilon: float) -> Self:
        """Return the same setting at another epsilon."""


@dataclass(frozen=True)
class Claim:
    """One method is better than another, says a paper.

    Attributes
    ----------
    text : str
        In words.
    section : str
        Section of the paper that says it, as in "5.1"; empty where it does not.
    better, than : str
        Names of methods.
    by : {"final", "mean", "scalars", "seconds"}
        At the last step, or in the mean of all from `Experiment.first_counted` on; by
        fewer scalars sent, if counted; or by fewer CPU seconds of a run, which compare
        on one machine only.
    effect : float, optional
        The paper's difference, > 0, where it is known.
    first_reading_only : bool
        Whether a second reading of the methods has nothing to do with it.
    """

    text: str
    better: str
    than: str
    by: Literal["final", "mean", "scalars", "seconds"] = "final"
    section: str = ""
    effect: float | None = field(default=None, metadata=positive(optional=True))
    first_reading_only: bool = field(default=False, metadata=flag())

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("text", "section"):
            value = getattr(self, name)
            require("|" not in value, name, value, "no '|', which ends a cell")
        require(self.better != self.than, "than", self.than, "another than better")

    @property
    def methods(self) -> tuple[str, str]:
        """The two."""
        return self.better, self.than


@dataclass(frozen=True)
class Column:
    """Column of a table: how its estimates are made from runs, and shown.

    Attributes
    ----------
    heading : str
        Empty where a table does not show it.
    sign : str
        ``"+"`` for differences.
    digits : int
        Number of digits after the point; one less for each before it beyond the second.
    humanised : bool
        Whether it is shown as in 81.5 M, whatever the digits.
    control : str, optional
        The kind of control that a method is compared to by seed: see `Method.control`.
    compare : callable
        Takes a method's values and its control's.
    of : str
        The attribute of a run that has the values.
    reads : {"end", "last", "mean", "whole"}
        Values that it reads: in the end; at the last step that counts; in the mean up
        to it; in the end, but only where all steps count.
    """

    heading: str
    sign: str = ""
    digits: int = 4
    humanised: bool = False
    control: str | None = None
    compare: Callable[[FloatArray, FloatArray], FloatArray] = np.subtract
    of: str = "curve"
    reads: Literal["end", "last", "mean", "whole"] = "last"


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
    num_seeds : int
        Runs of each method, >= 1, unless the command says otherwise.
    privacy : PrivacySetting, optional
        None where no method is private.
    methods : tuple of str
        Names out of ``known_methods``. A federated method needs its controls beside it.
    claims : tuple of Claim
        Claims of a paper about them.
    """

    # How a file is read, with all dataclasses in it.
    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)
    # What may change as it runs: it decides no run.
    _presentation = ("description", "num_seeds", "claims", "form", "as_loss", "y_range")
    # What its runs are.
    run_type: ClassVar[type[Run]] = RegretRun
    # Whether a figure's axes are logarithmic.
    log_axes: ClassVar[bool] = False
    # Whether its runs say how many scalars were sent.
    counts_scalars: ClassVar[bool] = False
    # What curves are against; ``num_<step>s`` says how many there are.
    step: ClassVar[Literal["iteration", "evaluation"]] = "iteration"
    # Whom a curve is the mean of; `num_compared` says how many there are.
    compared: ClassVar[Literal["agent", "target"]] = "agent"
    # Whom its epsilon protects.
    unit: ClassVar[PrivacyUnit] = CLIENT

    name: str
    num_agents: int = field(metadata=integer(1))
    privacy: PrivacySetting | None
    description: str = ""
    num_seeds: int = field(default=5, metadata=integer(1))
    methods: tuple[str, ...]
    claims: tuple[Claim, ...] = ()

    def __post_init__(self) -> None:
        is_valid = re.fullmatch(r"[\w-]+(/[\w-]+)?", self.name) is not None
        require(
            is_valid, "name", self.name, "letters, digits, '-' and '_', and one '/'"
        )
        check_fields(self)
        known = self.known_methods
        for name in self.methods:
            require_known("methods", name, known)
        twice = len(set(self.methods)) < len(self.methods)
        is_valid = len(self.methods) > 0 and not twice
        require(is_valid, "methods", self.methods, "at least one, none twice")
        for name in self.methods:
            missing = set(known[name].controls) - set(self.methods)
            expected = f"{name} beside its controls: {sorted(missing)} missing"
            require(not missing, "methods", self.methods, expected)
        for name in (method for claim in self.claims for method in claim.methods):
            require_known("claims", name, self.methods)
        for claim in self.claims:
            is_valid = self.counts_scalars or claim.by != "scalars"
            require(is_valid, "by", claim.by, "only where scalars are counted")

    def group(self, seed: int) -> int:
        """Return the group of like runs that a seed's is of: see `Estimate.of`."""
        return seed

    def with_epsilon(self, epsilon: float) -> Self:
        """Return the same experiment at another epsilon, under a name of its own.

        Raises
        ------
        ValueError
            If epsilon is not allowed.
        """
        expected = "left out, where no method is private"
        require(self.privacy is not None, "epsilon", epsilon, expected)
        assert self.privacy is not None
        name = f"{self.name}-epsilon-{epsilon:g}".replace(".", "_").replace("+", "")
        return replace(self, name=name, privacy=self.privacy.at(epsilon))

    def with_steps(self, num_steps: int) -> Self:
        """Return one of another length, without claims: they are of all its steps."""
        values: dict[str, Any] = {f"num_{self.step}s": num_steps, "claims": ()}
        return replace(self, **values)

    def to_dict(self) -> dict[str, Any]:
        """Return the experiment as JSON values, without what may change as it runs."""
        values = asdict(self)
        for name in self._presentation:
            values.pop(name, None)
        # Once through JSON, as a file gives it back.
        return cast(dict[str, Any], json.loads(json.dumps(values)))

    def recipe(self, method: str) -> dict[str, Any]:
        """Return what decides a method's runs, whatever experiment they are part of."""
        values = self.to_dict()
        for name in ("name", "methods"):
            del values[name]
        if not self.known_methods[method].noisy:
            del values["privacy"]
        return {**values, "method": method}

    @property
    def num_steps(self) -> int:
        """Number of steps of each agent."""
        return int(getattr(self, f"num_{self.step}s"))

    @property
    def num_compared(self) -> int:
        """Number of agents in a curve's mean: all, unless some only helped."""
        return self.num_agents

    @property
    @abstractmethod
    def known_methods(self) -> Mapping[str, Method]:
        """All methods that it could have, by name."""

    @property
    def lower_is_better(self) -> bool:
        """True if a low curve is a good one, as of regret."""
        return True

    def label_of(self, method: str) -> str:
        """Return what tables and figures call a method."""
        return self.known_methods[method].label

    def check(self) -> None:  # noqa: B027 (without data there is nothing to check)
        """Raise, before any work is done, if it cannot be run: see `Task.check`."""

    def batches(self, methods: Sequence[str]) -> list[list[str]]:
        """Return which of the methods a process plays at a time."""
        batches: dict[Hashable, list[str]] = {}
        for name in methods:
            batches.setdefault(self.batch_key(name), []).append(name)
        return list(batches.values())

    def batch_key(self, method: str) -> Hashable:
        """Return what methods have in common that are cheaper to play at a time.

        Each is played alone unless a kind of experiment says otherwise.
        """
        return method

    def play(self, methods: Sequence[str], seed: int) -> list[Any]:
        """Run some of the methods on one seed; return their ``run_type``."""
        batches = self.batches(methods)
        return [run for batch in batches for run in self.play_batch(batch, seed)]

    @abstractmethod
    def play_batch(self, batch: Sequence[str], seed: int) -> Sequence[Run]:
        """Run methods that are played at a time: see `batches`."""

    def run_of(self, values: Mapping[str, Any]) -> Run:
        """Return the run of a line of results; raise ValueError if it is none."""
        run: Run = reader(self.run_type).validate_python(values)
        for name in ("curve", "scalars") if self.counts_scalars else ("curve",):
            shape, expected = getattr(run, name).shape, self.steps.shape
            require(shape == expected, name, shape, str(expected))
        return run

    @property
    def steps(self) -> NDArray[np.intp]:
        """Steps at which the runs' curves have their values."""
        return np.arange(1, self.num_steps + 1)

    @property
    def first_counted(self) -> int:
        """The index of the first of ``steps`` that is a method's own decision."""
        return 0

    @property
    def first_shown(self) -> int:
        """The index of the first of ``steps`` that a figure shows.

        The last initial point: before it no method has done anything.
        """
        return max(self.first_counted - 1, 0)

    @property
    def falls(self) -> bool:
        """True if what figures show is better where it is lower."""
        return self.lower_is_better

    def drawn(self, values: FloatArray) -> FloatArray:
        """Return values of curves as figures show them."""
        return values

    def best_found(
        self, runs: Sequence[Run], seeds: Sequence[int]
    ) -> FloatArray | None:
        """Return the best value that any run of a seed ends at, shape (num_seeds,).

        None where a curve is no best value so far.
        """
        return None

    @property
    @abstractmethod
    def axes(self) -> tuple[str, str]:
        """Labels of the figure's two axes."""

    @abstractmethod
    def num_sent(self, method: str, runs: Sequence[Run]) -> float | None:
        """Return how many numbers agents and server send, all together.

        In the mean over the method's ``runs``; None where it is unknown.
        """

    @abstractmethod
    def estimates(self) -> Mapping[str, Column]:
        """Return how the estimates of rows are made and shown, by name."""

    def columns(self) -> dict[str, Column]:
        """Return the table's columns, by the estimate of a row they show."""
        return {
            name: column for name, column in self.estimates().items() if column.heading
        }

    @abstractmethod
    def notes(self, runs: Sequence[Run], until: int | None) -> tuple[str, list[str]]:
        """Return the table's title, and what is to be said below it."""

    def counts(self, runs: Sequence[Run]) -> dict[str, int]:
        """Return what is to be counted over all runs, by name, for JSON."""
        return {}

    @abstractmethod
    def verdict(self, rows: Mapping[str, Row]) -> list[str]:
        """Say in words whether federation helped, with and without privacy."""

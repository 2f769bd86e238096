"""What an experiment is: a TOML that names task, methods, settings, rounds and seeds.

Those that ship with the package are in ``experiment_runner/builtin``.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import TypeAdapter, ValidationError

from flwr_fbo._validation import nearest, require
from flwr_fbo.experiment_runner.base import Claim, Experiment, FloatArray, Run
from flwr_fbo.experiment_runner.linear_bandit_design import BanditPrivacy
from flwr_fbo.experiment_runner.linear_bandit_experiment import BanditExperiment
from flwr_fbo.experiment_runner.nonlinear_bandit_design import (
    Constants,
    GLMConstants,
    KernelConstants,
    LinearConstants,
    Regression,
)
from flwr_fbo.experiment_runner.nonlinear_bandit_experiment import (
    NonlinearBanditExperiment,
)
from flwr_fbo.experiment_runner.optimisation import TASKS, OptimisationExperiment
from flwr_fbo.experiment_runner.sweep import Sweep
from flwr_fbo.experiment_runner.transfer_experiment import TransferExperiment
from flwr_fbo.experiment_runner.tuning_methods import (
    METHODS,
    USUAL_METHODS,
    Curve,
    Privacy,
    Seeds,
    TuningMethod,
    label_of,
    methods_of,
    recipe_of,
)
from flwr_fbo.experiment_runner.tuning_runs import TuningRun, run_one, sending, spending
from flwr_fbo.experiment_runner.tuning_table import verdict
from flwr_fbo.strategies.dp_fts_de import PRESETS
from flwr_fbo.strategies.tuning_strategy import TuningStrategy
from flwr_fbo.tasks.linear_bandit import LinearBanditTask
from flwr_fbo.tasks.nonlinear_bandit import ClusterBanditTask, FunctionBanditTask


@dataclass(frozen=True, kw_only=True)
class TuningExperiment(OptimisationExperiment):
    """Methods on a task, over paired seeds.

    Attributes
    ----------
    privacy : Privacy
    preset : str
        Of `DPFTSDE`; the controls share its agent.
    methods : tuple of str
        Those without liars unless given, and all curves.
    curves : dict of Curve
        Methods with settings of their own, by name; private ones bring their
        noise-only control with them, as ``NAME-noise-only``.
    form : {"convergence", "tradeoff"}
        The figure: best value against iteration, or in the end against epsilon.
    """

    _presentation: ClassVar[tuple[str, ...]] = (*Experiment._presentation, "form")

    privacy: Privacy
    preset: str = "paper"
    methods: tuple[str, ...] = USUAL_METHODS
    curves: dict[str, Curve] = field(default_factory=dict)
    form: Literal["convergence", "tradeoff"] = "convergence"

    def __post_init__(self) -> None:
        known = self.preset in PRESETS
        require(known, "preset", self.preset, nearest(self.preset, PRESETS))
        for name in self.curves:
            ok = name not in METHODS and not name.endswith("-noise-only")
            require(ok, "curves", name, "a name that no method or control has")
        drawn = (name for name in methods_of(self.curves) if name not in self.methods)
        object.__setattr__(self, "methods", (*self.methods, *drawn))
        super().__post_init__()
        if self.form == "tradeoff":
            private = {n for n, c in self.curves.items() if c.method == "dp-fts-de"}
            alone = sorted(n for n in private if not self.curves[n].series)
            allowed = "private curves, each in a series, where form is 'tradeoff'"
            require(len(private) > 0 and not alone, "curves", alone, allowed)

    @property
    def known_methods(self) -> Mapping[str, TuningMethod]:
        """All methods that it could have, by name."""
        return {**METHODS, **methods_of(self.curves)}

    def label_of(self, method: str) -> str:
        """Return what tables and figures call a method."""
        return label_of(self.known_methods[method], self.preset)

    def with_epsilon(self, epsilon: float) -> Self:
        """Return the same experiment at another epsilon; see `Experiment`."""
        allowed = "left out: its curves have their own noise"
        require(not self.curves, "epsilon", epsilon, allowed)
        return super().with_epsilon(epsilon)

    def recipe(self, method: str) -> dict[str, Any]:
        """Return what decides a method's runs, whatever experiment they are part of."""
        values = super().recipe(method)
        for name in ("privacy", "curves"):
            values.pop(name, None)
        chosen = self.known_methods[method]
        return {**values, **recipe_of(chosen, self.preset, self.privacy)}

    def check(self) -> None:
        """Raise, before any work is done, if it cannot be run: see `Task.check`."""
        for name in self.methods:  # what only the methods can refuse
            try:
                self._strategy(name)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
        self.task.check(self.num_agents)

    def play(self, methods: Sequence[str], seed: int) -> list[TuningRun]:
        """Run some of the methods on one seed."""
        return [run_one(self, method, seed) for method in methods]

    def spending(self, method: str) -> FloatArray:
        """Return a method's epsilon after each iteration; see `Experiment`."""
        return spending(self._strategy(method), self.num_iterations)

    def sending(self, method: str, runs: Sequence[Run]) -> FloatArray:
        """Return how many numbers have been sent by each iteration."""
        return sending(self._strategy(method), self.num_iterations)

    def _strategy(self, method: str) -> TuningStrategy:
        return self.known_methods[method].build(self, Seeds.of_run(0))

    def notes(self, runs: Sequence[Run], until: int | None) -> tuple[str, list[str]]:
        """Return the table's title, and what is to be said below it."""
        title, (first, *others) = super().notes(runs, until)
        accountant = self.privacy.accountant.upper()
        privacy = (
            f"epsilon: spent at delta = {self.privacy.delta:.4g} ({accountant} "
            "accountant), had the noise been real. The noise of an experiment is "
            "seeded: NOT PRIVATE."
        )
        return title, [first, privacy, *others]

    def verdict(self, rows: Mapping[str, Any]) -> list[str]:
        """Say in words whether federation helped, with and without privacy."""
        return verdict(rows)


_KINDS: dict[type[Experiment], TypeAdapter[Any]] = {
    TuningExperiment: TypeAdapter(TuningExperiment),
    TransferExperiment: TypeAdapter(TransferExperiment),
    BanditExperiment: TypeAdapter(BanditExperiment),
    NonlinearBanditExperiment: TypeAdapter(NonlinearBanditExperiment),
}
_NONLINEAR = {str(cls.name): cls for cls in (FunctionBanditTask, ClusterBanditTask)}
_TASK_NAMES: dict[str, type[Any]] = {
    **{str(cls.name): cls for cls in TASKS},
    LinearBanditTask.name: LinearBanditTask,
    **_NONLINEAR,
}


def experiment_of(values: Mapping[str, Any]) -> Experiment:
    """Return the experiment that a TOML, or `Experiment.to_dict`, describes.

    Its task decides of which kind it is, and whether it has targets.

    Raises
    ------
    ValidationError
        If a key is unknown or missing, or a value is not allowed.
    """
    text = json.dumps(values, default=str)
    experiment: Experiment = _KINDS[_kind_of(values)].validate_json(text)
    return experiment


def _kind_of(values: Mapping[str, Any]) -> type[Experiment]:
    task = values.get("task")
    name = task.get("name") if isinstance(task, Mapping) else None
    if name == LinearBanditTask.name:
        return BanditExperiment
    if name in _NONLINEAR:
        return NonlinearBanditExperiment
    return TransferExperiment if "num_targets" in values else TuningExperiment


def load_experiment(path: Path) -> Experiment:
    """Read an experiment.

    Raises
    ------
    ValueError
        If the file is no TOML or something in it is not allowed; the message names the
        file, the key, the value and what is allowed.
    OSError
        If it cannot be read.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no TOML: {error}.") from error
    try:
        return experiment_of(values)
    except ValidationError as error:
        tables = _tables_of(_kind_of(values))
        found = [_reason(dict(e), tables).removesuffix(".") for e in error.errors()]
        raise ValueError(f"{path}: {'; '.join(found)}.") from error


def _reason(error: dict[str, Any], tables: Mapping[str, type[Any]]) -> str:
    """Return what pydantic found in the words of our own errors."""
    # Between "task" and the key pydantic puts the kind of the task.
    parts = [str(part) for part in error["loc"]]
    in_task = parts[:1] == ["task"] and len(parts) > 2
    key = ".".join(parts[:1] + parts[-1:] if in_task else parts)
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    if error["type"] == "missing":
        return f"{key} is missing."
    if error["type"] == "unexpected_keyword_argument":
        table = next((part for part in reversed(parts[:-1]) if part in tables), "")
        known = [f.name for f in fields(tables[table])]
        return f"{key} is not known: {nearest(parts[-1], known)}."
    if error["type"] == "union_tag_invalid":
        name = error["ctx"]["tag"]
        return f"{key}.name={name!r} is not allowed: {nearest(name, _TASK_NAMES)}."
    if error["type"] == "union_tag_not_found":
        return f"{key}.name is missing: {nearest('', _TASK_NAMES)}."
    return f"{key}={error['input']!r} is not allowed: {error['msg']}."


def _tables_of(kind: type[Experiment]) -> dict[str, type[Any]]:
    """Return the dataclasses behind an experiment's TOML, by their table's name."""
    shared = {"": kind, "claims": Claim}
    if kind is BanditExperiment:
        tables = {"privacy": BanditPrivacy, "sweep": Sweep, "task": LinearBanditTask}
        return {**shared, **tables}
    if kind is NonlinearBanditExperiment:
        constants: dict[str, type[Any]] = {
            "settings": Constants,
            "regression": Regression,
            "linear": LinearConstants,
            "glm": GLMConstants,
            "kernel": KernelConstants,
        }
        return {**shared, **constants, **_NONLINEAR}
    if kind is TransferExperiment:
        return {**shared, **_TASK_NAMES}
    return {**shared, "privacy": Privacy, "curves": Curve, **_TASK_NAMES}


def builtin_experiments() -> dict[str, Path]:
    """Return the files of the experiments that ship with the package, by name."""
    folder = Path(str(files("flwr_fbo.experiment_runner"))) / "builtin"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def find_experiment(name: str) -> Experiment:
    """Return the built-in experiment of that name, else the one in that file.

    A name that is neither is looked for in the folder ``experiments``, where those of
    published figures lie.

    Raises
    ------
    ValueError
        If there is none; the message names the nearest, or see `load_experiment`.
    """
    builtin = builtin_experiments()
    if name in builtin:
        return load_experiment(builtin[name])
    published = {path.stem: path for path in Path("experiments").glob("*.toml")}
    path = published.get(name, Path(name))
    if not path.is_file() and (name.endswith(".toml") or "/" in name):
        raise ValueError(f"There is no file {name}.")
    known = [*builtin, *published]
    require(
        path.is_file(), "experiment", name, f"a TOML file, or {nearest(name, known)}"
    )
    return load_experiment(path)

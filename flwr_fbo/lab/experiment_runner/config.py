"""Read an experiment from its TOML file, with errors that name the key.

Those that ship with the package are in ``experiment_runner/builtin``.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args, get_type_hints

from pydantic import ValidationError

from flwr_fbo._common.validation import did_you_mean, nearest
from flwr_fbo.lab.experiment_runner.base import Experiment, reader
from flwr_fbo.lab.experiment_runner.linear_bandit_experiment import BanditExperiment
from flwr_fbo.lab.experiment_runner.nonlinear_bandit_experiment import (
    NonlinearBanditExperiment,
)
from flwr_fbo.lab.experiment_runner.transfer_experiment import TransferExperiment
from flwr_fbo.lab.experiment_runner.tuning_experiment import TuningExperiment
from flwr_fbo.lab.tasks.base import Task
from flwr_fbo.lab.tasks.catalogue import TASKS
from flwr_fbo.lab.tasks.linear_bandit import LinearBanditTask
from flwr_fbo.lab.tasks.nonlinear_bandit import NonlinearBanditTask


def experiment_of(values: Mapping[str, Any]) -> Experiment:
    """Return the experiment that a TOML, or `Experiment.to_dict`, describes.

    Its task decides its kind, and whether it has targets.

    Raises
    ------
    ValidationError
        If a key is unknown or missing, or a value is not allowed.
    """
    text = json.dumps(values, default=str)
    experiment: Experiment = reader(_kind_of(values)).validate_json(text)
    return experiment


def _kind_of(values: Mapping[str, Any]) -> type[Experiment]:
    task = values.get("task")
    name = str(task.get("name")) if isinstance(task, Mapping) else ""
    named = TASKS.get(name, Task)
    if named is LinearBanditTask:
        return BanditExperiment
    if issubclass(named, NonlinearBanditTask):
        return NonlinearBanditExperiment
    return TransferExperiment if "num_targets" in values else TuningExperiment


def load_experiment(path: Path) -> Experiment:
    """Read an experiment.

    Raises
    ------
    ValueError
        If the file is not TOML or something in it is not allowed; the message names the
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
        kind = _kind_of(values)
        tables = {"": kind, **_tables_in(kind), **TASKS}
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
        return f"{key}.name={name!r} is not allowed: {nearest(name, TASKS)}."
    if error["type"] == "union_tag_not_found":
        return f"{key}.name is missing: {nearest('', TASKS)}."
    return f"{key}={error['input']!r} is not allowed: {error['msg']}."


def _tables_in(kind: Any) -> dict[str, type[Any]]:
    """Return the dataclasses of a dataclass's fields, and of theirs, by field."""
    hints, found = get_type_hints(kind), dict[str, type[Any]]()
    for name in (each.name for each in fields(kind)):
        for part in (hints[name], *get_args(hints[name])):
            if isinstance(part, type) and is_dataclass(part):
                found |= {name: part, **_tables_in(part)}
    return found


def builtin_experiments() -> dict[str, Path]:
    """Return the files of the experiments that ship with the package, by name."""
    folder = Path(str(files("flwr_fbo.lab.experiment_runner"))) / "builtin"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


# Where published figures are, in the folder of a clone.
_PUBLISHED = Path("experiments")


class UnknownExperimentError(ValueError):
    """There is no experiment of that name.

    Attributes
    ----------
    known : list of str
        The names that there are.
    """

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.known = sorted(known)
        meant = did_you_mean(name, self.known)
        expected = f"a TOML file, or a name that flwr-fbo list prints{meant}"
        if not _PUBLISHED.is_dir():
            expected += (
                "; published figures need a clone of the repository: run the command "
                "in the clone's folder"
            )
        super().__init__(f"experiment={name!r} is not allowed: {expected}.")


def published_experiments() -> dict[str, Path]:
    """Return the files of published figures, by a name such as ``feducb/fig2``.

    They are in the folder ``experiments`` of a clone, in a folder for each paper.
    """
    return {
        path.relative_to(_PUBLISHED).with_suffix("").as_posix(): path
        for path in sorted(_PUBLISHED.glob("*/*.toml"))
    }


def find_experiment(name: str) -> Experiment:
    """Return the experiment of that name, built in or published, or in that file.

    Raises
    ------
    UnknownExperimentError
        If there is none.
    ValueError
        See `load_experiment`.
    """
    named = {**published_experiments(), **builtin_experiments()}
    path = named.get(name, Path(name))
    if path.is_file():
        return load_experiment(path)
    if name.endswith(".toml"):
        raise ValueError(f"There is no file {name}.")
    raise UnknownExperimentError(name, named)

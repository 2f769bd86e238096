"""All tasks that an experiment's file can name: each module here registers its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import reduce
from importlib import import_module
from operator import or_
from pkgutil import iter_modules
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

import flwr_fbo.lab.tasks
from flwr_fbo.lab.tasks.base import REGISTERED


def task_types(kind: type[Any] = object) -> dict[str, type[Any]]:
    """Return the task classes of a kind, by name.

    All modules of this folder are imported, but for those whose name begins with an
    underscore, which need an extra.
    """
    for module in iter_modules(flwr_fbo.lab.tasks.__path__):
        if not module.name.startswith("_"):
            import_module(f"flwr_fbo.lab.tasks.{module.name}")
    found = sorted(REGISTERED.items())
    return {name: task for name, task in found if issubclass(task, kind)}


def task_reader(kind: type[Any]) -> Callable[[Any], Any]:
    """Return what turns a file's table into a task of a kind, by its ``name``."""
    union: Any = reduce(or_, task_types(kind).values())
    adapter = TypeAdapter[Any](Annotated[union, Field(discriminator="name")])

    def read(values: Any) -> Any:
        # As JSON: pydantic's strict mode makes a dataclass of nothing else.
        return adapter.validate_json(json.dumps(values, default=str))

    return read

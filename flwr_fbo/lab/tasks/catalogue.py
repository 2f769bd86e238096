"""The tasks that an experiment's file can name: a new one is a name here."""

from __future__ import annotations

from typing import Annotated, Any, get_args

from pydantic import Field, GetPydanticSchema

from flwr_fbo.lab.tasks.base import Task
from flwr_fbo.lab.tasks.digits import DigitsTask
from flwr_fbo.lab.tasks.emnist import EmnistTask
from flwr_fbo.lab.tasks.har import HarTask
from flwr_fbo.lab.tasks.landmine import LandmineTask
from flwr_fbo.lab.tasks.linear_bandit import LinearBanditTask
from flwr_fbo.lab.tasks.nonlinear_bandit import (
    ClusterBanditTask,
    FunctionBanditTask,
    NonlinearBanditTask,
)
from flwr_fbo.lab.tasks.synthetic import SyntheticTask
from flwr_fbo.lab.tasks.table import TableTask

Tuning = DigitsTask | EmnistTask | HarTask | LandmineTask | SyntheticTask | TableTask
Nonlinear = ClusterBanditTask | FunctionBanditTask


def _by_name(kinds: Any) -> GetPydanticSchema:
    """Return how a file's table becomes a task: by its ``name``."""
    named = Annotated[kinds, Field(discriminator="name")]
    return GetPydanticSchema(lambda _, handler: handler.generate_schema(named))


TuningTask = Annotated[Task, _by_name(Tuning)]
NonlinearTask = Annotated[NonlinearBanditTask, _by_name(Nonlinear)]

TASKS = {
    one.name: one for one in (*get_args(Tuning), *get_args(Nonlinear), LinearBanditTask)
}

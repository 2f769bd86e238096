"""The tasks that an experiment's file can name: a new one is a name here."""

from __future__ import annotations

from typing import Annotated, Any, Union

from pydantic import Field, GetCoreSchemaHandler, GetPydanticSchema

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

TASKS: dict[str, type[Any]] = {
    task.name: task
    for task in (
        DigitsTask,
        EmnistTask,
        HarTask,
        LandmineTask,
        SyntheticTask,
        TableTask,
        ClusterBanditTask,
        FunctionBanditTask,
        LinearBanditTask,
    )
}


def _by_name(kind: type[Any]) -> GetPydanticSchema:
    """Return how a file's table becomes a task of a kind: by its ``name``."""

    def schema(_: Any, handler: GetCoreSchemaHandler) -> Any:
        tasks = tuple(task for task in TASKS.values() if issubclass(task, kind))
        named: Any = Annotated[Union[tasks], Field(discriminator="name")]  # noqa: UP007
        return handler.generate_schema(named)

    return GetPydanticSchema(schema)


TuningTask = Annotated[Task, _by_name(Task)]
NonlinearTask = Annotated[NonlinearBanditTask, _by_name(NonlinearBanditTask)]

"""Tasks, whatever they are."""

import pickle

import pytest

from flwr_fbo.lab.tasks.base import Task
from flwr_fbo.lab.tasks.digits import DigitsTask
from flwr_fbo.lab.tasks.emnist import EmnistTask
from flwr_fbo.lab.tasks.har import HarTask
from flwr_fbo.lab.tasks.landmine import LandmineTask
from flwr_fbo.lab.tasks.synthetic import SyntheticTask


@pytest.mark.parametrize(
    "task",
    [
        DigitsTask(),
        EmnistTask(log=False),
        HarTask(log=False),
        LandmineTask(noisy=True),
        SyntheticTask(alpha=0.3),
    ],
)
def test_tasks_travel_to_workers(task: Task) -> None:
    assert pickle.loads(pickle.dumps(task)) == task

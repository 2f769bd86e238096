"""The example: a partition of a Flower dataset is a task."""

import re
from pathlib import Path
from typing import Any

import datasets
import pytest
from flwr.app import Context, RecordDict, UserConfig
from flwr_datasets import FederatedDataset

from flwr_fbo import InProcessGrid
from tests.support.engine import FlwrRun

EXAMPLE = Path(__file__).parents[1] / "examples" / "flower-datasets"
NUM_AGENTS = 6
GOOD = {"C": 10.0, "gamma": 1e-3}


@pytest.fixture
def client_app(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    from flower_datasets import client_app

    return client_app


def _tune(grid: InProcessGrid) -> None:
    from flower_datasets import server_app

    config: UserConfig = {"num-agents": NUM_AGENTS, "num-rounds": 3}
    server_app.app(grid, Context(1, 1, {}, RecordDict(), config))


def test_each_partition_is_a_task(client_app: Any) -> None:
    all_partitions = client_app.partitioner(NUM_AGENTS)
    parts = [all_partitions.load_partition(i) for i in range(NUM_AGENTS)]
    assert sum(len(part) for part in parts) == 1797
    tasks = [client_app.make_task(part) for part in parts]
    assert all(task(GOOD) > 0.85 for task in tasks)
    assert all(task({"C": 1e-3, "gamma": 10.0}) < 0.6 for task in tasks)
    assert [client_app.make_task(part)(GOOD) for part in parts] == [
        task(GOOD) for task in tasks
    ]


def test_the_app_tunes_in_the_in_process_grid(
    client_app: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    _tune(InProcessGrid(client_app.app, NUM_AGENTS))
    assert "(score " in capsys.readouterr().out


def _python_of_readme() -> list[str]:
    text = (EXAMPLE / "README.md").read_text()
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_the_readme_shows_the_three_lines() -> None:
    lines = _python_of_readme()[0]
    assert len(lines.splitlines()) == 3
    assert lines in (EXAMPLE / "flower_datasets" / "client_app.py").read_text()


def test_the_readme_s_federated_dataset_is_a_task(
    client_app: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a file in place of the hub."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    lines = _python_of_readme()[1]
    file = tmp_path / "digits.parquet"
    client_app.partitioner(1).dataset.to_parquet(file)
    local = f"'parquet', data_files={str(file)!r}, cache_dir={str(tmp_path)!r}"
    assert '"owner/name"' in lines
    names = {**vars(client_app), "FederatedDataset": FederatedDataset}
    exec(lines.replace('"owner/name"', local), names)
    parts = [names["fds"].load_partition(i) for i in range(NUM_AGENTS)]
    assert sum(len(part) for part in parts) == 1797
    assert all(client_app.make_task(part)(GOOD) > 0.8 for part in parts)
    grid = InProcessGrid(names["app"], NUM_AGENTS)
    _tune(grid)


@pytest.mark.slow
def test_the_app_runs_on_the_engine(flwr_run: FlwrRun) -> None:
    printed = flwr_run(EXAMPLE, NUM_AGENTS, {})
    assert "(score " in printed, printed

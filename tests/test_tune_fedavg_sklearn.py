"""A plain FedAvg app, and what it takes to tune it."""

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from flwr_fbo import InProcessGrid
from tests.support.app_bundles import read_project
from tests.support.before_and_after import assert_readme_shows, diff
from tests.support.engine import FlwrRun

EXAMPLE = Path(__file__).parents[1] / "examples" / "tune-fedavg-sklearn"
NUM_SITES = 20
CODE = [f"digits_sgd/{n}.py" for n in ("client_app", "server_app")]
SAME = ["digits_sgd/__init__.py", "digits_sgd/task.py"]


def _test_accuracies(version: str, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Run a version in the in-process Grid; return what each test has found."""
    for name in [n for n in sys.modules if n.split(".")[0] == "digits_sgd"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(EXAMPLE / version))
    server_app: Any = importlib.import_module("digits_sgd.server_app")
    client_app: Any = importlib.import_module("digits_sgd.client_app")
    test, accuracies = server_app.test, []

    def noting_test(server_round: int, arrays: Any) -> Any:
        metrics = test(server_round, arrays)
        accuracies.append(metrics["accuracy"])
        return metrics

    server_app.test = noting_test
    config = read_project(EXAMPLE / version)["tool"]["flwr"]["app"]["config"]
    grid = InProcessGrid(client_app.app, NUM_SITES, run_config=config)
    server_app.app(grid, Context(1, 1, {}, RecordDict(), dict(config)))
    for name in [n for n in sys.modules if n.split(".")[0] == "digits_sgd"]:
        monkeypatch.delitem(sys.modules, name)
    return accuracies


@pytest.mark.slow
def test_it_is_better_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    before = _test_accuracies("before", monkeypatch)
    after = _test_accuracies("after", monkeypatch)
    assert len(before) == 1 + 9
    assert 0.5 < before[-1] < after[-1] - 0.05


def test_the_plain_app_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    accuracies = _test_accuracies("before", monkeypatch)
    assert accuracies[0] < 0.2 < 0.5 < accuracies[-1]


def test_tuning_takes_12_lines_at_the_server_and_1_at_the_client() -> None:
    client, server = (diff(EXAMPLE, name)[2:] for name in CODE)
    changed = [line for line in server if line.startswith(("+", "-"))]
    assert 0 < sum(line[1:].strip() != "" for line in changed) <= 12
    added = [line for line in client if line.startswith("+")]
    assert [line for line in added if "import" not in line] == [
        "+app = ClientApp(mods=[tuner_mod])\n"
    ]
    assert len(added) == 2
    assert all(diff(EXAMPLE, name) == [] for name in SAME)


def test_the_readme_shows_the_diff() -> None:
    assert_readme_shows(EXAMPLE, ["pyproject.toml", *CODE])


@pytest.mark.gate
def test_the_tuned_app_runs_on_the_engine(flwr_run: FlwrRun) -> None:
    # With five sites the last rung ends at round 9: then the chosen trial goes on.
    printed = flwr_run(EXAMPLE / "after", 5, {"num-server-rounds": 10})
    assert "chosen: {" in printed, printed
    accuracies = re.findall(r"MetricRecord: {'accuracy': ([0-9.]+)}", printed)
    # Its noise has no seed. The worst settings of the space, too, reach 0.88.
    assert float(accuracies[-1]) > 0.85, printed

"""`python -m benchmarks.flower_examples`, on a made-up app.

With FLWR_FBO_FLOWER, a checkout of Flower, also on copies of its apps.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks import flower_examples
from benchmarks.flower_examples import APPS, COMMIT, App, prepare, run, table, tune
from tests.support.tuned_apps import message_app

# The repository's list before `flwr-fbo tune`.
EARLIER = {
    "quickstart-sklearn",
    "quickstart-pytorch",
    "quickstart-xgboost",
    "quickstart-numpy",
    "quickstart-tensorflow",
    "quickstart-pytorch-lightning",
    "quickstart-huggingface",
    "fl-tabular",
    "opacus",
    "advanced-pytorch",
    "custom-mods",
    "fl-dp-sa",
    "flower-secure-aggregation",
}

TASK = """\
from datasets import Dataset
from datasets import DatasetDict, load_dataset
from flwr_datasets import FederatedDataset
# from datasets import load_dataset
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """Return a made-up app, in a folder of its own as some of Flower's."""
    package = tmp_path / "made-up" / "made_up"
    package.mkdir(parents=True)
    (package.parent / "pyproject.toml").write_text("[project]\n")
    (package / "task.py").write_text(TASK)
    return tmp_path


def test_eighteen_apps_are_tuned_and_eight_were_not_before() -> None:
    assert len(APPS) == 18
    assert len(set(APPS) - EARLIER) >= 8


def test_an_app_is_copied_with_data_at_hand(app: Path) -> None:
    copy = app.parent / f"{app.name}-copy"
    assert prepare(app, copy) == 2
    assert (copy / "made_up" / "task.py").read_text() == (
        "from datasets import Dataset\n"
        "from datasets import DatasetDict\n"
        "from benchmarks.flower_data import load_dataset\n"
        "from benchmarks.flower_data import FederatedDataset\n"
        "# from datasets import load_dataset\n"
    )
    assert (app / "made-up" / "made_up" / "task.py").read_text() == TASK


@pytest.mark.parametrize("name", APPS)
def test_only_imports_of_an_app_are_replaced(name: str, tmp_path: Path) -> None:
    flower = os.environ.get("FLWR_FBO_FLOWER")
    if flower is None:
        pytest.skip(f"needs FLWR_FBO_FLOWER: a checkout of Flower at {COMMIT}")
    shipped = Path(flower) / APPS[name].folder / name
    num_imports = prepare(shipped, tmp_path / name)
    assert num_imports > 0 or APPS[name].save_data is not None
    for path in (tmp_path / name).rglob("*.py"):
        compile(path.read_text(), path, "exec")


def test_the_table_has_each_app(tmp_path: Path) -> None:
    row: dict[str, Any] = {"name": "opacus", "outcome": "tuned", "seconds": 3.2}
    row |= {"trainings": 7, "lines": 1, "last_line": "flwr run opacus"}
    row["compared"] = {"by": "at the server", "round": 3, "before": 0.1, "after": 0.2}
    other = {**row, "name": "vertical-fl", "outcome": "refused"}
    other |= {"compared": None, "last_line": "Error: no"}
    columns = [list(column.cells) for column in table([row, other]).columns]
    found = dict(zip(columns[0], zip(*columns[1:], strict=True), strict=True))
    assert set(found) == set(APPS)
    assert found["opacus"] == ("tuned", "3", "7", "0.1", "0.2", "flwr run opacus")
    assert found["vertical-fl"] == ("refused", "3", "7", "", "", "Error: no")
    assert found["fedbn"][0] == "not run"


def test_an_app_is_tuned_by_one_command(tmp_path: Path) -> None:
    found = tune("quickstart-jax", tmp_path / "app")
    assert found[:4] == ["tune", str(tmp_path / "app"), "--metric", "eval_acc"]
    assert found[found.index("--search") + 1] == "learning-rate=1e-3..1:log"
    config = found[found.index("--run-config") + 1]
    assert config == "batch-size=16 num-server-rounds=3"


def test_a_row_has_what_came_of_an_app(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apps = {name: App("eval_acc", ("learning-rate=1e-3..1:log",)) for name in "ab"}
    apps["b"] = App("accuracy", ("learning-rate=1e-3..1:log",))
    monkeypatch.setattr(flower_examples, "APPS", apps)
    message_app(tmp_path / "examples" / "a")
    message_app(tmp_path / "examples" / "b")
    row = run("a", tmp_path)
    assert row["outcome"] == "tuned"
    assert row["chosen"]["learning-rate"] > 0.01
    assert row["compared"]["before"] < row["compared"]["after"]
    # Six rounds, and one to look at.
    assert row["trainings"] == 7
    assert row["last_line"].startswith("flwr run a --run-config")
    other = run("b", tmp_path)
    assert other["outcome"] == "refused"
    assert other["trainings"] == 1
    assert "what clients report, one of ['eval_acc']" in other["last_line"]

"""`python -m benchmarks.flower_examples`, on a made-up app.

With FLWR_FBO_FLOWER, a checkout of Flower, also on its examples.
"""

import json
import os
from pathlib import Path

import pytest

from benchmarks import flower_engine
from benchmarks.flower_examples import (
    COMMIT,
    EXAMPLES,
    MOST_LINES,
    PATCHES,
    PatchError,
    changed_lines,
    prepare,
    table,
)

TUNED = [name for name, example in EXAMPLES.items() if not example.why_not]

PYPROJECT = """\
[tool.flwr.app.components]
serverapp = "made_up.server_app:app"
clientapp = "made_up.client_app:app"

[tool.flwr.app.config]
num-server-rounds = 2
params.rate = 9.0
"""

# An evaluation counts this client's messages so far, in its state.
CLIENT_APP = """\
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from datasets import load_dataset

app = ClientApp()


@app.train()
def train(msg, context):
    seen = context.state.get("seen", MetricRecord({"count": 0}))
    context.state["seen"] = MetricRecord({"count": seen["count"] + 1})
    metrics = MetricRecord({"num-examples": 1})
    content = {"arrays": msg.content["arrays"], "metrics": metrics}
    return Message(RecordDict(content), reply_to=msg)


@app.evaluate()
def evaluate(msg, context):
    is_judge = context.node_config["partition-id"] == 4
    seen = context.state.get("seen", MetricRecord({"count": 0}))
    score = -abs(context.run_config["params.rate"] - 1)
    metrics = {"num-examples": 1, "score": score, "seen": seen["count"]}
    metrics["is-judge"] = int(is_judge)
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)
"""

SERVER_APP = """\
import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()
seen = []


@app.main()
def main(grid, context):
    num_rounds = context.run_config["num-server-rounds"]
    result = FedAvg().start(grid, ArrayRecord([np.zeros(1)]), num_rounds)
    seen.append(result.evaluate_metrics_clientapp[num_rounds]["seen"])
"""

PATCH = """\
--- a/made_up/client_app.py
+++ b/made_up/client_app.py
@@ -3,0 +4 @@
+from flwr_fbo import tuner_mod
@@ -5 +6 @@
-app = ClientApp()
+app = ClientApp(mods=[tuner_mod])
--- a/made_up/server_app.py
+++ b/made_up/server_app.py
@@ -4,0 +5,2 @@
+from flwr_fbo import FederationTuner, Halving
+from optuna.distributions import FloatDistribution
@@ -10,0 +13,8 @@
+def tuned(grid, context):
+    space = {"params.rate": FloatDistribution(0, 10)}
+    schedule = Halving(4, (1, 2))
+    rest = {"schedule": schedule, "privacy": None}
+    tuner = FederationTuner(space, "score", "maximize", 4, **rest)
+    main(*tuner.start(main, grid, context).apply(grid, context))
+
+
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """The made-up app, before it is patched, and its patch beside it."""
    package = tmp_path / "app" / "made_up"
    package.mkdir(parents=True)
    (package.parent / "pyproject.toml").write_text(PYPROJECT)
    (package / "__init__.py").write_text("")
    (package / "client_app.py").write_text(CLIENT_APP)
    (package / "server_app.py").write_text(SERVER_APP)
    (tmp_path / "app.diff").write_text(PATCH)
    return package.parent


def test_a_line_in_place_of_another_counts_once() -> None:
    assert changed_lines(PATCH) == 1 + 1 + 2 + 6
    assert changed_lines("--- a/x\n+++ b/x\n@@ -1,2 +1 @@\n-a\n-b\n+c\n") == 2
    assert changed_lines("--- a/x\n+++ b/x\n@@ -1,0 +2 @@\n++x += 1\n") == 1


def test_an_example_is_copied_with_its_patch_and_data_at_hand(app: Path) -> None:
    copy = app.parent / "copy"
    assert prepare(app, app.parent / "app.diff", copy) == 1
    client = (copy / "made_up" / "client_app.py").read_text()
    assert "mods=[tuner_mod]" in client
    assert "from benchmarks.flower_data import load_dataset\n" in client
    assert (app / "made_up" / "client_app.py").read_text() == CLIENT_APP


def test_a_patch_that_does_not_fit_is_named(app: Path) -> None:
    (app / "made_up" / "client_app.py").write_text("app = None\n" * 9)
    with pytest.raises(PatchError, match=rf"app\.diff does not fit.*{COMMIT}|COMMIT"):
        prepare(app, app.parent / "app.diff", app.parent / "copy")


def test_runs_are_judged_before_and_after(
    app: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = app.parent / "copy"
    prepare(app, app.parent / "app.diff", copy)
    # The loader is not used; it would need data.
    client = copy / "made_up" / "client_app.py"
    client.write_text(
        client.read_text().replace("from benchmarks", "# from benchmarks")
    )
    monkeypatch.syspath_prepend(copy)
    flower_engine.play(copy, 2, 4, {"params.rate": 8.0}, is_in_process=True)
    lines = capsys.readouterr().out.splitlines()
    rows = [json.loads(line) for line in lines if line.startswith('{"seed": ')]
    assert [(row["seed"], row["version"]) for row in rows] == [
        *((0, "before"), (0, "after")),
        *((1, "before"), (1, "after")),
    ]
    assert all(row["metrics"]["is-judge"] == 1 for row in rows)
    for before, after in (rows[:2], rows[2:]):
        assert before["metrics"]["score"] == -7
        assert "chosen" not in before
        chosen = after["chosen"]["params.rate"]
        assert after["metrics"]["score"] == pytest.approx(-abs(chosen - 1))
    import made_up.server_app  # type: ignore[import-not-found]

    # No run has its clients' states from the run before.
    assert made_up.server_app.seen[0] == 2
    assert made_up.server_app.seen[-1] == 2


@pytest.mark.parametrize("name", TUNED)
def test_a_patch_is_short(name: str) -> None:
    diff = (PATCHES / f"{name}.diff").read_text()
    assert 0 < changed_lines(diff) <= MOST_LINES
    assert max(map(len, diff.splitlines())) <= 1 + 88
    assert "tuner_mod" in diff
    assert "FederationTuner" in diff


def test_each_patch_is_of_an_example() -> None:
    assert {path.stem for path in PATCHES.glob("*.diff")} == set(TUNED)


@pytest.mark.parametrize("name", TUNED)
def test_a_patch_fits_the_example(name: str, tmp_path: Path) -> None:
    flower = os.environ.get("FLWR_FBO_FLOWER")
    if flower is None:
        pytest.skip(f"needs FLWR_FBO_FLOWER: a checkout of Flower at {COMMIT}")
    example = Path(flower) / "examples" / name
    assert prepare(example, PATCHES / f"{name}.diff", tmp_path / name) > 0
    for path in (tmp_path / name).rglob("*.py"):
        compile(path.read_text(), path, "exec")


def test_the_table_has_each_example_and_why_it_is_not_tuned() -> None:
    metrics = {"accuracy": 0.5}
    of_one = {"example": "opacus", "lines": 14, "metrics": metrics, "seconds": 3}
    rows = [
        {**of_one, "seed": seed, "version": version}
        for seed in range(2)
        for version in ("before", "after")
    ]
    columns = [list(column.cells) for column in table(rows).columns]
    found = dict(zip(columns[0], zip(*columns[1:], strict=True), strict=True))
    assert set(found) == set(EXAMPLES)
    same = "0.500 ± 0.000"
    assert found["opacus"] == ("14", "accuracy", same, same, "3", "3")
    assert "random" in found["quickstart-numpy"][1]

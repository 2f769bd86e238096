"""The two snippets of the design run as they are written there."""

from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from flwr_fbo import InProcessGrid
from flwr_fbo.journal.journal import Journal
from flwr_fbo.strategies.study_record import read_ledger
from tests.support.engine import FlwrRun

# What the snippets leave out: imports, and a site's data.
CLIENT_IMPORTS = """
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import cross_val_score
from sklearn.svm import SVC

from flwr_fbo import tuning_app

def load_site(context):
    X, y = load_breast_cancer(return_X_y=True)
    site = int(context.node_config["partition-id"])
    return X[site::20, :2], y[site::20]

"""
SERVER_IMPORTS = """
from flwr.serverapp import ServerApp
from optuna.distributions import FloatDistribution

from flwr_fbo import FedVote

"""
CLIENT = """
def make_objective(context):
    X, y = load_site(context)
    def objective(trial):
        C = trial.suggest_float("C", 1e-3, 1e3,
                                log=True)
        return cross_val_score(SVC(C=C), X, y).mean()
    return objective
app = tuning_app(make_objective)
"""
SERVER = """
app = ServerApp()
@app.main()
def main(grid, context):
    s = FedVote(space={"C": FloatDistribution(1e-3, 1e3, log=True)},
                direction="maximize", num_agents=20,
                epsilon=2, delta=1e-3)
    result = s.start(grid, num_rounds=40, folder="/var/lib/fbo")
    print(result.recommended, result.privacy_spent)
"""
FOLDER = "/var/lib/fbo"
PYPROJECT = """
[project]
name = "design"
version = "1.0.0"
license = "Apache-2.0"
dependencies = ["flwr-fbo"]

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.hatch.build.targets.wheel]
packages = ["design"]

[tool.flwr.app]
publisher = "flwr-fbo"

[tool.flwr.app.components]
serverapp = "design.server_app:app"
clientapp = "design.client_app:app"
"""


NUM_ROUNDS = "num_rounds=40"


def write_app(folder: Path, record: Path) -> None:
    """Write the snippets as a package, with a folder of the test's in their place."""
    assert FOLDER in SERVER
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "client_app.py").write_text(CLIENT_IMPORTS + CLIENT)
    server = SERVER_IMPORTS + SERVER.replace(FOLDER, str(record))
    (folder / "server_app.py").write_text(server)


def _app(path: Path) -> Any:
    names: dict[str, Any] = {"__name__": path.stem}
    exec(compile(path.read_text(), str(path), "exec"), names)
    return names["app"]


def test_the_snippets_run_in_the_in_process_grid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In ten rounds; the engine plays all 40."""
    write_app(tmp_path / "app", tmp_path / "record")
    grid = InProcessGrid(_app(tmp_path / "app" / "client_app.py"), 20)
    file = tmp_path / "app" / "server_app.py"
    assert NUM_ROUNDS in SERVER
    file.write_text(file.read_text().replace(NUM_ROUNDS, "num_rounds=10"))
    server = _app(file)
    context = Context(1, 1, {}, RecordDict(), {})
    server(grid, context)
    out = capsys.readouterr().out
    assert out.startswith("None ")  # ten rounds are too few to recommend anything
    assert "epsilon 2 per client (message or zeros, delta 0.001" in out
    assert (tmp_path / "record" / "server.sqlite").exists()


@pytest.mark.slow
def test_the_snippets_run_on_the_engine(tmp_path: Path, flwr_run: FlwrRun) -> None:
    app = tmp_path / "source"
    write_app(app / "design", tmp_path / "record")
    (app / "pyproject.toml").write_text(PYPROJECT)
    flwr_run(app, 20, {})
    # Not what is printed, which may be cut off: the record is what counts.
    with Journal(None, tmp_path / "record" / "server.sqlite") as journal:
        fields, ledger = read_ledger(journal)
    assert len(fields["rounds"]) == 40
    assert len(ledger) == 3  # after six evaluations, ten, and before the last round

"""`flwr run` on Flower's simulation engine gives the in-process grid's histories."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict, UserConfig

from flwr_fbo import FedUCB, InProcessGrid
from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.journal.journal import Journal
from flwr_fbo.lab.simulation.linear_bandits import BanditSimulation
from flwr_fbo.lab.tasks.linear_bandit import LinearBanditTask
from tests.support.engine import FlwrRun

EXAMPLES = Path(__file__).parents[1] / "examples"
EXAMPLE = EXAMPLES / "digits"
NUM_AGENTS, NUM_ROUNDS = 4, 6  # round 1 is the initial points: five queries an agent


def _run_config(folder: Path) -> UserConfig:
    return {
        "num-agents": NUM_AGENTS,
        "num-rounds": NUM_ROUNDS,
        "experiment": True,
        "report-accuracy": True,
        "fbo-tuned": True,
        "folder": str(folder / "server"),
        "fbo-folder": str(folder),
    }


Evaluated = tuple[dict[str, Any], float]


def _trials(folder: Path) -> list[list[Evaluated]]:
    """Return every agent's settings and their values, in the order of evaluation."""
    found = []
    for agent in range(NUM_AGENTS):
        (path,) = folder.glob(f"*-agent-{agent}.sqlite")
        with Journal(None, path) as journal:
            found.append([(trial.params, trial.value) for trial in journal.trials()])
    return found


def _in_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[Evaluated]]:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    from digits import client_app, server_app

    config = _run_config(folder)
    grid = InProcessGrid(client_app.app, NUM_AGENTS, run_config=config)
    context = Context(
        run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=config
    )
    server_app.app(grid, context)
    return _trials(folder)


def test_the_example_runs_in_the_in_process_grid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = _in_process(tmp_path, monkeypatch)
    assert [len(t) for t in trials] == [NUM_ROUNDS] * NUM_AGENTS


@pytest.mark.gate
def test_the_engine_gives_the_same_histories(
    tmp_path: Path, flwr_run: FlwrRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / "engine", tmp_path / "in-process"]
    for folder in folders:
        folder.mkdir()
    printed = flwr_run(EXAMPLE, NUM_AGENTS, _run_config(folders[0]))
    assert "Privacy spent in" in printed, printed
    assert _trials(folders[0]) == _in_process(folders[1], monkeypatch)


BANDITS = EXAMPLES / "linear-bandit"


def _bandit_config(folder: Path, graph: str = "") -> UserConfig:
    return {
        "num-agents": NUM_AGENTS,
        "num-trials": 400,
        "environment-seed": 3,
        "experiment": True,
        "graph": graph,
        "server-folder": str(folder),
    }


def _releases(folder: Path) -> list[FloatArray]:
    """Return the total of each synchronisation."""
    with Journal(None, folder / "server.sqlite") as journal:
        return [row.vectors for row in journal.ledger()]


def _bandits_in_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[FloatArray], list[FloatArray]]:
    """Play in the grid, and in the simulator; return the releases of both."""
    monkeypatch.syspath_prepend(str(BANDITS))
    from bandits import client_app, server_app

    made: list[FedUCB] = []

    class Noted(FedUCB):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            made.append(self)

    monkeypatch.setattr(server_app, "FedUCB", Noted)
    config = _bandit_config(folder)
    grid = InProcessGrid(client_app.app, NUM_AGENTS, run_config=config)
    context = Context(
        run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=config
    )
    server_app.app(grid, context)
    [strategy] = made
    times, settings = strategy._times, strategy.study.settings
    task = LinearBanditTask(dimension=5, num_actions=25)
    simulated = []
    for k, time in enumerate(times, 1):
        run = BanditSimulation(settings, NUM_AGENTS, task, time, times[:k]).run(3, 1)
        simulated.append(run.total)
    return _releases(folder), simulated


def test_the_bandits_are_those_of_the_simulator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal totals: of the same actions, as each leaves its product in the sum."""
    releases, simulated = _bandits_in_process(tmp_path, monkeypatch)
    assert len(releases) == len(simulated) == 8
    for row, total in zip(releases, simulated, strict=True):
        np.testing.assert_allclose(row, total, rtol=0, atol=1e-9)


@pytest.mark.gate
def test_the_engine_gives_the_same_bandits(
    tmp_path: Path, flwr_run: FlwrRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / "engine", tmp_path / "in-process"]
    printed = flwr_run(BANDITS, NUM_AGENTS, _bandit_config(folders[0]))
    assert "NOT PRIVATE" in printed
    in_process, _ = _bandits_in_process(folders[1], monkeypatch)
    engine = _releases(folders[0])
    assert len(engine) == len(in_process) == 8
    for row, other in zip(engine, in_process, strict=True):
        np.testing.assert_array_equal(row, other)


def _mail(folder: Path) -> list[list[str]]:
    """Return the digests of what was carried in each round."""
    with Journal(None, folder / "server.sqlite") as journal:
        return [row.facts["digests"] for row in journal.ledger()]


@pytest.mark.slow
def test_the_engine_carries_the_same_mail(
    tmp_path: Path, flwr_run: FlwrRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agents without a centre send the same bytes, and so have played the same."""
    configs = [_bandit_config(tmp_path / name, "ring") for name in ("engine", "grid")]
    flwr_run(BANDITS, NUM_AGENTS, configs[0])
    monkeypatch.syspath_prepend(str(BANDITS))
    from bandits import client_app, server_app

    grid = InProcessGrid(client_app.app, NUM_AGENTS, run_config=configs[1])
    context = Context(
        run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=configs[1]
    )
    server_app.app(grid, context)
    engine, in_process = _mail(tmp_path / "engine"), _mail(tmp_path / "grid")
    assert [len(mail) for mail in in_process] == [NUM_AGENTS] * 8
    assert engine == in_process


NEURAL = EXAMPLES / "neural-bandit"


def _sent_to_all(folder: Path) -> list[FloatArray]:
    """Return the iterates of phase I, if there is one, and the totals of phase II."""
    with Journal(None, folder / "server.sqlite") as journal:
        return [row.vectors for row in journal.ledger()]


@pytest.mark.parametrize(
    ("epsilon", "fewest"),
    [
        # Ten steps of phase I, and at least one total.
        pytest.param(0.0, 11, marks=pytest.mark.slow),
        # Ten releases: phase I is left out.
        pytest.param(8.0, 10, marks=pytest.mark.gate),
    ],
)
def test_the_engine_gives_the_same_neural_bandits(
    tmp_path: Path,
    flwr_run: FlwrRun,
    monkeypatch: pytest.MonkeyPatch,
    epsilon: float,
    fewest: int,
) -> None:
    configs: list[UserConfig] = [
        {
            "num-agents": NUM_AGENTS,
            "num-evaluations": 12,
            "environment-seed": 3,
            "width": 5,
            "epsilon": epsilon,
            "experiment": True,
            "server-folder": str(tmp_path / name),
        }
        for name in ("engine", "grid")
    ]
    printed = flwr_run(NEURAL, NUM_AGENTS, configs[0])
    assert "NOT PRIVATE" in printed
    monkeypatch.syspath_prepend(str(NEURAL))
    from kitchens import client_app, server_app

    grid = InProcessGrid(client_app.app, NUM_AGENTS, run_config=configs[1])
    context = Context(
        run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=configs[1]
    )
    server_app.app(grid, context)
    engine, in_process = map(_sent_to_all, (tmp_path / "engine", tmp_path / "grid"))
    assert len(engine) == len(in_process) >= fewest
    for row, other in zip(engine, in_process, strict=True):
        np.testing.assert_array_equal(row, other)

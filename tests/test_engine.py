"""`flwr run` on Flower's simulation engine gives the in-process grid's histories."""

from pathlib import Path

import pytest
from flwr.app import Context, RecordDict, UserConfig

from flwr_fbo import InProcessGrid
from tests.engine import FlwrRun

EXAMPLE = Path(__file__).parents[1] / "examples" / "digits"
NUM_AGENTS, NUM_ROUNDS = 4, 6  # round 1 is the initial points: five queries an agent


def _run_config(folder: Path) -> UserConfig:
    return {
        "num-agents": NUM_AGENTS,
        "num-rounds": NUM_ROUNDS,
        "data-seed": 0,
        "experiment": True,
        "trial-folder": str(folder),
    }


def _trials(folder: Path) -> list[str]:
    return [(folder / f"client-{n}.jsonl").read_text() for n in range(NUM_AGENTS)]


def _in_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
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
    assert [len(t.splitlines()) for t in trials] == [10 + NUM_ROUNDS - 1] * NUM_AGENTS


@pytest.mark.slow
def test_the_engine_gives_the_same_histories(
    tmp_path: Path, flwr_run: FlwrRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / "engine", tmp_path / "in-process"]
    for folder in folders:
        folder.mkdir()
    printed = flwr_run(EXAMPLE, NUM_AGENTS, _run_config(folders[0]))
    assert "Privacy spent: epsilon" in printed, printed
    assert _trials(folders[0]) == _in_process(folders[1], monkeypatch)

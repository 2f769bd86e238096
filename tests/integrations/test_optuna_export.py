"""Journals copied to Optuna: into the file that is named, trials in their length."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
from optuna.distributions import FloatDistribution

from flwr_fbo import FedVote, InProcessGrid, Seeds, tuning_app
from flwr_fbo.integrations.optuna_export import export_journal
from flwr_fbo.tuning.search.optuna_trials import set_times


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The journal of a site that has tuned for two rounds."""
    folder = tmp_path_factory.mktemp("site")
    space = {"x": FloatDistribution(0, 1)}
    app = tuning_app(lambda context: lambda trial: trial["x"])
    grid = InProcessGrid(app, 1, run_config={"fbo-folder": str(folder)})
    seeds = Seeds(noise=1)
    strategy = FedVote(space, "maximize", 1, epsilon=8, delta=1e-3, seeds=seeds)
    strategy.start(grid, num_rounds=2)
    [path] = folder.glob("study*.sqlite")
    return path


@pytest.mark.parametrize("name", ["a?b.db", "50%25.db", "a#b&c.db", "{x} y.db", "ü.db"])
def test_a_path_is_the_file_that_is_written(
    name: str, journal: Path, tmp_path: Path
) -> None:
    export_journal(journal, tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    again = export_journal(journal, tmp_path / name)
    assert len(again.trials) == 2


@pytest.mark.parametrize("content", ["schema", "no database"])
def test_a_database_that_is_not_optunas_is_named(
    content: str, journal: Path, tmp_path: Path
) -> None:
    path = tmp_path / "old.db"
    if content == "schema":
        with sqlite3.connect(path) as old:
            old.execute(
                "create table version_info (version_info_id integer primary key, "
                "schema_version integer, library_version text)"
            )
            old.execute("insert into version_info values (1, 3, '0.1.0')")
    else:
        path.write_text("no database" * 100)
    with pytest.raises(ValueError, match=r"storage=.*old\.db' cannot be used: "):
        export_journal(journal, path)


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize("started", [1792889998.5, 1774746000.0 - 1.5])
def test_a_trial_has_its_length_where_clocks_change(started: float) -> None:
    trial = optuna.create_trial(value=0.0)
    set_times(trial, started, started + 3)
    assert trial.duration is not None
    assert trial.duration.total_seconds() == 3


def test_a_clock_that_was_set_back_gives_no_negative_length() -> None:
    trial = optuna.create_trial(value=0.0)
    set_times(trial, 1000.0, 900.0)
    assert trial.duration is not None
    assert trial.duration.total_seconds() == 0

"""Journals copied to Optuna: into the file that is named, trials in their length."""

from __future__ import annotations

import sqlite3
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
from optuna.distributions import FloatDistribution
from typer.testing import CliRunner

from flwr_fbo import FedVote, InProcessGrid, Seeds, tuning_app
from flwr_fbo.cli import app
from flwr_fbo.integrations.optuna_export import export_journal
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.space.search_space import SearchSpace
from flwr_fbo.tuning.search.optuna_trials import set_times
from flwr_fbo.tuning.search.study import TuningStudy
from tests.support.federation import AGENT, SPACE, numpy_app, strategy


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The journal of a site that has tuned for two rounds."""
    folder = tmp_path_factory.mktemp("site")
    space = {"x": FloatDistribution(0, 1)}
    site = tuning_app(lambda context: lambda trial: trial["x"])
    grid = InProcessGrid(site, 1, run_config={"fbo-folder": str(folder)})
    seeds = Seeds(noise=1)
    study = FedVote(space, "maximize", 1, epsilon=8, delta=1e-3, seeds=seeds)
    study.start(grid, num_rounds=2)
    [path] = folder.glob("study*.sqlite")
    return path


def test_a_journal_becomes_an_optuna_study(tmp_path: Path) -> None:
    config = {"fbo-folder": str(tmp_path)}
    grid = InProcessGrid(numpy_app(), 4, run_config=dict(config))
    federation = strategy()
    federation.start(grid, num_rounds=4)
    agent = grid.agents(federation.study)[2]
    (path,) = tmp_path.glob("*-agent-2.sqlite")
    url = f"sqlite:///{tmp_path}/optuna.db"
    done = CliRunner().invoke(app, ["export", str(path), url])
    assert done.exit_code == 0, done.output
    assert "7 trials" in done.output
    study = export_journal(path, url)
    assert [t.value for t in study.trials] == agent.values
    rounds = [t.user_attrs["round"] for t in study.trials]
    assert rounds == [iteration + 1 for iteration in agent.iterations]
    sources = [t.user_attrs["source"] for t in study.trials]
    assert sources[:4] == ["start"] * 4
    assert set(sources[4:]) <= {"own search", "federation"}
    assert sources[4] == "federation"  # 1 - p_1 = 1
    assert all(t.duration is not None and t.duration.days == 0 for t in study.trials)
    assert stat.S_IMODE((tmp_path / "optuna.db").stat().st_mode) == 0o600
    assert len(export_journal(path, url).trials) == 7  # those there already stay
    with pytest.raises(ValueError, match="storage="):
        export_journal(path, f"sqlite:///{path}")
    with pytest.raises(ValueError, match="storage="):
        export_journal(path, "sqlite://")
    done = CliRunner().invoke(app, ["export", str(path), "redis://x"])
    assert done.exit_code == 1
    assert "Traceback" not in done.output


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


def test_journals_that_are_no_clients(tmp_path: Path) -> None:
    missing = tmp_path / "nothing.sqlite"
    path = tmp_path / "server.sqlite"
    Journal({"kind": "server"}, path).close()
    with pytest.raises(JournalError, match="of kind 'server'"):
        export_journal(path, f"sqlite:///{tmp_path}/new.db")
    assert not (tmp_path / "new.db").exists()
    done = CliRunner().invoke(
        app, ["export", str(missing), f"sqlite:///{tmp_path}/x.db"]
    )
    assert done.exit_code == 1
    assert done.output.startswith("Error: There is no journal")
    assert not (tmp_path / "x.db").exists()
    path = tmp_path / "agent.sqlite"
    study = TuningStudy(SearchSpace(SPACE), "maximize", AGENT, 1, 2, "x")
    Journal({"kind": "agent", "slot": 0, **study.to_dict()}, path).close()
    done = CliRunner().invoke(app, ["export", str(path), "nonsense"])
    assert done.exit_code == 2
    assert "'nonsense' is not a URL" in done.output
    done = CliRunner().invoke(app, ["export", str(path), f"sqlite:///{tmp_path}"])
    assert done.exit_code == 1
    assert "unable to open database" in done.output

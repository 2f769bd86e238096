"""A tuner's folder as an Optuna study."""

import math
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import InMemoryStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from typer.testing import CliRunner

from flwr_fbo.cli import app
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.tuner.records.trials_record import FILE_NAME
from flwr_fbo.tuner.records.tuner_export import export_tuner
from tests.support.tuner_folders import record, record_first_rung

optuna.logging.set_verbosity(optuna.logging.ERROR)


@pytest.fixture(scope="module")
def tuners(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of tuners that are complete: an export only reads them."""
    root = tmp_path_factory.mktemp("tuners")
    folders = {kind: root / kind for kind in ("private", "exact")}
    for kind, folder in folders.items():
        record(folder, kind)
    return folders


@pytest.mark.parametrize("kind", ["private", "exact"])
def test_each_trial_has_its_setting_its_scores_and_its_end(
    kind: str, tuners: dict[str, Path], tmp_path: Path
) -> None:
    result = record(tuners[kind], kind)  # complete: it asks nobody
    url = f"sqlite:///{tmp_path}/trials.db"
    study = export_tuner(tuners[kind], url)
    # Ranks are maximised, and the exact distance is not.
    assert study.direction.name == ("MAXIMIZE" if kind == "private" else "MINIMIZE")
    assert study.user_attrs["private"] is (kind == "private")
    assert [t.params for t in study.trials] == list(result.settings)
    last = result.rungs[-1]
    for number, trial in enumerate(study.trials):
        rungs = [rung for rung in result.rungs if number in rung.trials]
        scores = {r.rounds: r.scores[r.trials.index(number)] for r in rungs}
        assert trial.intermediate_values == scores
        assert trial.value == scores[rungs[-1].rounds]
        complete = trial.state == TrialState.COMPLETE
        assert complete == (number in last.trials)
        assert complete or trial.state == TrialState.PRUNED
        assert trial.user_attrs["trial"] == number
    assert study.best_trial.number == result.best_trial
    if kind == "exact":  # of the trials that have failed
        assert math.inf in [trial.value for trial in study.trials]
    assert stat.S_IMODE((tmp_path / "trials.db").stat().st_mode) == 0o600
    assert len(export_tuner(tuners[kind], url).trials) == len(study.trials)


def test_trials_under_way_come_when_they_have_ended(tmp_path: Path) -> None:
    record_first_rung(tmp_path / "a", "seeded")
    url = f"sqlite:///{tmp_path}/trials.db"
    study = export_tuner(tmp_path / "a", url)
    assert [t.state for t in study.trials] == [TrialState.PRUNED] * 4
    result = record(tmp_path / "a", "seeded")
    again = export_tuner(tmp_path / "a", url)
    assert again.study_name == study.study_name
    numbers = [trial.user_attrs["trial"] for trial in again.trials]
    assert sorted(numbers) == list(range(6))
    assert again.best_trial.user_attrs["trial"] == result.best_trial


def test_a_default_outside_the_space_is_no_parameter(tmp_path: Path) -> None:
    record(tmp_path / "a", "exact", **{"learning-rate": 7.0})
    study = export_tuner(tmp_path / "a", f"sqlite:///{tmp_path}/trials.db")
    assert study.trials[0].params == {"local-epochs": 1}
    settings = {"learning-rate": 7.0, "local-epochs": 1}
    assert study.trials[0].user_attrs["settings"] == settings


def test_tuners_have_studies_of_their_own(
    tuners: dict[str, Path], tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/trials.db"
    names = {export_tuner(folder, url).study_name for folder in tuners.values()}
    assert len(names) == 2


def test_the_command_takes_a_folder(tuners: dict[str, Path], tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/trials.db"
    done = CliRunner().invoke(app, ["export", str(tuners["private"]), url])
    assert done.exit_code == 0, done.output
    assert done.output.startswith("6 trials in study federation-tuner-")


@pytest.mark.parametrize("kind", ["path", "database", "memory", "journal"])
def test_storages_that_are_no_text(
    kind: str, tuners: dict[str, Path], tmp_path: Path
) -> None:
    path = tmp_path / "trials.db"
    storages: dict[str, Callable[[], Any]] = {
        "path": lambda: path,
        "database": lambda: RDBStorage(f"sqlite:///{path}"),
        "memory": InMemoryStorage,
        "journal": lambda: JournalStorage(JournalFileBackend(str(path))),
    }
    study = export_tuner(tuners["private"], storages[kind]())
    assert len(study.trials) == 6
    if kind in ("path", "database"):
        [name] = optuna.get_all_study_names(f"sqlite:///{path}")
        assert name == study.study_name


@pytest.mark.parametrize(
    ("storage", "seen"),
    [
        ("trials.db", "storage='trials.db' is not allowed: a URL such as"),
        (3, "and it is a int"),
        (None, "and it is a NoneType"),
        ("sqlite://", "a file, and not"),
    ],
)
def test_other_storages_are_refused(
    storage: Any, seen: str, tuners: dict[str, Path]
) -> None:
    with pytest.raises(ValueError, match=seen):
        export_tuner(tuners["private"], storage)


def test_what_is_no_tuner_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/trials.db"
    with pytest.raises(JournalError, match="There is no journal"):
        export_tuner(tmp_path, url)
    Journal({"kind": "server"}, tmp_path / FILE_NAME).close()
    with pytest.raises(JournalError, match="of kind 'server'"):
        export_tuner(tmp_path, url)
    with pytest.raises(ValueError, match="storage="):
        export_tuner(tmp_path, f"sqlite:///{tmp_path / FILE_NAME}")
    with pytest.raises(ValueError, match="not the journal itself"):
        export_tuner(tmp_path, tmp_path / FILE_NAME)
    assert not (tmp_path / "trials.db").exists()

"""A tuner that was ended goes on in a new run, and releases no rung twice."""

import logging
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flwr_fbo import Halving, PrivateChoice, Seeds
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.tuner.message_headers import KIND
from flwr_fbo.tuner.records.trials_record import FILE_NAME
from flwr_fbo.tuning import FederationResult
from tests.support.apps import (
    RUN_CONFIG,
    DyingGrid,
    Ended,
    in_process,
    main_of,
    message_app,
    recording,
    server_context,
    tuner,
)
from tests.support.killing import killed_in

SCHEDULE = Halving(4, (1, 2), parallel=2)
NUM_RUNGS = len(SCHEDULE.rungs)


def _study(folder: Path | None, **options: Any) -> Any:
    return tuner(**{"schedule": SCHEDULE, "folder": folder, **options})


def _ledger(folder: Path) -> list[tuple[int, list[float]]]:
    """Return number and content of each release on record."""
    with Journal(None, folder / FILE_NAME) as journal:
        assert journal.identity["kind"] == KIND
        return [(row.iteration, row.vectors.tolist()) for row in journal.ledger()]


@cache
def _whole() -> tuple[FederationResult, list[str]]:
    """Return the result of one that is not ended, and its sends."""
    grid = recording()
    return _study(None).start(main_of(), grid, server_context()), grid.sends


def test_it_goes_on_after_any_send(tmp_path: Path) -> None:
    """With the recorded choices; the trials that are left are trained again."""
    whole, sends = _whole()
    decided = set()
    for dies_at in range(0, len(sends), 2):
        folder = tmp_path / str(dies_at)
        dying = DyingGrid(message_app(), 6, run_config=RUN_CONFIG)
        dying.dies_at = dies_at
        with pytest.raises(Ended):
            _study(folder).start(main_of(), dying, server_context())
        before = _ledger(folder)
        decided.add(len(before))
        # The clients of the new run know nothing, or what was left of the old one.
        grid: Any = in_process() if dies_at % 4 else dying
        dying.dies_at = -1
        result = _study(folder).start(main_of(), grid, server_context())
        after = _ledger(folder)
        assert after[: len(before)] == before
        assert [number for number, _ in after] == list(range(NUM_RUNGS))
        assert result == whole
    assert decided == set(range(NUM_RUNGS))


def test_a_rung_is_decided_with_half_of_what_is_on_record(tmp_path: Path) -> None:
    """After a restart too. By its own scores alone another trial would have won."""
    options = {
        "privacy": PrivateChoice(0.7, 1e-3),
        "seeds": Seeds(study=1, noise=107),
    }
    dying = DyingGrid(message_app(), 6, run_config=RUN_CONFIG)
    dying.dies_at = 6
    with pytest.raises(Ended):
        _study(tmp_path, **options).start(main_of(), dying, server_context())
    assert len(_ledger(tmp_path)) == 1
    study = _study(tmp_path, **options)
    result = study.start(main_of(), in_process(), server_context())
    before, last = result.rungs
    assert [list(before.scores), list(last.scores)] == [
        scores for _, scores in _ledger(tmp_path)
    ]
    carried = [before.scores[before.trials.index(trial)] for trial in last.trials]
    decided = np.array(last.scores) + 0.5 * np.array(carried)
    assert last.survivors == (last.trials[np.argmax(decided)],)
    assert np.argmax(decided) != np.argmax(last.scores)


def test_real_noise_is_not_drawn_again(tmp_path: Path) -> None:
    dying = DyingGrid(message_app(), 6, run_config=RUN_CONFIG)
    dying.dies_at = 5
    with pytest.raises(Ended):
        _study(tmp_path, seeds=Seeds()).start(main_of(), dying, server_context())
    before = _ledger(tmp_path)
    assert len(before) > 0
    for _ in range(2):
        _study(tmp_path, seeds=Seeds()).start(main_of(), in_process(), server_context())
        after = _ledger(tmp_path)
        assert after[: len(before)] == before
        before = after


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tuner that has come to its end."""
    folder = tmp_path_factory.mktemp("complete")
    _start(folder)
    return folder


def _again(complete: Path, folder: Path, context: Any = None, **options: Any) -> Any:
    """Start another tuner in a copy of a folder; assert that nobody is asked."""
    shutil.copytree(complete, folder, dirs_exist_ok=True)
    grid = recording()
    context = server_context() if context is None else context
    try:
        return _study(folder, **options).start(main_of(), grid, context)
    finally:
        assert grid.sends == []


def test_a_complete_one_asks_nobody(
    complete: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "flwr.fbo"):
        assert _again(complete, tmp_path) == _whole()[0]
    assert "is complete" in caplog.text


def test_another_number_of_parallel_trials_may_go_on(
    complete: Path, tmp_path: Path
) -> None:
    schedule = replace(SCHEDULE, parallel=1)
    assert _again(complete, tmp_path, schedule=schedule) == _whole()[0]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("rounds", {"schedule": replace(SCHEDULE, rounds=(2, 3))}),
        ("privacy", {"privacy": PrivateChoice(1.0, 1e-3)}),
        ("privacy", {"privacy": None}),
        ("noise_seed", {"seeds": Seeds(study=1, noise=3)}),
        ("metric", {"metric": "calls"}),
        ("num_agents", {"num_agents": 7}),
        ("enqueue", {"enqueue": [{"local-epochs": 2}]}),
    ],
)
def test_other_settings_are_refused(
    complete: Path, tmp_path: Path, name: str, options: dict[str, Any]
) -> None:
    with pytest.raises(JournalError, match=name):
        _again(complete, tmp_path, **options)


def test_other_defaults_of_the_app_are_refused(complete: Path, tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="defaults"):
        _again(complete, tmp_path, server_context(**{"local-epochs": 2}))


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"model": "vit"}, r"run_config\['model'\].*None.*'vit'"),
        ({"num-server-rounds": 8}, r"run_config\['num-server-rounds'\].*4.*8"),
        ({"unused": True}, r"run_config\['unused'\]"),
    ],
)
def test_another_run_config_is_another_training(
    complete: Path, tmp_path: Path, changed: dict[str, Any], named: str
) -> None:
    """Also of keys that are not tuned; and where a rung is left."""
    with pytest.raises(JournalError, match=named):
        _again(complete, tmp_path / "complete", server_context(**changed))
    dying = DyingGrid(message_app(), 6, run_config=RUN_CONFIG)
    dying.dies_at = 5
    folder = tmp_path / "part"
    with pytest.raises(Ended):
        _study(folder).start(main_of(), dying, server_context())
    before = _ledger(folder)
    with pytest.raises(JournalError, match=named):
        _study(folder).start(main_of(), dying, server_context(**changed))
    assert _ledger(folder) == before


def test_another_version_of_the_app_is_another_training(
    complete: Path, tmp_path: Path
) -> None:
    shutil.copytree(complete, tmp_path, dirs_exist_ok=True)
    grid = recording()
    grid.set_run(replace(grid.run, fab_id="me/app", fab_version="1.1.0"))
    with pytest.raises(JournalError, match=r"'app': \('', 'me/app 1.1.0'\)"):
        _study(tmp_path).start(main_of(), grid, server_context())
    assert grid.sends == []


def test_the_folder_itself_may_be_a_key_of_the_run_config(
    complete: Path, tmp_path: Path
) -> None:
    """Empty at first, and then the one of a run that was ended."""
    assert _again(complete, tmp_path, server_context(folder=str(tmp_path)))


def _start(folder: Path) -> None:
    _study(folder).start(main_of(), in_process(), server_context())


@pytest.mark.slow
@pytest.mark.no_cover
def test_it_goes_on_after_sigkill_between_any_statements(tmp_path: Path) -> None:
    whole, _ = _whole()
    statements = killed_in(None, _start, tmp_path / "whole")
    assert statements is not None
    decided = []
    for i in range(6):
        folder = tmp_path / str(i)
        assert killed_in(round((i + 0.5) / 6 * statements), _start, folder) is None
        file = folder / FILE_NAME
        # It may have been killed after the file was made, and before it had a table.
        before = _ledger(folder) if file.exists() and file.stat().st_size else []
        decided.append(len(before))
        result = _study(folder).start(main_of(), in_process(), server_context())
        assert _ledger(folder)[: len(before)] == before
        assert result == whole
    assert decided == sorted(decided)
    assert decided[0] < decided[-1] <= NUM_RUNGS

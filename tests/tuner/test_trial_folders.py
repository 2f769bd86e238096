"""Each trial's `main` works in a folder of its own, and nobody else does."""

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from flwr_fbo import Halving, tuner_mod
from flwr_fbo.tuner.records.trials_record import FILE_NAME
from flwr_fbo.tuner.trials.trial_grid import Main
from flwr_fbo.tuning import FederationResult
from tests.support.apps import (
    NUM_CLIENTS,
    RUN_CONFIG,
    Ended,
    RecordingGrid,
    main_of,
    message_app,
    server_context,
    tuner,
)

SCHEDULE = Halving(6, (1, 3), parallel=2)


class PlacedGrid(RecordingGrid):
    """Notes where it, and its clients, work; and can end the tuner."""

    def __init__(self, dies_at: int = -1) -> None:
        def placed(message: Message, context: Context, call_next: Any) -> Message:
            self.folders["client"].add(os.getcwd())
            out: Message = call_next(message, context)
            return out

        app = message_app(first=(placed, tuner_mod, placed))
        super().__init__(app, NUM_CLIENTS, run_config=RUN_CONFIG)
        self.folders: dict[str, set[str]] = {"grid": set(), "client": set()}
        self._dies_at = dies_at

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        self.folders["grid"].add(os.getcwd())
        if len(self.sends) == self._dies_at:
            raise Ended
        return super().send_and_receive(messages, timeout=timeout)


def _rate(context: Context) -> float:
    return float(context.run_config["learning-rate"])


def _writes(grid: Grid, context: Context) -> None:
    """Append the rate to a file, before each round of training."""

    class Writing(FedAvg):
        def configure_train(self, *args: Any) -> Any:
            with Path("rates").open("a") as file:
                file.write(f"{_rate(context)}\n")
            return super().configure_train(*args)

    main_of(Writing)(grid, context)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that this process works in."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def _start(main: Main, folder: Path | None, grid: PlacedGrid) -> FederationResult:
    study = tuner(schedule=SCHEDULE, folder=folder)
    return study.start(main, grid, server_context())


def test_files_of_a_trial_are_its_own(here: Path, tmp_path: Path) -> None:
    grid, folder = PlacedGrid(), tmp_path / "record"
    result = _start(_writes, folder, grid)
    names = {f"trial-{number}" for number in range(SCHEDULE.trials)}
    assert {path.name for path in folder.iterdir()} - {FILE_NAME} == names
    for number, settings in enumerate(result.settings):
        (file,) = (folder / f"trial-{number}").iterdir()
        assert set(file.read_text().split()) == {str(settings["learning-rate"])}
    # Neither tuner nor Grid nor clients have seen it.
    assert Path.cwd() == here
    assert grid.folders == {"grid": {str(here)}, "client": {str(here)}}
    assert list(here.iterdir()) == []
    # Nor does the real training.
    _writes(*result.apply(grid, server_context()))
    assert [path.name for path in here.iterdir()] == ["rates"]
    assert grid.folders == {"grid": {str(here)}, "client": {str(here)}}


def test_without_a_folder_trials_work_where_the_process_does(
    here: Path, tmp_path: Path
) -> None:
    """And the choice is the same."""
    result = _start(_writes, None, PlacedGrid())
    rates = {float(rate) for rate in (here / "rates").read_text().split()}
    assert rates == {settings["learning-rate"] for settings in result.settings}
    assert result == _start(_writes, tmp_path / "record", PlacedGrid())


def test_folders_of_a_killed_run_are_made_anew(here: Path, tmp_path: Path) -> None:
    """Those of the trials that are left."""
    folder = tmp_path / "record"
    with pytest.raises(Ended):
        _start(_writes, folder, PlacedGrid(dies_at=8))
    before = {p: (p / "rates").read_text() for p in folder.glob("trial-*")}
    assert len(before) == SCHEDULE.trials
    for path in before:
        (path / "left-over").touch()
    assert Path.cwd() == here
    first, last = _start(_writes, folder, PlacedGrid()).rungs
    left = {f"trial-{number}" for number in last.trials}
    assert len(left) < len(first.trials)
    for path, text in before.items():
        assert (path / "left-over").exists() == (path.name not in left)
        lines = (path / "rates").read_text().splitlines()
        if path.name in left:
            assert len(lines) >= 3
            assert len(set(lines)) == 1
        else:
            assert "\n".join(lines) + "\n" == text


def test_a_main_may_go_elsewhere(here: Path, tmp_path: Path) -> None:
    """Each has gone to a folder within its own, and finds itself there again."""
    seen: Counter[str] = Counter()

    def main(grid: Grid, context: Context) -> None:
        Path("deeper").mkdir()
        os.chdir("deeper")

        class Seeing(FedAvg):
            def configure_train(self, *args: Any) -> Any:
                seen[str(Path.cwd())] += 1
                return super().configure_train(*args)

        main_of(Seeing)(grid, context)

    grid, folder = PlacedGrid(), tmp_path / "record"
    _start(main, folder, grid)
    wanted = {str(folder / f"trial-{n}" / "deeper") for n in range(SCHEDULE.trials)}
    assert set(seen) == wanted
    assert max(seen.values()) >= 3
    assert Path.cwd() == here
    assert grid.folders == {"grid": {str(here)}, "client": {str(here)}}


def test_a_main_may_remove_its_folder(here: Path, tmp_path: Path) -> None:
    def main(grid: Grid, context: Context) -> None:
        Path.cwd().rmdir()
        main_of()(grid, context)

    _start(main, tmp_path / "record", PlacedGrid())
    assert Path.cwd() == here


def test_a_main_that_fails_leaves_the_process_where_it_was(
    here: Path, tmp_path: Path
) -> None:
    def main(grid: Grid, context: Context) -> None:
        Path("data.csv").read_text()

    (here / "data.csv").touch()
    with pytest.raises(FileNotFoundError, match=r"data\.csv"):
        _start(main, tmp_path / "record", PlacedGrid())
    assert Path.cwd() == here
    _start(main_of(), None, PlacedGrid())

"""Callbacks of a `FederationTuner`: each rung once, and what they cannot break."""

from pathlib import Path
from typing import Any

import pytest

from flwr_fbo import Halving, InProcessGrid
from flwr_fbo.integrations import Callback
from flwr_fbo.study.callbacks import DecidedRung, Started
from flwr_fbo.tuning import FederationResult
from tests.support.apps import (
    NUM_CLIENTS,
    RUN_CONFIG,
    in_process,
    main_of,
    message_app,
    server_context,
    tuner,
)

SCHEDULE = Halving(4, (1, 2))
NUM_RUNGS = len(SCHEDULE.rungs)


class Recorded(Callback):
    """Keeps what it is told; is ended, as its process is, at some rung."""

    def __init__(self, dies_at: int = 0) -> None:
        self.started: list[Started] = []
        self.rungs: list[DecidedRung] = []
        self.results: list[Any] = []
        self.dies_at = dies_at

    def on_start(self, started: Started) -> None:
        self.started.append(started)

    def on_rung(self, decided: DecidedRung) -> None:
        if decided.number == self.dies_at:
            raise KeyboardInterrupt
        self.rungs.append(decided)

    def on_end(self, result: Any) -> None:
        self.results.append(result)


class Failing(Callback):
    """Fails wherever it can."""

    def on_start(self, started: Started) -> None:
        raise OSError("no disk")

    def on_rung(self, decided: DecidedRung) -> None:
        raise ValueError("no server")

    def on_end(self, result: Any) -> None:
        raise AssertionError


def _run(
    folder: Path | None, *callbacks: Callback, grid: Any = None, **options: Any
) -> FederationResult:
    study = tuner(
        **{"schedule": SCHEDULE, "folder": folder, "callbacks": callbacks, **options}
    )
    grid = in_process() if grid is None else grid
    return study.start(main_of(), grid, server_context())


def _assert_are_of(told: list[DecidedRung], result: FederationResult) -> None:
    for rung, decided in zip(told, result.rungs, strict=True):
        assert rung.number == result.rungs.index(decided) + 1
        assert rung.trials == decided.trials
        assert rung.rounds == decided.rounds
        assert rung.scores == decided.scores
        assert rung.survivors == decided.survivors
        assert rung.settings == tuple(result.settings[t] for t in decided.trials)


def test_they_are_told_of_start_rungs_and_choice() -> None:
    told = Recorded()
    result = _run(None, told)
    _assert_are_of(told.rungs, result)
    epsilons = [rung.epsilon for rung in told.rungs]
    assert all(epsilon is not None for epsilon in epsilons)
    assert epsilons == sorted(set(epsilons), key=lambda e: e or 0.0)
    assert result.privacy_spent is not None
    assert epsilons[-1] == result.privacy_spent.epsilon
    assert told.results == [result]
    (started,) = told.started
    assert started.method == "FederationTuner"
    assert started.num_done == 0
    assert started.settings["privacy"]["epsilon"] == 1000.0
    assert not [name for name in started.settings if "seed" in name]


def test_without_privacy_there_is_no_epsilon() -> None:
    told = Recorded()
    options: dict[str, Any] = {"privacy": None, "schedule": Halving(4, (1,))}
    _assert_are_of(told.rungs, _run(None, told, **options))
    assert [rung.epsilon for rung in told.rungs] == [None]


def test_one_that_fails_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    told = Recorded()
    result = _run(None, Failing(), told)
    assert result == _run(None)
    assert len(told.rungs) == NUM_RUNGS
    lines = [r.getMessage() for r in caplog.records if "callback" in r.getMessage()]
    assert len(lines) == 1 + NUM_RUNGS + 1
    assert "Failing has failed in on_rung; the study goes on: ValueError" in lines[1]


@pytest.mark.parametrize("dies_at", range(1, NUM_RUNGS + 1))
def test_killed_between_record_and_report_it_is_in_the_result_alone(
    tmp_path: Path, dies_at: int
) -> None:
    first, second = Recorded(dies_at), Recorded()
    with pytest.raises(KeyboardInterrupt):
        _run(tmp_path, first)
    result = _run(tmp_path, second)
    reported = [rung.number for rung in first.rungs + second.rungs]
    assert reported == [n for n in range(1, NUM_RUNGS + 1) if n != dies_at]
    assert second.started[0].num_done == dies_at
    assert second.started[0].study == first.started[0].study
    assert second.results == [result]
    assert len(result.rungs) == NUM_RUNGS


def test_two_tuners_have_two_names() -> None:
    told = Recorded()
    for _ in range(2):
        _run(None, told, schedule=Halving(2, (1,)))
    assert len({started.study for started in told.started}) == 2


class DyingGrid(InProcessGrid):
    """Raises in place of sending, once a rung is decided."""

    told = Recorded()

    def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
        if self.told.rungs:
            raise KeyboardInterrupt
        return super().send_and_receive(messages, timeout=timeout)


def test_no_rung_is_reported_twice(tmp_path: Path) -> None:
    """What was not decided yet is compared again, and reported then."""
    first, second = Recorded(), Recorded()
    grid = DyingGrid(message_app(), NUM_CLIENTS, run_config=RUN_CONFIG)
    grid.told = first
    with pytest.raises(KeyboardInterrupt):
        _run(tmp_path, first, grid=grid)
    result = _run(tmp_path, second)
    assert len(first.rungs) == 1
    _assert_are_of(first.rungs + second.rungs, result)

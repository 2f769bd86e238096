"""Callbacks of strategies: what they are told, once, and what they cannot break."""

from pathlib import Path
from typing import Any

import pytest

from flwr_fbo import FTS, Host, InProcessGrid
from flwr_fbo.integrations import Callback
from flwr_fbo.strategies.study_record import StudyRecord
from flwr_fbo.study.callbacks import Round, Started
from flwr_fbo.tuning import TuningResult
from tests.support.bandit_sites import APP, M, fed_ucb
from tests.support.federation import NUM_AGENTS, SPACE, numpy_app, strategy

NUM_ROUNDS = 4


class Recorded(Callback):
    """Keeps what it is told; is ended, as its process is, in some round."""

    def __init__(self, dies_in: int = 0) -> None:
        self.started: list[Started] = []
        self.rounds: list[Round] = []
        self.results: list[Any] = []
        self.errors: list[BaseException] = []
        self.dies_in = dies_in

    def on_start(self, started: Started) -> None:
        assert not self.rounds
        self.started.append(started)

    def on_round(self, finished: Round) -> None:
        assert not self.results
        if finished.server_round == self.dies_in:
            raise KeyboardInterrupt
        self.rounds.append(finished)

    def on_error(self, error: BaseException) -> None:
        self.errors.append(error)

    def on_end(self, result: Any) -> None:
        self.results.append(result)


class Failing(Callback):
    """Fails wherever it can."""

    def on_start(self, started: Started) -> None:
        raise OSError("no disk")

    def on_round(self, finished: Round) -> None:
        raise ValueError("no server")

    def on_end(self, result: Any) -> None:
        raise AssertionError


class DyingGrid(InProcessGrid):
    """Raises in place of delivering the replies of one round."""

    dies_in = 0

    def pull_messages(self, message_ids: Any) -> Any:
        replies = list(super().pull_messages(message_ids))
        if replies and replies[0].metadata.group_id == str(self.dies_in):
            raise KeyboardInterrupt
        return replies


def _run(folder: Path, *told: Callback, dies_in: int = 0) -> TuningResult:
    config = {"fbo-folder": str(folder / "clients")}
    grid = DyingGrid(numpy_app(), NUM_AGENTS, run_config=dict(config))
    grid.dies_in = dies_in
    study = strategy(folder=folder / "server", callbacks=told)
    return study.start(grid, num_rounds=NUM_ROUNDS)


def _names(value: Any) -> list[str]:
    """Return the names of all settings, of those inside others too."""
    if isinstance(value, dict):
        return [*value, *(name for one in value.values() for name in _names(one))]
    return []


def test_they_are_told_of_start_rounds_and_result(tmp_path: Path) -> None:
    told = Recorded()
    result = _run(tmp_path, told)
    assert told.rounds == result.rounds
    assert [one.release for one in told.rounds] == [1, 2, 3, 0]
    assert told.results == [result]
    assert told.results[0].recommendation.score > 0
    (started,) = told.started
    assert started.method == "DPFTSDE"
    assert started.num_done == 0
    assert started.settings["num_rounds"] == NUM_ROUNDS
    assert started.settings["agent"]["num_features"] == 30
    assert [name for name in _names(started.settings) if "seed" in name] == []


def test_bandits_and_relays_have_them_too() -> None:
    told = Recorded()
    result = fed_ucb(callbacks=[told]).start(InProcessGrid(APP, M))
    assert told.rounds == result.rounds
    assert told.results == [result]
    relayed = Recorded()
    relay, grid = FTS(SPACE, "maximize", NUM_AGENTS), InProcessGrid(numpy_app(), 4)
    relay.start(grid, num_rounds=2, host=Host(callbacks=[relayed]))
    assert [one.epsilon for one in relayed.rounds] == [None, None]


def test_one_that_fails_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told = Recorded()
    result = _run(tmp_path / "a", Failing(), told)
    plain = _run(tmp_path / "b")
    assert (result.rounds, result.recommended) == (plain.rounds, plain.recommended)
    assert result.privacy_spent == plain.privacy_spent
    assert told.rounds == result.rounds
    assert told.results == [result]
    lines = [r.getMessage() for r in caplog.records if "callback" in r.getMessage()]
    assert len(lines) == 1 + NUM_ROUNDS + 1
    assert {r.levelname for r in caplog.records if r.getMessage() in lines} == {
        "WARNING"
    }
    assert (
        "Failing has failed in on_start; the study goes on: OSError('no d" in lines[0]
    )
    assert "Failing has failed in on_round; the study goes on: ValueErr" in lines[1]


@pytest.mark.parametrize("dies_in", [1, 3])
def test_no_round_is_reported_twice(tmp_path: Path, dies_in: int) -> None:
    """Its replies were lost: the round is played again, and reported then."""
    first, second = Recorded(), Recorded()
    with pytest.raises(KeyboardInterrupt) as raised:
        _run(tmp_path, first, dies_in=dies_in)
    assert first.errors == [raised.value]
    result = _run(tmp_path, second)
    assert not second.errors
    assert first.rounds + second.rounds == result.rounds
    assert second.started[0].num_done == len(first.rounds) == dies_in - 1
    assert second.started[0].study == first.started[0].study
    assert first.results == []


def test_a_round_that_was_not_committed_is_not_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, first, second = StudyRecord.save, Recorded(), Recorded()

    def full(self: StudyRecord, progress: Any) -> None:
        if len(progress.rounds) == 3:
            raise OSError("no space left on device")
        save(self, progress)

    with monkeypatch.context() as patch:
        patch.setattr(StudyRecord, "save", full)
        with pytest.raises(OSError, match="no space"):
            _run(tmp_path, first)
    result = _run(tmp_path, second)
    assert len(first.rounds) == 2
    assert first.rounds + second.rounds == result.rounds


@pytest.mark.parametrize("dies_in", [3, NUM_ROUNDS])
def test_killed_between_record_and_report_it_is_in_the_result_alone(
    tmp_path: Path, dies_in: int
) -> None:
    first, second = Recorded(dies_in), Recorded()
    with pytest.raises(KeyboardInterrupt):
        _run(tmp_path, first)
    result = _run(tmp_path, second)
    reported = [one.server_round for one in first.rounds + second.rounds]
    assert reported == [n for n in range(1, NUM_ROUNDS + 1) if n != dies_in]
    assert second.started[0].num_done == dies_in
    assert [one.server_round for one in result.rounds] == list(range(1, NUM_ROUNDS + 1))
    assert second.results == [result]


def test_a_complete_study_reports_its_result_again(tmp_path: Path) -> None:
    result, told = _run(tmp_path), Recorded()
    again = _run(tmp_path, told)
    assert told.started[0].num_done == NUM_ROUNDS
    assert told.rounds == []
    assert told.results == [again]
    assert again.recommended == result.recommended

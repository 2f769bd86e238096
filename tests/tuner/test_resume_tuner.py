"""A tuner that was ended goes on in a new run, and releases no rung twice."""

import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flwr_fbo import FederationResult, Halving, PrivateChoice, Seeds
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.tuner.envelope import KIND
from flwr_fbo.tuner.tuner_record import FILE_NAME
from tests.killing import killed_after
from tests.tuner.apps import (
    RecordingGrid,
    in_process,
    main_of,
    message_app,
    recording,
    server_context,
    tuner,
)

SCHEDULE = Halving(8, (1, 2, 4), parallel=3, batches=2)
NUM_RUNGS = len(SCHEDULE.rungs)


class Ended(Exception):  # noqa: N818
    """Stands for whatever ends a ServerApp."""


class DyingGrid(RecordingGrid):
    """Raises in place of delivering one of its sends."""

    dies_at = 0

    def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
        if len(self.sends) == self.dies_at:
            raise Ended
        return super().send_and_receive(messages, timeout=timeout)


def _study(folder: Path | None, **options: Any) -> Any:
    return tuner(**{"schedule": SCHEDULE, "folder": folder, **options})


def _ledger(folder: Path) -> list[tuple[int, list[float]]]:
    """Return number and content of each release on record."""
    with Journal(None, folder / FILE_NAME) as journal:
        assert journal.identity["kind"] == KIND
        return [(row.iteration, row.vectors.tolist()) for row in journal.ledger()]


def _whole() -> tuple[FederationResult, list[str]]:
    grid = recording()
    return _study(None).start(main_of(), grid, server_context()), grid.sends


def test_it_goes_on_after_any_send(tmp_path: Path) -> None:
    """With the recorded choices; the trials that are left are trained again."""
    whole, sends = _whole()
    decided = set()
    for dies_at in range(0, len(sends), 3):
        folder = tmp_path / str(dies_at)
        dying = DyingGrid(message_app(), 6, run_config=recording_config())
        dying.dies_at = dies_at
        with pytest.raises(Ended):
            _study(folder).start(main_of(), dying, server_context())
        before = _ledger(folder)
        decided.add(len(before))
        # The clients of the new run know nothing, or what was left of the old one.
        grid: Any = in_process() if dies_at % 2 else dying
        dying.dies_at = -1
        result = _study(folder).start(main_of(), grid, server_context())
        after = _ledger(folder)
        assert after[: len(before)] == before
        assert [number for number, _ in after] == list(range(NUM_RUNGS))
        assert result == whole
    assert decided == set(range(NUM_RUNGS))


def recording_config() -> dict[str, Any]:
    """Return the run config of the clients."""
    from tests.tuner.apps import RUN_CONFIG

    return RUN_CONFIG


def test_real_noise_is_not_drawn_again(tmp_path: Path) -> None:
    dying = DyingGrid(message_app(), 6, run_config=recording_config())
    dying.dies_at = 12
    with pytest.raises(Ended):
        _study(tmp_path, seeds=Seeds()).start(main_of(), dying, server_context())
    before = _ledger(tmp_path)
    assert len(before) > 0
    for _ in range(2):
        _study(tmp_path, seeds=Seeds()).start(main_of(), in_process(), server_context())
        after = _ledger(tmp_path)
        assert after[: len(before)] == before
        before = after


def test_a_complete_one_asks_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = _study(tmp_path).start(main_of(), in_process(), server_context())
    grid = recording()
    with caplog.at_level(logging.WARNING, "flwr.fbo"):
        again = _study(tmp_path).start(main_of(), grid, server_context())
    assert again == first
    assert grid.sends == []
    assert "is complete" in caplog.text


def test_another_number_of_parallel_trials_may_go_on(tmp_path: Path) -> None:
    first = _study(tmp_path).start(main_of(), in_process(), server_context())
    schedule = replace(SCHEDULE, parallel=1)
    study = _study(tmp_path, schedule=schedule)
    assert study.start(main_of(), in_process(), server_context()) == first


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("rounds", {"schedule": replace(SCHEDULE, rounds=(1, 2, 3))}),
        ("batches", {"schedule": replace(SCHEDULE, batches=1)}),
        ("privacy", {"privacy": PrivateChoice(1.0, 1e-3)}),
        ("privacy", {"privacy": None}),
        ("noise_seed", {"seeds": Seeds(study=1, noise=3)}),
        ("metric", {"metric": "calls"}),
        ("direction", {"direction": "maximize"}),
        ("num_agents", {"num_agents": 7}),
        ("enqueue", {"enqueue": [{"local-epochs": 2}]}),
    ],
)
def test_other_settings_are_refused(
    tmp_path: Path, name: str, options: dict[str, Any]
) -> None:
    _study(tmp_path).start(main_of(), in_process(), server_context())
    grid = recording()
    with pytest.raises(JournalError, match=name):
        _study(tmp_path, **options).start(main_of(), grid, server_context())
    assert grid.sends == []


def test_other_defaults_of_the_app_are_refused(tmp_path: Path) -> None:
    _study(tmp_path).start(main_of(), in_process(), server_context())
    other = server_context(**{"local-epochs": 2})
    with pytest.raises(JournalError, match="defaults"):
        _study(tmp_path).start(main_of(), in_process(), other)


def _start(folder: Path) -> None:
    _study(folder).start(main_of(), in_process(), server_context())


@pytest.mark.slow
@pytest.mark.no_cover
def test_it_goes_on_after_sigkill_at_any_instant(tmp_path: Path) -> None:
    whole, _ = _whole()
    began = time.monotonic()
    assert not killed_after(None, _start, tmp_path / "whole")
    lasts = time.monotonic() - began
    decided = []
    for i in range(6):
        folder = tmp_path / str(i)
        killed_after((i + 0.5) / 6 * lasts, _start, folder)
        before = _ledger(folder) if (folder / FILE_NAME).exists() else []
        decided.append(len(before))
        result = _study(folder).start(main_of(), in_process(), server_context())
        assert _ledger(folder)[: len(before)] == before
        assert result == whole
    assert min(decided) < NUM_RUNGS

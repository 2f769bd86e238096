"""What trials that wait hold in memory: as little as one training, and nothing else."""

import functools
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from flwr_fbo._compat import ensure_task_identity
from flwr_fbo.tuner.rungs import send_order, shared_sends
from flwr_fbo.tuner.trials import parked_arrays
from flwr_fbo.tuner.trials.parked_arrays import ParkedArrays
from flwr_fbo.tuner.trials.trial_grid import Main
from tests.support.apps import TWO_RUNGS, in_process, main_of, server_context, tuner

BYTES = Array(np.zeros(3)).data


def _model(value: float) -> ArrayRecord:
    return ArrayRecord({"w": Array(np.full(3, float(value)))})


def _parked(*models: ArrayRecord) -> ParkedArrays:
    """Return trials 0, 1, ... that have each sent a model."""
    ensure_task_identity()
    parked = ParkedArrays()
    for trial, model in enumerate(models):
        parked.note(trial, [Message(RecordDict({"arrays": model}), 1, "train")])
    return parked


@pytest.fixture
def _all_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parked_arrays, "_FEW_BYTES", 0)


@pytest.mark.usefixtures("_all_are_large")
def test_an_array_comes_back_as_it_was() -> None:
    model = _model(0)
    parked = _parked(model, _model(1))
    parked.put_away(0)
    parked.put_away(0)
    assert model["w"].data == b""
    parked.bring_back(0)
    parked.bring_back(0)
    assert model["w"].data == BYTES


@pytest.mark.usefixtures("_all_are_large")
def test_without_room_on_the_disk_arrays_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    model = _model(0)
    parked = _parked(model, _model(1))
    parked.put_away(0)
    parked.bring_back(0)
    assert model["w"].data == BYTES


@pytest.mark.usefixtures("_all_are_large")
def test_an_array_of_several_trials_stays() -> None:
    shared = _model(0)
    parked = _parked(shared, shared)
    parked.put_away(0)
    assert shared["w"].data == BYTES
    alone = _parked(shared)
    alone.put_away(0)  # of the first it is not known whether others have it
    assert shared["w"].data == BYTES


@pytest.mark.usefixtures("_all_are_large")
def test_an_array_that_nobody_holds_is_not_kept() -> None:
    model = _model(0)
    parked = _parked(model, _model(1))
    parked.put_away(0)
    del model
    parked.bring_back(0)
    assert parked.note(0, []) == 0


def _keeping_main(grid: Grid, context: Context) -> None:
    """Train with one initial model of all trials, as a pretrained one is."""
    FedAvg().start(grid, _pretrained(), num_rounds=4, train_config=_config(context))


@functools.cache
def _pretrained() -> ArrayRecord:
    return ArrayRecord({"w": Array(np.zeros(3))})


def _config(context: Context) -> Any:
    from flwr.app import ConfigRecord

    return ConfigRecord({"learning-rate": context.run_config["learning-rate"]})


@pytest.mark.parametrize("main", [main_of(), _keeping_main])
def test_results_do_not_depend_on_what_is_put_away(
    main: Main, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for few, most in ((10**9, 10**9), (0, 10**9), (0, 0)):
        monkeypatch.setattr(parked_arrays, "_FEW_BYTES", few)
        monkeypatch.setattr(send_order, "_MOST_BYTES", most)
        result = tuner(schedule=TWO_RUNGS).start(main, in_process(), server_context())
        found.append(result.rungs)
    assert found[0] == found[1] == found[2]


def test_no_trial_keeps_the_models_of_all_clients_while_it_waits() -> None:
    """Flower's strategies keep the last replies until they get the next ones."""
    replies: list[list[Message]] = []

    class Noting(FedAvg):
        def aggregate_train(self, server_round: int, replies_: Any) -> Any:
            replies.append(list(replies_))
            return super().aggregate_train(server_round, replies[-1])

    tuner(schedule=TWO_RUNGS).start(main_of(Noting), in_process(), server_context())
    # Two trials of the last rung may hold those of their last round.
    full = [one for one in replies if any(len(reply.content) for reply in one)]
    assert len(full) <= 2
    assert len(replies) == 6 + 2 * 2


def test_large_models_do_not_share_a_send(monkeypatch: pytest.MonkeyPatch) -> None:
    shared: list[int] = []
    next_trials = send_order.next_trials

    def noting(*about: Any) -> Any:
        trials = next_trials(*about)
        shared.append(len(trials) if trials[0].pending_type == "train" else 0)
        return trials

    monkeypatch.setattr(shared_sends, "next_trials", noting)
    for most, largest in ((10**9, 2), (6 * len(BYTES), 1), (0, 1)):
        shared.clear()
        monkeypatch.setattr(send_order, "_MOST_BYTES", most)
        tuner(schedule=TWO_RUNGS).start(main_of(), in_process(), server_context())
        assert max(shared) == largest

"""Trials share sends: what they cost on the clock of a Grid that takes 10 s a send."""

from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Message
from flwr.serverapp.strategy import FedAvg

from flwr_fbo import Halving
from flwr_fbo.tuner.rungs.send_order import next_trials
from flwr_fbo.tuner.trials.parked_arrays import ParkedArrays
from flwr_fbo.tuner.trials.trial_thread import TrialThread
from tests.support.apps import (
    NUM_CLIENTS,
    RUN_CONFIG,
    RecordingGrid,
    main_of,
    message_app,
    server_context,
    tuner,
)
from tests.support.shared_sends import SECONDS_A_SEND, SlowGrid


def _seconds(schedule: Halving) -> tuple[float, tuple[int, ...]]:
    grid = SlowGrid(message_app(), 2, run_config=RUN_CONFIG)
    context = server_context(**{"num-server-rounds": schedule.rounds[-1]})
    study = tuner(schedule=schedule, num_agents=2)
    result = study.start(main_of(), grid, context)
    return grid.clock, result.rungs[-1].survivors


def test_shared_sends_take_at_most_40_percent_of_one_trial_after_another() -> None:
    """And at most 10 % of all trials in full; the choice is the same."""
    alone, chosen_alone = _seconds(Halving(16, (2, 6, 18), parallel=1))
    shared, chosen = _seconds(Halving(16, (2, 6, 18), parallel=4))
    in_full = 16 * 18 * 2 * SECONDS_A_SEND
    assert chosen == chosen_alone
    assert shared <= 0.4 * alone
    assert shared <= 0.1 * in_full
    # 16 trials at round 2, 5 at round 6, 2 at round 18, and a ballot each.
    assert alone == (2 * (16 * 2 + 5 * 4 + 2 * 12) + 3) * SECONDS_A_SEND


def test_trials_whose_nodes_differ_share_a_send_all_the_same() -> None:
    grid = RecordingGrid(message_app(), NUM_CLIENTS, run_config=RUN_CONFIG)
    alone = RecordingGrid(message_app(), NUM_CLIENTS, run_config=RUN_CONFIG)

    class Choosy(FedAvg):
        """Trains with other nodes in each instance."""

        num_made = 0

        def __init__(self) -> None:
            super().__init__()
            Choosy.num_made += 1
            self._left_out = Choosy.num_made % NUM_CLIENTS

        def configure_train(self, *args: Any) -> Any:
            messages = sorted(
                super().configure_train(*args), key=lambda m: m.metadata.dst_node_id
            )
            del messages[self._left_out]
            return messages

    for one, parallel in ((grid, 6), (alone, 1)):
        Choosy.num_made = 0
        study = tuner(schedule=Halving(6, (2,), parallel=parallel))
        one.result = study.start(main_of(Choosy), one, server_context())  # type: ignore[attr-defined]
    assert grid.result == alone.result  # type: ignore[attr-defined]
    assert len(grid.sends) < len(alone.sends)


def _waiting(
    number: int, kind: str, num_sends: int, nodes: tuple[int, ...] = (1,)
) -> TrialThread:
    trial = TrialThread(number, lambda send: None, None, ParkedArrays())
    messages = [Message.__new__(Message) for _ in nodes]
    for message, node in zip(messages, nodes, strict=True):
        metadata = SimpleNamespace(message_type=kind, dst_node_id=node)
        message.__dict__["_metadata"] = metadata
    trial.pending, trial.num_sends = messages, num_sends
    return trial


@pytest.mark.parametrize(
    ("kind", "nodes", "megabytes", "expected"),
    [
        # As much as one trial that all nodes train.
        ("train", [(1, 2), (3, 4), (5, 6)], 1000, 3),
        ("train", [(1, 2), (1, 2), (1, 2)], 60, 1),
        ("train", [(1, 2), (1, 2), (1, 2)], 20, 2),
        ("train", [(1, 2), (3, 4), (1, 2)], 60, 2),
        # Of one node.
        ("evaluate", [(1, 2), (1, 2), (1, 2)], 20, 2),
        ("evaluate", [(1, 2), (1, 2), (1, 2)], 60, 1),
    ],
)
def test_large_models_share_no_send_unless_their_nodes_differ(
    kind: str, nodes: list[tuple[int, ...]], megabytes: int, expected: int
) -> None:
    trials = [_waiting(number, kind, 0, own) for number, own in enumerate(nodes)]
    for trial in trials:
        trial.num_bytes = int(megabytes * 1e6 * len(trial.pending))
    assert len(next_trials(trials, 16)) == expected


@pytest.mark.parametrize(
    ("waiting", "parallel", "expected"),
    [
        # The least far first.
        ([(0, "train", 2), (1, "train", 0), (2, "train", 0)], 2, [1, 2]),
        # Where most wait.
        ([(0, "train", 0), (1, "evaluate", 1), (2, "evaluate", 1)], 4, [1, 2]),
        # One send is full either way: again the least far.
        ([(0, "evaluate", 1), (1, "train", 2)], 1, [0]),
    ],
)
def test_who_shares_the_next_send(
    waiting: list[tuple[int, str, int]], parallel: int, expected: list[int]
) -> None:
    trials = [_waiting(*each) for each in waiting]
    assert [t.number for t in next_trials(trials, parallel)] == expected


def test_a_node_that_does_not_answer_is_missing_in_each_trial() -> None:
    """And the trials go on with the others."""

    class Lossy(RecordingGrid):
        def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
            return list(super().send_and_receive(messages, timeout=timeout))[1:]

    grid = Lossy(message_app(), NUM_CLIENTS, run_config=RUN_CONFIG)
    result = tuner().start(main_of(), grid, server_context())
    assert not result.defaults_stayed_best

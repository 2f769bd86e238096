"""A `main` that misbehaves in one of the trials, and what becomes of the others."""

import contextlib
import logging
import math
import random
import threading
from collections import Counter
from typing import Any

import pytest
from flwr.app import Context, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from flwr_fbo import Halving, PrivateChoice, tuner_mod
from flwr_fbo.tuner.trials.trial_grid import Main
from flwr_fbo.tuning import FederationResult, current_trial
from tests.support.apps import (
    assert_all_end,
    in_process,
    main_of,
    message_app,
    server_context,
    tuner,
)

# The trial that would be chosen is the one that misbehaves.
BEST, SECOND = {"learning-rate": 0.5}, {"learning-rate": 0.3}
SCHEDULE = Halving(3, (2,), parallel=3)


def _is_best(context: Context) -> bool:
    return float(context.run_config["learning-rate"]) == BEST["learning-rate"]


def _start(
    main: Main, privacy: PrivateChoice | None, schedule: Halving = SCHEDULE
) -> FederationResult:
    study = tuner(schedule=schedule, enqueue=[BEST, SECOND], privacy=privacy)
    return study.start(main, in_process(), server_context())


def _returns_at_once(grid: Grid, context: Context) -> None:
    if not _is_best(context):
        main_of()(grid, context)


def _never_evaluates(grid: Grid, context: Context) -> None:
    fraction = 0.0 if _is_best(context) else 1.0
    main_of(lambda: FedAvg(fraction_evaluate=fraction))(grid, context)


PRIVATE = PrivateChoice(1000.0, 1e-3)


@pytest.mark.parametrize(
    ("main", "privacy", "rounds"),
    [
        (_returns_at_once, PRIVATE, 1),
        (_returns_at_once, None, 9),
        (_never_evaluates, PRIVATE, 2),
        (_never_evaluates, PRIVATE, 9),
        (_never_evaluates, None, 1),
    ],
)
def test_a_trial_that_nobody_has_evaluated_is_worst(
    main: Main,
    privacy: PrivateChoice | None,
    rounds: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "flwr.fbo"):
        result = _start(main, privacy, Halving(3, (rounds,), parallel=2))
    assert result.best_trial == 2
    failure = "trial 1: the app has failed: ValueError('the server asks no client"
    assert failure in caplog.text
    assert "trial 2: main" not in caplog.text


def _catches_all(grid: Grid, context: Context) -> None:
    while True:
        try:
            main_of()(grid, context)
        except:  # noqa: E722
            NUM_CAUGHT[float(context.run_config["learning-rate"])] += 1


def _catches_all_of_them(grid: Grid, context: Context) -> None:
    while True:
        try:
            main_of()(grid, context)
        except BaseException:
            NUM_CAUGHT[float(context.run_config["learning-rate"])] += 1


NUM_CAUGHT: Counter[float] = Counter()


@pytest.mark.parametrize("main", [_catches_all, _catches_all_of_them])
def test_a_main_that_catches_all_exceptions_is_ended(
    main: Main, caplog: pytest.LogCaptureFixture
) -> None:
    """In bounded time, and once and for all; its random states stay its own."""
    NUM_CAUGHT.clear()
    random.seed(5)
    with caplog.at_level(logging.WARNING, "flwr.fbo"):
        result = _start(main, None, Halving(3, (1, 2)))
    drawn = random.random()
    assert result.best == {**BEST, "local-epochs": 1}
    warnings = [m for m in caplog.messages if "catches all exceptions" in m]
    assert [f"trial {n}" in m for n, m in zip((2, 0, 1), warnings, strict=True)]
    assert len(NUM_CAUGHT) == 3
    assert max(NUM_CAUGHT.values()) < 10
    caught = NUM_CAUGHT.copy()
    random.seed(5)
    _start(main_of(), None, Halving(3, (1, 2)))
    assert drawn == random.random()
    assert caught == NUM_CAUGHT  # nor has it gone on meanwhile


def test_a_main_that_sends_once_more_when_it_is_ended_may(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def main(grid: Grid, context: Context) -> None:
        try:
            main_of()(grid, context)
        finally:
            main_of()(grid, context)

    before = threading.enumerate()
    with caplog.at_level(logging.WARNING, "flwr.fbo"):
        assert _start(main, None).best == {**BEST, "local-epochs": 1}
    assert "catches all exceptions" not in caplog.text
    assert_all_end(before)


LONG = Halving(6, (1, 3))


class _Stopping(FedAvg):
    """Stops when an aggregated metric is no longer better, as early stopping does."""

    class Stopped(Exception):  # noqa: N818
        """Ends the loop of rounds."""

    def __init__(self, patience: int, is_patient: bool) -> None:
        super().__init__()
        self._best, self._since = math.inf, 0
        self._patience = 99 if is_patient else patience

    def aggregate_evaluate(self, server_round: int, replies: Any) -> Any:
        """Return the metrics, unless it stops."""
        metrics = super().aggregate_evaluate(server_round, replies)
        assert metrics is not None
        distance, self._since = float(str(metrics["distance"])), self._since + 1
        if distance < self._best:
            self._best, self._since = distance, 0
        if self._since >= self._patience:
            raise self.Stopped
        return metrics


def _stopping_main(patience: int, only_outside: bool = False) -> Main:
    def main(grid: Grid, context: Context) -> None:
        is_patient = only_outside and current_trial(context) is not None
        with contextlib.suppress(_Stopping.Stopped):
            main_of(lambda: _Stopping(patience, is_patient))(grid, context)

    return main


def test_early_stopping_on_metrics_that_stay_at_the_clients_is_explained(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """All trials stop as soon, and are compared as they are."""
    before = threading.enumerate()
    with caplog.at_level(logging.WARNING, "flwr.fbo"):
        result = _start(_stopping_main(2), PRIVATE, LONG)
    assert result.best == _start(main_of(), PRIVATE, LONG).best
    warned = [line for line in caplog.messages if "The training ended before" in line]
    assert len(warned) == 1
    assert "The training ended before round 3" in warned[0]
    assert "NaN" in warned[0]
    assert "current_trial(context) is None" in warned[0]
    assert_all_end(before)


def test_early_stopping_outside_of_trials_only_is_not_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "flwr.fbo"):
        result = _start(_stopping_main(2, True), PRIVATE, LONG)
    assert result.best == _start(main_of(), PRIVATE, LONG).best
    assert "The training ended before" not in caplog.text


def test_early_stopping_on_exact_metrics_is_compared_as_the_app_would_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One trial has no better model from its second round on."""

    def overshoots(message: Message, context: Context, call_next: Any) -> Message:
        reply: Message = call_next(message, context)
        if _is_best(context) and message.metadata.message_type == "evaluate":
            calls = context.state.config_records["calls"]["n"]
            metrics = reply.content.metric_records["metrics"]
            metrics["distance"] = float(str(calls))
        return reply

    grid = in_process(message_app(first=(tuner_mod, overshoots)))
    study = tuner(schedule=Halving(3, (4,)), enqueue=[BEST, SECOND], privacy=None)
    with caplog.at_level(logging.WARNING, "flwr.fbo"):
        result = study.start(_stopping_main(1), grid, server_context())
    (rung,) = result.rungs
    assert rung.scores[1] == 2.0  # of the round after which it stopped
    assert result.best_trial == 2
    assert "before round 4 in trials [1]" in caplog.text
    assert "NaN" not in caplog.text


def test_if_nobody_has_evaluated_any_trial_it_is_an_error() -> None:
    def main(grid: Grid, context: Context) -> None:
        """Return at once."""

    with pytest.raises(ValueError, match=r"in 0 rounds.*federated evaluation"):
        _start(main, None)


def test_a_failed_trial_that_is_left_is_compared_once_it_evaluates() -> None:
    """It goes on where too few others have not failed."""

    class Late(FedAvg):
        def configure_evaluate(self, server_round: int, *args: Any) -> Any:
            messages = super().configure_evaluate(server_round, *args)
            return messages if server_round > 1 else []

    def main(grid: Grid, context: Context) -> None:
        if context.run_config["learning-rate"] == SECOND["learning-rate"]:
            raise OverflowError
        main_of(Late if _is_best(context) else FedAvg)(grid, context)

    first, last = _start(main, None, Halving(3, (1, 2))).rungs
    assert first.survivors == (0, 1)
    assert first.scores[1:] == (math.inf, math.inf)
    assert last.survivors == (1,)

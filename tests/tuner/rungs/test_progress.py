"""The log says how far a tuner has come, and is not flooded."""

import logging
import re
from types import SimpleNamespace
from typing import Any

import pytest

from flwr_fbo import Halving, OneTraining
from flwr_fbo.tuner.rungs.progress import Progress
from flwr_fbo.tuner.schedules.schedule import AppShape, Plan
from tests.support.apps import RUN_CONFIG, main_of, message_app, server_context, tuner
from tests.support.shared_sends import SECONDS_A_SEND, SlowGrid

SCHEDULE = Halving(16, (3, 9, 27), parallel=4)


@pytest.fixture
def grid(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> SlowGrid:
    """Return a Grid of 10 s a send, whose clock is that of the log."""
    kind = getattr(request, "param", SlowGrid)
    slow: SlowGrid = kind(message_app(), 2, run_config=RUN_CONFIG)

    def timed(plan: Plan, first_rung: int) -> Progress:
        return Progress(plan, first_rung, clock=lambda: slow.clock)

    monkeypatch.setattr("flwr_fbo.tuner.rungs.trial_run.Progress", timed)
    return slow


def _lines(grid: SlowGrid, caplog: pytest.LogCaptureFixture) -> list[str]:
    context = server_context(**{"num-server-rounds": SCHEDULE.rounds[-1]})
    with caplog.at_level(logging.INFO, "flwr.fbo"):
        tuner(schedule=SCHEDULE, num_agents=2).start(main_of(), grid, context)
    messages = [r.getMessage() for r in caplog.records if r.name == "flwr.fbo"]
    assert not any(
        line.startswith("rung 3 of 3") and "go on" in line for line in messages
    )
    assert any(re.search("^rung 3 .* has the best score$", line) for line in messages)
    return [message for message in messages if "left" in message]


def test_lines_come_twice_a_minute_at_most_and_tell_the_time_that_is_left(
    grid: SlowGrid, caplog: pytest.LogCaptureFixture
) -> None:
    lines = _lines(grid, caplog)
    within = [line for line in lines if "go on" not in line]
    assert re.fullmatch(
        r"rung 1 of 3, round [123] of 3, 4 trials: \d+ sends? so far, "
        r"about \d+ (s|min) left",
        within[0],
    )
    assert "rung 3 of 3, round 2" in within[-1]
    assert 10 < len(within) <= grid.clock / 30
    checked = 0
    for line in lines:
        found = re.search(r"(?:: |after )(\d+) sends.*about (\d+) (s|min) left", line)
        if found is None:
            continue
        sends, left, unit = found.groups()
        seconds = int(left) * (60 if unit == "min" else 1)
        actual = grid.clock - int(sends) * SECONDS_A_SEND
        if int(sends) * SECONDS_A_SEND > grid.clock / 5:
            assert abs(seconds - actual) < 0.15 * grid.clock, line
            checked += 1
    assert checked > 10


class StartingGrid(SlowGrid):
    """An engine that needs 300 s before it can send."""

    def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
        """Deliver all messages and replies."""
        self.clock += 300.0 if self.clock == 0.0 else 0.0
        return super().send_and_receive(messages, timeout=timeout)


@pytest.mark.parametrize("grid", [StartingGrid], indirect=True)
def test_the_start_of_an_engine_is_not_part_of_the_time_that_is_left(
    grid: SlowGrid, caplog: pytest.LogCaptureFixture
) -> None:
    """The first line, after the first send, has nothing to go by."""
    first, *lines = _lines(grid, caplog)
    assert first.endswith("the time left is not known yet")
    left = [re.search(r"about (\d+) (s|min) left", line) for line in lines]
    seconds = [int(m[1]) * (60 if m[2] == "min" else 1) for m in left if m]
    assert len(seconds) > 10
    assert max(seconds) < 1.2 * grid.clock


def test_the_last_training_is_part_of_the_time_that_is_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of 11 + 16 rounds of the app the first 11 are the race; then it is counted."""
    clock = [0.0]
    shape = AppShape(20, num_asked=20, num_rounds=27, rounds_key="rounds")
    plan = OneTraining().plan(16, shape)
    here = Progress(plan, 0, clock=lambda: clock[0])
    rounds = plan.rungs[-1].rounds
    clock[0] = 10.0 * plan.num_rung_rounds
    last = 27 - plan.num_rung_rounds
    told = f"about {10 * last} s left" if last < 12 else "min left"
    assert here.left(len(plan.rungs) - 1, _trials("a", rounds)).endswith(told)
    clock[0] += 10.0 * (last - 2)
    with caplog.at_level(logging.DEBUG, "flwr.fbo"):
        here.say_last(_trials("a", rounds + last - 2)[0])
    end = rounds + last
    line = f"trial a to its end, round {end - 2} of {end}: about 20 s left"
    assert caplog.messages == [line]


def _trials(numbers: str, num_train: int) -> Any:
    return [
        SimpleNamespace(number=n, num_train=num_train, has_ended=False) for n in numbers
    ]


def test_a_run_that_goes_on_trains_its_trials_from_the_start() -> None:
    """Half of what this run has to do is done, in a rung that began at round 0."""
    clock = [0.0]
    plan = Halving(8, (2, 4), parallel=4).plan(8, AppShape(20))
    here = Progress(plan, 1, clock=lambda: clock[0])
    trials: Any = [
        SimpleNamespace(number=n, num_train=0, has_ended=False) for n in "abcd"
    ]
    assert here.left(1, trials) == "the time left is not known yet"
    clock[0] = 60.0
    for trial in trials:
        trial.num_train = 2
    assert here.left(1, trials) == "about 60 s left"
    trials[0].has_ended = True
    assert here.left(1, trials) == "about 36 s left"

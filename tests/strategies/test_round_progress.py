"""What a server says of its rounds, before, during and after them."""

import logging
import math
import re
import time
from threading import Event, Thread
from typing import Any

import pytest
from optuna.distributions import FloatDistribution

from flwr_fbo import (
    DPFTSDE,
    FTS,
    Durability,
    FedVote,
    InProcessGrid,
    Privacy,
    SecureAggregation,
    Seeds,
    tuning_app,
)
from flwr_fbo.strategies import base, round_progress
from flwr_fbo.strategies.round_progress import Waiting, duration
from tests.federation import NUM_AGENTS, numpy_app, strategy

SPACE = {"x": FloatDistribution(0.0, 1.0)}


def test_who_has_answered_is_told_while_others_are_awaited(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "flwr.fbo")
    monkeypatch.setattr(round_progress, "_FIRST_PAUSE", 0.02)
    lines: list[str] = []

    class Slow(InProcessGrid):
        def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
            ids, replies = list(self.push_messages(messages)), []
            for one in ids:
                replies += list(self.pull_messages([one]))
                if study._waiting is not None:
                    lines.append(study._waiting._line())
                time.sleep(0.05)
            return replies

    study = strategy()
    study.start(Slow(numpy_app(), NUM_AGENTS), num_rounds=2)
    for number in (1, 2):
        begin = f"round {number} of 2 of study {study.study.study_id}: "
        told = [re.sub(r", \d+ s", "", m) for m in lines if m.startswith(begin)]
        assert told == [
            f"{begin}1 of 4 agents have answered; awaited: agents 1 to 3",
            f"{begin}2 of 4 agents have answered; awaited: agents 2 to 3",
            f"{begin}3 of 4 agents have answered; awaited: agent 3",
            f"{begin}4 of 4 agents have answered",
        ]
        said = [m for m in caplog.messages if m.startswith(begin)]
        assert any(" agents have answered, " in line for line in said)
        assert said[-1].startswith(f"{begin}4 of 4 agents answered in ")
    assert said[-1].endswith("about 0 s left")


def test_a_grid_is_as_it_was_afterwards() -> None:
    grid = InProcessGrid(numpy_app(), 1)
    one = Waiting(grid, "round 1 of 1", [])
    assert list(grid.pull_messages(["nobody"])) == []
    one.close()
    assert grid.pull_messages.__func__ is InProcessGrid.pull_messages  # type: ignore[attr-defined]


def test_the_log_of_a_long_round_is_short(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first line one a minute, and later one in a twelfth of the time."""
    caplog.set_level(logging.INFO, "flwr.fbo")
    pauses: list[float] = []
    now = [0.0]

    def wait(_: Any, pause: float) -> bool:
        pauses.append(pause)
        now[0] += pause
        return now[0] > 12 * 3600

    monkeypatch.setattr(Waiting, "seconds", property(lambda _: now[0]))
    monkeypatch.setattr(Event, "wait", wait)
    with monkeypatch.context() as started:
        started.setattr(Thread, "start", lambda _: None)
        one = Waiting(InProcessGrid(numpy_app(), 1), "round 1 of 1", [])
    one._tell()
    assert pauses[:2] == [5.0, 60.0]
    assert min(pauses[1:]) == 60.0
    assert len(caplog.messages) < 12 + 12 * 8


def test_time_left_counts_the_exchanges_of_secure_sums(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "flwr.fbo")
    stop = base.StudyStrategy._stop_waiting

    def stop_after_ten_seconds(study: base.StudyStrategy[Any]) -> float:
        stop(study)  # its thread would write into the logs of other tests
        return 10.0

    monkeypatch.setattr(base.StudyStrategy, "_stop_waiting", stop_after_ten_seconds)
    seeds = Seeds(study=1, features=0)
    study = FedVote(
        SPACE,
        "maximize",
        3,
        epsilon=8.0,
        delta=0.01,
        aggregation=SecureAggregation(0),
        seeds=seeds,
        durability=Durability(patience=0),
    )
    app = tuning_app(lambda context: lambda trial: -(trial["x"] ** 2))
    study.start(InProcessGrid(app, 3), num_rounds=3)
    said = [m for m in caplog.messages if " agents answered in 10 s" in m]
    num_sums = len(study.server.ledger)
    assert num_sums > 0
    assert said[0].endswith(f"about {duration(10 * (2 + 5 * num_sums))} left")
    assert said[-1].endswith("about 0 s left")


def test_durations_are_for_persons() -> None:
    given = [0.2, 61, 119, 120, 3599, 7199, 7200, 1e5]
    said = [duration(seconds) for seconds in given]
    assert said == ["0 s", "61 s", "119 s", "2 min", "60 min", "120 min", "2 h", "28 h"]


@pytest.mark.parametrize(
    ("num_rounds", "releases"),
    [
        (2, "1 release, after round 1"),
        (60, "3 releases, after rounds 6, 10 and 59"),
    ],
)
def test_what_the_rounds_come_to_is_said_first(
    num_rounds: int, releases: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flwr.fbo")
    seeds = Seeds(features=0, noise=0)
    vote = FedVote(SPACE, "maximize", 3, epsilon=8.0, delta=0.01, seeds=seeds)
    vote.plan(num_rounds - 1)
    vote.summary()
    evaluations = f"{num_rounds} rounds: an agent evaluates one setting in each\n"
    assert evaluations in caplog.text
    assert releases in caplog.text
    assert "agents" in caplog.text
    caplog.clear()
    published = DPFTSDE(SPACE, "maximize", 3, epsilon=8.0, delta=0.01, seeds=seeds)
    published.plan(num_rounds - 1)
    published.summary()
    evaluations = (
        f"{num_rounds} rounds: an agent evaluates 10 initial settings in the first, "
        f"and one in each other, {num_rounds + 9} in all"
    )
    assert evaluations in caplog.text


def test_many_releases_are_not_listed_one_by_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "flwr.fbo")
    open_study = Privacy(
        noise_multiplier=0.0, clip_norm=math.inf, min_follow_probability=0.0
    )
    private = DPFTSDE(SPACE, "maximize", 3, privacy=open_study)
    for one in (FTS(SPACE, "maximize", 3), private):
        one.plan(40)
        one.summary()
    assert caplog.text.count("41 rounds: an agent evaluates") == 2
    assert "40 releases, after rounds 1 to 40" in caplog.text


@pytest.mark.parametrize(
    ("config", "level"), [({"agent-id": 0}, "INFO"), ({"partition-id": 0}, "DEBUG")]
)
def test_a_site_says_how_far_it_is(
    config: dict[str, Any], level: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "flwr.fbo")

    app = tuning_app(lambda context: lambda trial: -(trial["x"] ** 2))
    grid = InProcessGrid(app, 1, node_configs=[config])
    one = FTS(SPACE, "maximize", 1, seeds=Seeds(study=1, features=1))
    one.start(grid, num_rounds=3)
    said = [r for r in caplog.records if "agent 0: trial " in r.getMessage()]
    assert len(said) == 3 + 2
    assert all(r.levelname == level for r in said)
    assert "trial 5 of 5: " in said[-1].getMessage()
    assert ", best so far " in said[-1].getMessage()

"""What a server says of its rounds, before, during and after them."""

import logging
import math
import re
import time
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Message, RecordDict
from flwr.superlink.grid.inmemory_grid import InMemoryGrid
from optuna.distributions import FloatDistribution

from flwr_fbo import DPFTSDE, FTS, FedVote, InProcessGrid, Privacy, Seeds, tuning_app
from flwr_fbo.secure import SecureAggregation
from flwr_fbo.strategies import round_progress
from flwr_fbo.strategies.round_progress import Waiting, duration
from tests.support.federation import NUM_AGENTS, numpy_app, strategy

SPACE = {"x": FloatDistribution(0.0, 1.0)}


class SlowGrid(InProcessGrid):
    """A grid with the loop of Flower's own, whose replies come one by one."""

    send_and_receive: Any = InMemoryGrid.send_and_receive
    pull_interval = 0.05

    def pull_messages(self, message_ids: Any) -> Any:
        waiting = next(iter(set(message_ids) & self._replies.keys()), None)
        return [] if waiting is None else super().pull_messages([waiting])


def test_who_has_answered_is_told_while_others_are_awaited(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "flwr.fbo")
    monkeypatch.setattr(round_progress, "_FIRST_PAUSE", 0.02)
    lines: list[str] = []
    note = Waiting.note

    def noted(waiting: Waiting, replies: Any) -> None:
        note(waiting, replies)
        lines.append(re.sub(r", \d+ s|; awaited.*", "", waiting.line()))

    monkeypatch.setattr(Waiting, "note", noted)
    study = strategy()
    study.start(SlowGrid(numpy_app(), NUM_AGENTS), num_rounds=2)
    for number in (1, 2):
        begin = f"round {number} of 2 of study {study.study.study_id}: "
        told = [line for line in lines if line.startswith(begin)]
        assert told == [
            f"{begin}{n} of 4 agents have answered" for n in range(1, NUM_AGENTS + 1)
        ]
        said = [m for m in caplog.messages if m.startswith(begin)]
        assert any(
            re.search(r"\d of 4 agents have answered, \d+ s; awaited: agent", line)
            for line in said
        )
        assert said[-1].startswith(f"{begin}4 of 4 agents answered in ")
    assert said[-1].endswith("about 0 s left")


def test_agents_that_are_awaited_are_named() -> None:
    grid = InProcessGrid(numpy_app(), 3)
    nodes = enumerate(grid.get_node_ids())
    asked = [(Message(RecordDict(), node, "train"), slot) for slot, node in nodes]
    grid.push_messages([message for message, _ in asked])
    with Waiting("round 1 of 1", asked) as waiting:
        assert waiting.line().endswith(" s; awaited: agents 0 to 2")
        waiting.note(grid.pull_messages([asked[1][0].metadata.message_id]))
        words = r"1: 1 of 3 agents have answered, 0 s; awaited: agents 0, 2"
        assert re.search(words, waiting.line())


@pytest.mark.parametrize("kind", [InProcessGrid, SlowGrid])
def test_a_grid_is_left_as_it_is(
    kind: type[InProcessGrid], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may use it, and so may whoever started the study, afterwards."""
    grid = kind(numpy_app(), NUM_AGENTS)
    own, names = dict(vars(grid)), []
    send = kind.send_and_receive

    def note(self: Any, messages: Any, *, timeout: Any = None) -> Any:
        names.append(vars(self).keys() - own.keys())
        return send(self, messages, timeout=timeout)

    monkeypatch.setattr(kind, "send_and_receive", note)
    strategy().start(grid, num_rounds=2)
    assert names
    assert not any(names)
    assert vars(grid).keys() == own.keys()


def test_a_loop_of_its_own_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it is given to one grid alone."""
    grid, sent = SlowGrid(numpy_app(), NUM_AGENTS), []

    def send_and_receive(messages: Any, *, timeout: Any = None) -> Any:
        sent.append(list(messages))
        return SlowGrid.send_and_receive(grid, sent[-1], timeout=timeout)

    monkeypatch.setattr(grid, "send_and_receive", send_and_receive)
    strategy().start(grid, num_rounds=2)
    assert [*map(len, sent)].count(NUM_AGENTS) == 3  # and for the enrolment


def test_short_exchanges_are_not_waited_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A tenth of the time that has passed; as Flower's grid where that is long."""
    clock, pauses = [0.0], []

    class Remote(InProcessGrid):
        """A grid that does not say how often it is asked, as one to a SuperLink."""

        send_and_receive: Any = InMemoryGrid.send_and_receive

        def pull_messages(self, message_ids: Any) -> Any:
            return super().pull_messages(message_ids) if clock[0] > 100 else []

    def sleep(seconds: float) -> None:
        clock[0] += seconds
        pauses.append(seconds)

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    grid = Remote(numpy_app(), 2)
    told = round_progress.ToldGrid(grid, lambda: dict.fromkeys(grid.get_node_ids(), 0))
    told.send_name = "exchange"
    asked = [Message(RecordDict(), node, "train") for node in grid.get_node_ids()]
    assert len(list(told.send_and_receive(asked, timeout=200.0))) == 2
    assert pauses[0] == 0.25
    assert pauses[-1] == 3.0
    assert sum(pause < 1.0 for pause in pauses) > 10


def test_a_reply_that_does_not_come_ends_the_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Deaf(SlowGrid):
        def pull_messages(self, message_ids: Any) -> Any:
            replies = super().pull_messages(message_ids)
            return [r for r in replies if r.metadata.group_id != "2"]

    # A clock that only the waiting moves: no reply is late where the machine is busy.
    passed = [0.0]
    clock = SimpleNamespace(
        monotonic=lambda: sum(passed), sleep=lambda seconds: passed.append(seconds)
    )
    monkeypatch.setattr(round_progress, "time", clock)
    grid, study = Deaf(numpy_app(), NUM_AGENTS), strategy(max_empty_rounds=2)
    result = study.start(grid, num_rounds=3, timeout=1.0)
    assert [finished.late for finished in result.rounds] == [0, NUM_AGENTS, 0]
    # Of the second round all that is allowed; of the others until all replies came.
    assert 1.0 < sum(passed) < 2.0


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
        waiting = Waiting("round 1 of 1", [])
    waiting._tell()
    assert pauses[:2] == [5.0, 60.0]
    assert min(pauses[1:]) == 60.0
    assert len(caplog.messages) < 12 + 12 * 8


def test_time_left_counts_the_exchanges_of_secure_sums(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "flwr.fbo")
    monkeypatch.setattr(Waiting, "seconds", 10.0)
    seeds = Seeds(study=1, features=0)
    study = FedVote(
        SPACE,
        "maximize",
        3,
        epsilon=8.0,
        delta=1e-3,
        aggregation=SecureAggregation(0),
        seeds=seeds,
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
    vote = FedVote(SPACE, "maximize", 3, epsilon=8.0, delta=1e-3, seeds=seeds)
    vote.plan(num_rounds - 1)
    vote.summary()
    evaluations = f"{num_rounds} rounds: an agent evaluates one setting in each\n"
    assert evaluations in caplog.text
    assert releases in caplog.text
    assert "agents" in caplog.text
    caplog.clear()
    published = DPFTSDE(SPACE, "maximize", 3, epsilon=8.0, delta=1e-3, seeds=seeds)
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

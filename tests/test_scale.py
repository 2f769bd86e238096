"""Work grows with the agents, not with the rounds there have been: it is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flwr_fbo import DPFTSDE, Durability, FedUCB, FedVote, InProcessGrid
from flwr_fbo._compat import to_array_record
from flwr_fbo.journal import ledger_table, state_table, trial_table
from flwr_fbo.privacy.continual_settings import ContinualSettings
from flwr_fbo.protocol.linear_ucb_settings import LinearUCBSettings
from flwr_fbo.servers.dp_fts_de import DistributedExplorationServer
from flwr_fbo.servers.fed_ucb import LinearBanditServer
from flwr_fbo.strategies.base import StudyStrategy
from flwr_fbo.strategies.enrolment import Enrolment, _Claim
from tests.federation import NUM_AGENTS, numpy_app, strategy

EARLY, LATE = 5, 40


def silent_app() -> ClientApp:
    """Return an app whose agents enrol, and then send no array."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        slot = int(context.node_config["partition-id"])
        metrics = MetricRecord({"agent-id": slot, "num-examples": 1})
        content = RecordDict({"arrays": to_array_record([]), "metrics": metrics})
        return Message(content, reply_to=message)

    return app


def counted_by_round(
    monkeypatch: pytest.MonkeyPatch,
    owners: Sequence[Any],
    name: str,
    size: Callable[[Any], int],
) -> dict[str, int]:
    """Add up the sizes of what a function returns, by Flower's round, from now on."""
    counts: Counter[str] = Counter()
    now = [""]
    function, configure = getattr(owners[0], name), StudyStrategy.configure_train

    def counting(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        counts[now[0]] += size(result)
        return result

    def begins(self: Any, server_round: int, *args: Any) -> Any:
        now[0] = str(server_round)
        return configure(self, server_round, *args)

    for owner in owners:
        monkeypatch.setattr(owner, name, counting)
    monkeypatch.setattr(StudyStrategy, "configure_train", begins)
    return counts


def test_a_late_round_puts_no_more_on_disk_than_an_early_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def size(contents: list[bytes]) -> int:
        return sum(map(len, contents))

    counts = counted_by_round(monkeypatch, [ledger_table, state_table], "to_npy", size)
    study = strategy(noise_multiplier=0, sampling_probability=1, folder=tmp_path)
    study.start(InProcessGrid(silent_app(), NUM_AGENTS), num_rounds=LATE + 1)
    assert len(study.server.ledger) == LATE  # one release a round
    digits = 16  # numbers of rounds get longer, in UTF-32
    assert 0 < counts[str(LATE)] <= counts[str(EARLY)] + digits
    assert counts[str(LATE)] == counts[str(LATE - 1)]


def test_an_agent_reads_no_more_trials_late_than_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = counted_by_round(monkeypatch, [trial_table], "Trial", lambda _: 1)
    study = strategy(noise_multiplier=0, sampling_probability=1, num_releases=1)
    study.start(InProcessGrid(numpy_app(), NUM_AGENTS), num_rounds=12)
    assert counts["12"] == counts["3"] <= 2 * NUM_AGENTS


class CountingDict(dict[int, int]):
    """Which counts how often it was walked through."""

    walks = 0

    def items(self) -> Any:
        """Count, and return the items."""
        self.walks += 1
        return super().items()


@pytest.mark.parametrize("known", [True, False])
def test_enrolment_walks_through_the_slots_once_for_all(known: bool) -> None:
    walks = []
    for num_agents in (10, 200):
        enrolment = Enrolment(num_agents, "both", Durability(patience=0.0))
        enrolment.slots = slots = CountingDict()
        enrolment.journals = journals = CountingDict()
        claims = {
            1000 + i: _Claim(num_agents - 1 - i if known else -1, journal=i)
            for i in range(num_agents)
        }
        assert enrolment._bind(claims, set(claims)) == []
        assert sorted(slots.values()) == list(range(num_agents))
        walks.append((slots.walks, journals.walks))
    assert walks[0] == walks[1]


def _tuning(num_agents: int) -> DPFTSDE | FedVote:
    options: dict[str, Any] = {"noise_multiplier": 0, "sampling_probability": 1}
    return strategy(num_agents=num_agents, **options)


def _bandit(num_agents: int) -> FedUCB:
    releases = ContinualSettings(3, 2, epsilon=1.0, delta=0.1)
    settings = LinearUCBSettings(releases)
    durability = Durability(patience=0.0)
    return FedUCB(settings, num_agents, schedule=[1, 2, 3], durability=durability)


@pytest.mark.parametrize(
    ("make", "server", "name"),
    [
        (_tuning, DistributedExplorationServer, "step"),
        (_bandit, LinearBanditServer, "step"),
    ],
)
def test_what_concerns_all_agents_is_asked_for_once_a_round(
    make: Callable[[int], Any],
    server: Any,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may itself take as many steps as there are agents."""
    calls = []
    for num_agents in (2, 20):
        with monkeypatch.context() as patch:
            counts = counted_by_round(patch, [server], name, lambda _: 1)
            grid = InProcessGrid(silent_app(), num_agents)
            make(num_agents).start(grid, num_rounds=4)
        calls.append(dict(counts))
    assert calls[0] == calls[1]
    assert calls[0]["2"] > 0

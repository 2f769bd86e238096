"""Faults of an operator's day, in process: nothing is lost, and charged once.

The others need a SuperLink: tests/test_deployment.py.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from flwr_fbo import FedVote, InProcessGrid, Privacy, tuning_app
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.privacy.spending_ledger import SpendingLedger
from flwr_fbo.strategies.host import Host
from flwr_fbo.tuning import FedVoteSettings
from tests.support.federation import SPACE, objective_of

ROOT = Path(__file__).parents[1]
NUM_SITES, NUM_ROUNDS = 4, 6
AGENT = FedVoteSettings(num_features=16, num_candidates=20)
During = Callable[[int], None]


class FaultyGrid(InProcessGrid):
    """Four sites with folders, and something that happens in each round."""

    def __init__(self, folder: Path, during: During, away: Collection[int]) -> None:
        app = tuning_app(
            lambda context: objective_of(int(context.node_config["agent-id"]))
        )
        nodes: list[Any] = [
            {"agent-id": site, "fbo-folder": str(folder / f"site-{site}")}
            for site in range(NUM_SITES)
        ]
        super().__init__(app, NUM_SITES, node_configs=nodes)
        self._during, self._away = during, away

    def get_node_ids(self) -> Any:
        """Return the nodes; the last site is away in some rounds."""
        nodes = list(super().get_node_ids())
        return nodes[:-1] if self._number + 1 in self._away else nodes

    _number = 0

    def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
        """Count the rounds of this run, and let happen what does."""
        asked = list(messages)
        if asked and asked[0].metadata.group_id:
            self._number = int(asked[0].metadata.group_id)
            self._during(self._number)
        return super().send_and_receive(asked, timeout=timeout)


def play(
    folder: Path, during: During = lambda number: None, away: Collection[int] = ()
) -> Any:
    """Run the study, or go on with it; return its result."""
    strategy = FedVote(
        SPACE,
        "maximize",
        NUM_SITES,
        epsilon=8.0,
        delta=1e-3,
        agent=AGENT,
        privacy=Privacy(release_after=(3, 5)),
    )
    host = Host(min_agents=3, patience=0.0, max_empty_rounds=2)
    grid = FaultyGrid(folder, during, away)
    record = folder / "record"
    return strategy.start(grid, num_rounds=NUM_ROUNDS, folder=record, host=host)


def assert_whole(
    folder: Path, result: Any, missed: dict[int, int] | None = None
) -> None:
    """Each release is charged once, everywhere; no trial is lost or repeated."""
    with Journal.snapshot(folder / "record" / "server.sqlite") as record:
        releases = [row.iteration for row in record.ledger()]
    assert result.privacy_spent.num_releases == len(releases) == len(set(releases))
    assert len(result.rounds) == NUM_ROUNDS
    for site in range(NUM_SITES):
        own = folder / f"site-{site}"
        with SpendingLedger.held(own) as ledger:
            charged = [row.facts["release"] for row in ledger.rows]
        assert len(charged) == len(set(charged)) <= len(releases)
        if site not in (missed or {}):
            assert len(charged) == len(releases)
        [path] = own.glob(f"*-agent-{site}.sqlite")
        with Journal.snapshot(path) as journal:
            trials = journal.trials()
        assert {trial.state for trial in trials} == {"complete"}
        assert len(trials) == NUM_ROUNDS - (missed or {}).get(site, 0)


def test_without_faults(tmp_path: Path) -> None:
    assert_whole(tmp_path, play(tmp_path))


class Disks:
    """Disks that can be full: databases in these folders do not grow."""

    def __init__(self) -> None:
        self.full: set[Path] = set()
        self._connections: list[tuple[Path, sqlite3.Connection]] = []

    def connect(self, path: Path | str, **options: Any) -> sqlite3.Connection:
        """Open a database."""
        connection: sqlite3.Connection = _connect(path, **options)
        folder = Path(path).parent
        self._connections.append((folder, connection))
        if folder in self.full:
            connection.execute("PRAGMA max_page_count = 1")
        return connection

    def fill(self, folder: Path) -> None:
        """Have no space in a folder from now on."""
        self.full.add(folder)
        for where, connection in self._connections:
            if where == folder:
                connection.execute("PRAGMA max_page_count = 1")


_connect = sqlite3.connect


@pytest.fixture
def disks(monkeypatch: pytest.MonkeyPatch) -> Disks:
    """The disks of all journals."""
    made = Disks()
    name = "flwr_fbo.journal.journal_file.sqlite3.connect"
    monkeypatch.setattr(name, made.connect)
    return made


def test_the_disk_of_a_site_is_full(
    tmp_path: Path, disks: Disks, caplog: pytest.LogCaptureFixture
) -> None:
    def during(number: int) -> None:
        disks.full = {tmp_path / "site-1"} if number in (2, 3, 4) else set()

    result = play(tmp_path, during)
    failed = [r.server_round for r in result.rounds if r.failed]
    assert failed
    assert set(failed) <= {2, 3, 4}  # some writes fit into pages that are there
    said = "agent 1: SiteError: JournalError: This site's disk is full"
    assert caplog.text.count(said) == len(failed)
    assert "its disk is full. Make space: what it holds is whole" in caplog.text
    assert_whole(tmp_path, result, {1: len(failed)})


def test_the_disk_of_the_server_is_full(tmp_path: Path, disks: Disks) -> None:
    def during(number: int) -> None:
        if number == 1:  # later what is written fits into pages that are there
            disks.fill(tmp_path / "record")

    with pytest.raises(JournalError, match=r"record/server\.sqlite .*disk is full"):
        play(tmp_path, during)
    disks.full.clear()
    assert_whole(tmp_path, play(tmp_path))


def test_the_clock_goes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time

    def during(number: int) -> None:
        if number == 4:
            monkeypatch.setattr(time, "time", lambda: now() - 3 * 86_400)

    assert_whole(tmp_path, play(tmp_path, during))


def test_a_site_is_away_for_half_of_the_rounds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    away = {2, 3, 5}
    result = play(tmp_path, away=away)
    assert [r.absent for r in result.rounds] == [n in away for n in range(1, 7)]
    assert caplog.text.count("absent: agent 3") == 3
    assert_whole(tmp_path, result, {3: 3})


@pytest.mark.gate
def test_the_record_is_lost(tmp_path: Path) -> None:
    """What follows is another study, and the sites are charged for both."""

    def during(number: int) -> None:
        if number == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play(tmp_path, during)
    shutil.rmtree(tmp_path / "record")
    result = play(tmp_path)
    assert len(result.rounds) == NUM_ROUNDS
    for site in range(NUM_SITES):
        with SpendingLedger.held(tmp_path / f"site-{site}") as ledger:
            charged = [row.facts["study_id"] for row in ledger.rows]
        assert len(charged) == 1 + 2
        assert len(set(charged)) == 2


def test_the_page_names_tests_that_there_are() -> None:
    page = (ROOT / "examples/deployment/README.md").read_text()
    [section] = re.findall("^## What happens when .*?(?=^## )", page, re.M | re.S)
    named = re.findall(r"`(tests/[\w/]+\.py)`: ((?:`\w+`(?:, )?)+)", section)
    assert len(named) >= 15
    for file, words in named:
        tests = re.findall(r"^def test_(\w+)", (ROOT / file).read_text(), re.M)
        for word in re.findall(r"`(\w+)`", words):
            assert [test for test in tests if word in test], f"{file}: {word}"

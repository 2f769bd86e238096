"""FedWarmStart: killed servers, older records, and lost journals.

A site's message is in one release, whatever happens.
"""

import json
import logging
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.exception import AggregationError

from flwr_fbo import InProcessGrid, Seeds, tuning_app
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import has_journal
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.privacy.spending_ledger import SpendingLedger
from flwr_fbo.strategies.fed_warm_start import FedWarmStart
from flwr_fbo.tuning.search.agent_journal import KIND
from flwr_fbo.tuning.search.study import TuningStudy
from flwr_fbo.tuning.site.recorded_tuner import RecordedTuner
from tests.support.fed_warm_start import (
    ROUNDS,
    SIZES,
    LateGrid,
    N,
    make_objective,
    round_of,
    strategy,
)
from tests.support.killing import NUM_KILLS, killed_in
from tests.support.ledgers import ledger_charges

REAL_NOISE = Seeds(study=1, features=2)
SENDERS = range(sum(SIZES))


class Ended(Exception):  # noqa: N818
    """Stands for whatever ends a ServerApp."""


class SitesGrid(InProcessGrid):
    """Sites with folders; it notes vectors that leave, and may end in a round."""

    def __init__(
        self, folder: Path, dies_in: int = 0, app: ClientApp | None = None
    ) -> None:
        config: Any = {"fbo-folder": str(folder / "sites")}
        app = tuning_app(make_objective) if app is None else app
        super().__init__(app, N, run_config=config)
        self._folder, self._dies_in = folder, dies_in

    def push_messages(self, messages: Any) -> Any:
        """Deliver messages, and note the vectors in them."""
        sent = list(messages)
        for message in sent:
            arrays = message.content.array_records["arrays"]
            rows = [array.numpy().tolist() for array in arrays.values()]
            if rows and round_of(message):
                with (self._folder / "seen.jsonl").open("a") as file:
                    file.write(json.dumps(rows[0]) + "\n")
        return super().push_messages(sent)

    def pull_messages(self, message_ids: Any) -> Any:
        """Deliver replies, unless this is the round."""
        replies = list(super().pull_messages(message_ids))
        round_ = replies[0].metadata.group_id if replies else ""
        if round_ == str(self._dies_in):
            raise Ended
        return replies


def play(folder: Path, dies_in: int = 0, seeds: Seeds = REAL_NOISE) -> FedWarmStart:
    """Begin a study, or go on with it."""
    folder.mkdir(exist_ok=True)
    study = strategy(folder=folder / "server", seeds=seeds)
    study.start(SitesGrid(folder, dies_in), num_rounds=ROUNDS)
    return study


def _quietly(*arguments: Any) -> None:
    logging.getLogger("flwr").setLevel(logging.CRITICAL)  # of this process alone
    play(*arguments)


def check_what_left(folder: Path) -> list[LedgerRow]:
    """Whatever a site has seen is in the ledger: one vector a cohort."""
    path, seen = folder / "server" / "server.sqlite", folder / "seen.jsonl"
    ledger: list[LedgerRow] = []
    if has_journal(path):
        with Journal(None, path) as journal:
            ledger = journal.ledger()
    rows = [row.vectors[0].tolist() for row in ledger]
    for line in seen.read_text().splitlines() if seen.exists() else ():
        # The last line may have been cut off by the kill, before it was sent.
        if line.endswith("]]"):
            vectors = json.loads(line)
            assert vectors == rows[: len(vectors)]
    return ledger


def sent(folder: Path, slot: int) -> dict[int, int]:
    """Return the releases on record at a site, and the iteration of its message."""
    (path,) = (folder / "sites").glob(f"*-agent-{slot}.sqlite")
    with Journal(None, path) as journal:
        journal.require_kind(KIND)
        study = TuningStudy.from_dict(journal.identity)
        return RecordedTuner(journal, study, slot).made_after


@pytest.mark.parametrize(
    "num_kills",
    [
        4,
        pytest.param(NUM_KILLS, marks=[pytest.mark.slow, pytest.mark.no_cover]),
    ],
)
def test_a_killed_server_releases_once_a_cohort(tmp_path: Path, num_kills: int) -> None:
    """SIGKILL of the whole process, at any time; real noise: a second draw shows."""
    rng, kills, studies = random.Random(1), 0, 0
    whole = tmp_path / "whole"
    whole.mkdir()
    statements = killed_in(None, _quietly, whole)
    assert statements is not None
    while kills < num_kills:
        folder = tmp_path / f"study-{studies}"
        folder.mkdir()
        studies += 1
        before: list[int | None] = [rng.randrange(statements) for _ in range(6)]
        for most in [*before, None]:  # at last it may end
            if killed_in(most, _quietly, folder) is not None:
                break
            kills += 1
            check_what_left(folder)
        assert kills >= studies  # the first one is within the study's statements
        ledger = check_what_left(folder)
        assert [row.facts["made_after"] for row in ledger] == [2, 5]
        for slot in range(N):
            assert sent(folder, slot).keys() == ({1} if slot in SENDERS else set())
        with SpendingLedger.held(folder / "sites") as spent:
            owners = [len(ledger_charges(spent, owner=slot)) for slot in range(N)]
        assert owners == [1] * len(SENDERS) + [0] * (N - len(SENDERS))


def test_an_older_copy_of_the_server_s_record_is_refused_by_who_has_sent(
    tmp_path: Path,
) -> None:
    with pytest.raises(Ended):
        play(tmp_path, dies_in=3)  # its messages have left, and no release is made
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "server", copy)
    with pytest.raises(Ended):
        play(tmp_path, dies_in=5)  # they have heard of it
    assert len(check_what_left(tmp_path)) == 1
    shutil.rmtree(tmp_path / "server")
    copy.rename(tmp_path / "server")
    with pytest.raises(AggregationError, match="The server's record is an older"):
        play(tmp_path)
    assert check_what_left_is_empty(tmp_path)


def check_what_left_is_empty(folder: Path) -> bool:
    """Return whether the server's record has no release."""
    with Journal(None, folder / "server" / "server.sqlite") as journal:
        return journal.ledger() == []


@pytest.mark.usefixtures("no_naps")
def test_sites_that_wait_do_not_notice_it_and_nothing_is_released(
    tmp_path: Path,
) -> None:
    """Without those who have sent there is nobody whom it could ask."""
    with pytest.raises(Ended):
        play(tmp_path, dies_in=2)
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "server", copy)
    play(tmp_path)
    shutil.rmtree(tmp_path / "server")
    copy.rename(tmp_path / "server")
    grid = LateGrid(tuning_app(make_objective), N)
    grid.looks, grid.away = 10**9, (0, 1, 2)
    study = strategy(folder=tmp_path / "server", seeds=REAL_NOISE, patience=0.2)
    with pytest.raises(AggregationError, match="the release of a cohort that is abs"):
        study.start(grid, num_rounds=ROUNDS)
    assert check_what_left_is_empty(tmp_path)


def test_what_nobody_there_has_heard_of_is_released_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What remains, as the threat model says: two draws of noise for one message."""
    inner, app = tuning_app(make_objective), ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        slot = int(context.node_config["partition-id"])
        if round_of(message) > 3 and slot in range(SIZES[0]):
            raise RuntimeError("away")  # before it has heard of the release
        return inner(message, context)

    def go_on(dies_in: int) -> None:
        study = strategy(folder=tmp_path / "server", seeds=REAL_NOISE)
        grid = SitesGrid(tmp_path, dies_in, app)
        study.start(grid, num_rounds=ROUNDS)

    with pytest.raises(Ended):
        go_on(dies_in=3)
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "server", copy)
    with pytest.raises(Ended):
        go_on(dies_in=5)
    (first,) = check_what_left(tmp_path)
    assert (tmp_path / "seen.jsonl").read_text()
    shutil.rmtree(tmp_path / "server")
    copy.rename(tmp_path / "server")
    # Those who wait notice it when they are asked: after the release.
    caplog.clear()
    with pytest.raises(AggregationError, match="none of 5 agents gave a result"):
        go_on(dies_in=5)
    assert "agent 3: SiteError: JournalError: The server's rec" in caplog.text
    with Journal(None, tmp_path / "server" / "server.sqlite") as journal:
        (second,) = journal.ledger()
    assert second.facts["made_after"] == first.facts["made_after"]
    assert not np.array_equal(second.vectors, first.vectors)


@pytest.fixture
def no_naps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flwr_fbo.strategies.enrolment.time.sleep", lambda _: None)


def _lose_journal(folder: Path, slot: int) -> None:
    (path,) = (folder / "sites").glob(f"*-agent-{slot}.sqlite")
    path.unlink()


def test_a_site_that_lost_its_journal_sends_no_second_message(tmp_path: Path) -> None:
    """After its cohort's release it is not asked again, under the same agent-id."""
    with pytest.raises(Ended):
        play(tmp_path, dies_in=5)
    _lose_journal(tmp_path, 0)
    study = play(tmp_path)
    assert [r.answered for r in study._rounds] == [3, 3, 3, 5, 5, 5, 7, 7, 7]
    assert sent(tmp_path, 0) == {}
    assert sent(tmp_path, 1) == {1: 2}
    with SpendingLedger.held(tmp_path / "sites") as spent:
        assert len(ledger_charges(spent, owner=0)) == 1


def test_a_site_that_lost_its_journal_refuses_to_send_again(tmp_path: Path) -> None:
    """Its message has left, and was in no release: its ledger knows."""
    with pytest.raises(Ended):
        play(tmp_path, dies_in=3)
    _lose_journal(tmp_path, 0)
    study = play(tmp_path)
    assert [r.failed for r in study._rounds[:4]] == [0, 0, 1, 0]
    assert len(study.server.ledger) == 2
    assert sent(tmp_path, 0) == {}
    with SpendingLedger.held(tmp_path / "sites") as spent:
        assert len(ledger_charges(spent, owner=0)) == 1


def test_a_site_that_lost_everything_is_in_one_release(tmp_path: Path) -> None:
    """Its ledger too: another message takes the place of the one that was lost."""
    seeded = Seeds(study=1, features=2, noise=3)
    with pytest.raises(Ended):
        play(tmp_path / "lost", 3, seeds=seeded)
    shutil.rmtree(tmp_path / "lost" / "sites")
    study = play(tmp_path / "lost", seeds=seeded)
    assert [r.failed for r in study._rounds] == [0] * ROUNDS
    assert len(study.server.ledger) == 2
    for slot in range(N):
        assert len(sent(tmp_path / "lost", slot)) == (slot in SENDERS)
    assert np.isfinite(study.server.ledger[0].vectors).all()

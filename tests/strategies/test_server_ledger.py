"""What leaves the server is recorded first, once, and within the budget."""

import json
import math
import shutil
import sqlite3
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.serverapp.exception import PrivacyBudgetExhausted
from typer.testing import CliRunner

from flwr_fbo import InProcessGrid
from flwr_fbo.cli import app
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.strategies.enrolment import first_line
from flwr_fbo.strategies.study_record import read_ledger
from flwr_fbo.study.report.ledger_view import committed_text
from flwr_fbo.tuning.kind import SERVER
from tests.support.federation import NUM_AGENTS, numpy_app, strategy


class Watching(InProcessGrid):
    """Notes, for each round, how many arrays each node was sent."""

    def __init__(self, fails: tuple[tuple[str, int], ...] = ()) -> None:
        super().__init__(numpy_app(), NUM_AGENTS)
        self.sent: dict[str, list[int]] = {}
        self.wanted: dict[str, bool] = {}
        self._fails = fails

    def push_messages(self, messages: Any) -> Any:
        pushed = []
        for message in messages:
            round_ = message.metadata.group_id
            if round_:
                arrays = message.content.array_records["arrays"]
                self.sent.setdefault(round_, []).append(len(arrays))
                config = message.content.config_records["config"]
                self.wanted[round_] = int(config["fbo-release"]) > 0
            slot = len(self.sent.get(round_, [])) - 1
            if (round_, slot) not in self._fails:  # lost on its way
                pushed.append(message)
        return super().push_messages(pushed)


def test_a_round_without_a_release_costs_nothing_and_sends_nothing() -> None:
    grid = Watching()
    study = strategy(release_after=[1, 3])
    result = study.start(grid, num_rounds=6)
    assert [sum(grid.sent[str(r)]) for r in range(1, 7)] == [0, 4, 0, 4, 0, 0]
    assert [grid.wanted[str(r)] for r in range(1, 7)] == [True, False, True] + [
        False
    ] * 3
    assert result.privacy_spent is not None
    assert result.privacy_spent.num_releases == 2
    epsilons = [r.epsilon for r in result.rounds]
    assert epsilons[0] == epsilons[1]
    assert epsilons[2] == epsilons[5] == result.privacy_spent.epsilon
    agents = grid.agents(study.study)
    vectors = study.server.ledger[-1].vectors
    for agent in agents:
        np.testing.assert_array_equal(agent.state_dict()["vectors"], vectors)


def test_a_release_is_sent_until_it_is_acknowledged() -> None:
    grid = Watching(fails=(("2", 1), ("3", 1)))
    strategy(release_after=[1]).start(grid, num_rounds=6)
    assert [grid.sent[str(r)] for r in range(2, 6)] == [
        [1, 1, 1, 1],
        [0, 1, 0, 0],
        [0, 1, 0, 0],
        [0, 0, 0, 0],
    ]


def test_by_default_releases_stop_when_few_follow() -> None:
    study = strategy(min_follow_probability=0.3)
    study.start(InProcessGrid(numpy_app(), NUM_AGENTS), num_rounds=6)
    assert [row.iteration for row in study.server.ledger] == [0, 1, 2]
    usual = strategy(min_follow_probability=None)
    usual.plan(60)
    assert usual.server.iterations == tuple(range(20))  # 1 / 20 is 0.05


@cache
def _two_releases() -> float:
    study = strategy(release_after=[1, 2])
    study.start(InProcessGrid(numpy_app(), NUM_AGENTS), num_rounds=4)
    return study.privacy_spent.epsilon


def test_the_budget_halts_releases_and_agents_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    budget = _two_releases() + 1e-6
    study = strategy(max_epsilon=budget)
    grid = InProcessGrid(numpy_app(), NUM_AGENTS)
    result = study.start(grid, num_rounds=6)
    assert [row.iteration for row in study.server.ledger] == [0, 1]
    assert result.privacy_spent is not None
    assert result.privacy_spent.epsilon <= budget
    assert len(grid.agents(study.study)[0].values) == 4 + 5
    assert caplog.text.count("would exceed the privacy budget") == 1


def test_the_budget_may_end_the_study() -> None:
    study = strategy(max_epsilon=_two_releases() + 1e-6, when_exhausted="raise")
    grid = InProcessGrid(numpy_app(), NUM_AGENTS)
    with pytest.raises(PrivacyBudgetExhausted, match="Round 3: a release would exceed"):
        study.start(grid, num_rounds=6)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a server with seeded noise."""
    return _recorded(tmp_path_factory.mktemp("recorded")).parent


def _recorded(folder: Path, **options: Any) -> Path:
    study = strategy(folder=folder, **options)
    study.start(InProcessGrid(numpy_app(), NUM_AGENTS), num_rounds=4)
    return folder / "server.sqlite"


def test_an_auditor_can_read_it(tmp_path: Path) -> None:
    path = _recorded(tmp_path, noise_seed=None)
    shown = CliRunner().invoke(
        app, ["ledger", "show", str(tmp_path)], env={"COLUMNS": "100"}
    )
    assert shown.exit_code == 0, shown.output
    assert "3 releases: epsilon " in shown.output
    assert "NOT PRIVATE" not in shown.output
    (values,) = json.loads(
        CliRunner().invoke(app, ["ledger", "show", str(path), "--json"]).stdout
    )
    assert [release["round"] for release in values["releases"]] == [1, 2, 3]
    assert np.array(values["releases"][0]["vectors"]).shape == (4, 30)
    assert f"epsilon {values['spent'][0]['epsilon']:.4f}" in shown.output
    assert values["study"]["num_rounds"] == 4


def test_it_begins_with_who_when_and_how_much(recorded: Path) -> None:
    """And its dates are whole in a narrow terminal; settings come last."""
    command = ["ledger", "show", str(recorded)]
    shown = CliRunner().invoke(app, command, env={"COLUMNS": "60"}).output
    with Journal.snapshot(recorded / "server.sqlite") as journal:
        study = read_ledger(journal)[0]["study"]["study_id"]
        times = [committed_text(row.committed) for row in journal.ledger()]
    first, second, *rest = shown.splitlines()
    assert first == f"Study {study} of {NUM_AGENTS} agents"
    assert second == f"Committed from {times[0]} to {times[-1]}"
    assert rest[0].startswith("3 releases: epsilon ")
    for at in times:
        assert [line for line in rest if f" {at}" in line]
    assert shown.index("NOT PRIVATE") < shown.index("committed")
    assert shown.index(f" {times[-1]}") < shown.index("weights: ")


def test_seeded_noise_is_marked_in_the_ledger(recorded: Path) -> None:
    shown = CliRunner().invoke(app, ["ledger", "show", str(recorded)])
    assert "NOT PRIVATE" in shown.output


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE ledger SET facts = replace(facts, '1.0', '9.0') WHERE iteration = 1",
        "UPDATE ledger SET vectors = zeroblob(length(vectors)) WHERE iteration = 0",
        "UPDATE ledger SET committed = committed + 1 WHERE iteration = 2",
        "DELETE FROM ledger WHERE iteration = 1",
        "DELETE FROM ledger WHERE iteration = 2",  # the last
    ],
)
def test_damage_is_refused(recorded: Path, tmp_path: Path, change: str) -> None:
    shutil.copytree(recorded, tmp_path, dirs_exist_ok=True)
    connection = sqlite3.connect(tmp_path / "server.sqlite")
    assert connection.execute(change).rowcount == 1
    connection.commit()
    connection.close()
    shown = CliRunner().invoke(app, ["ledger", "show", str(tmp_path)])
    assert shown.exit_code == 1
    assert "is damaged" in shown.output
    with pytest.raises(JournalError, match="is damaged"):
        _recorded(tmp_path)


def test_what_is_no_ledger_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "agent.sqlite"
    Journal({"kind": "agent"}, path).close()
    shown = CliRunner().invoke(app, ["ledger", "show", str(path)])
    assert shown.exit_code == 1
    assert "of kind 'agent'" in shown.output


def test_one_release_an_iteration(tmp_path: Path) -> None:
    row = LedgerRow(0, {"a": 1}, np.zeros((1, 2)))
    with Journal({"kind": "server"}, tmp_path / "j.sqlite") as journal:
        journal.change_state({"x": np.zeros(1)}, (), [row])
        with pytest.raises(JournalError, match="UNIQUE"):
            journal.change_state({"x": np.ones(1)}, (), [row])
        assert journal.load_state()["x"][0] == 0.0  # all of it, or nothing
        assert len(journal.ledger()) == 1


def test_no_secret_is_on_disk(tmp_path: Path) -> None:
    """Neither what agents sent, nor the sum, is anywhere in the server's folder."""
    sent: list[bytes] = []

    class Noting(InProcessGrid):
        def pull_messages(self, message_ids: Any) -> Any:
            replies = list(super().pull_messages(message_ids))
            for reply in replies:
                for record in reply.content.array_records.values():
                    arrays = [a for a in record.values() if len(a.data) > 0]
                    sent.extend(a.numpy().tobytes() for a in arrays)
            return replies

    study = strategy(folder=tmp_path, noise_seed=None)
    study.start(Noting(numpy_app(), NUM_AGENTS), num_rounds=4)
    content = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert len(sent) == 3 * NUM_AGENTS
    assert study.server.ledger[0].vectors[0].tobytes()[:64] in content
    for message in sent:
        assert message[:64] not in content


def test_what_could_not_be_recorded_is_not_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new run would draw it again."""

    whole = Journal.change_state

    def full(self: Journal, arrays: Any, gone: Any, releases: list[LedgerRow]) -> None:
        if releases and self.identity["kind"] == SERVER.name:  # not of a site
            raise JournalError("disk is full")
        whole(self, arrays, gone, releases)

    study = strategy(folder=tmp_path, noise_seed=None)
    grid = InProcessGrid(numpy_app(), NUM_AGENTS)
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "change_state", full)
        with pytest.raises(JournalError, match="disk is full"):
            study.start(grid, num_rounds=4)
    assert study.server.vectors is None
    assert study.recommendation.params is None
    assert study.privacy_spent.num_releases == 0
    again = strategy(folder=tmp_path, noise_seed=None)
    again.start(InProcessGrid(numpy_app(), NUM_AGENTS), num_rounds=4)
    assert [row.iteration for row in again.server.ledger] == [0, 1, 2]


def test_of_the_control_nothing_is_spent_in_the_ledger_either(tmp_path: Path) -> None:
    _recorded(tmp_path, noise_only=True)
    shown = CliRunner().invoke(app, ["ledger", "show", str(tmp_path)])
    assert "epsilon 0.0000 per client (message or zeros, delta 0.001)" in shown.output


def test_the_ledger_of_open_releases_is_json(tmp_path: Path) -> None:
    options = {"noise_multiplier": 0.0, "sampling_probability": 1.0}
    _recorded(tmp_path, clip_norm=math.inf, **options)
    shown = CliRunner().invoke(app, ["ledger", "show", str(tmp_path), "--json"])
    (values,) = json.loads(shown.stdout)
    assert values["releases"][0]["sensitivity"] is None
    assert values["spent"] == []


@pytest.mark.parametrize("calibration", ["joint", "published"])
def test_the_whole_of_epsilon_is_used(calibration: str) -> None:
    study = strategy(
        noise_multiplier=None, epsilon=3.0, calibration=calibration, num_agents=9
    )
    study.plan(12)
    accountant = study.server.new_accountant()
    for iteration in range(12):
        charge = study.server.charge(iteration)
        accountant.charge(charge.noise_multiplier)
    assert 2.98 < accountant.epsilon() <= 3.0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"delta": 0.4}, "delta=0.4 is not allowed: below sampling_probability=0.35"),
        ({"delta": None, "max_epsilon": 1.0}, "delta=None is not allowed: given"),
        ({"clip_norm": 1e-190}, "clip_norm=1e-190"),
    ],
)
def test_what_would_mislead_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        strategy(**options)


def test_fixed_size_says_that_it_does_not_compare(
    caplog: pytest.LogCaptureFixture,
) -> None:
    options: dict[str, Any] = {"sampling": "fixed-size", "sampling_probability": 0.5}
    with pytest.raises(ValueError, match="method='pld' is not allowed: 'rdp'"):
        strategy(**options)
    study = strategy(accountant="rdp", **options)
    study.start(InProcessGrid(numpy_app(), NUM_AGENTS), num_rounds=3)
    assert study.privacy_spent.epsilon > 0
    assert "replace-one, for samples of 2 of 4 agents" in " ".join(
        study.server.summary()
    )


def test_a_client_cannot_write_lines_of_the_log() -> None:
    assert first_line("Boom\nevil\x1b[2J: " + "x" * 999).startswith(r"evil\x1b[2J: x")
    assert len(first_line("x" * 999)) == 300

"""A site whose ledger is gone does not begin at zero while its journals are there."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict, UserConfig
from typer.testing import CliRunner

from flwr_fbo import InProcessGrid, Limits, tuning_app
from flwr_fbo._common.errors import RefusedError
from flwr_fbo.bandits.linear.study import (
    LinearBanditInstruction,
    LinearBanditStudy,
)
from flwr_fbo.cli import app as command
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.privacy.spending_ledger import FILE_NAME, Charge, SpendingLedger
from tests.support.federation import NUM_AGENTS, make_objective, strategy
from tests.support.gate import Site, gate_app, private_bandit_study
from tests.support.lost_ledgers import EACH, LIMITS, PLAYS, play_tuning
from tests.support.site_budget import Node, asked_of, site_of, study_of


def _rows(folder: Path) -> list[Any]:
    with SpendingLedger.held(folder) as ledger:
        return sorted(str(row.facts) for row in ledger.rows)


def _recover(folder: Path) -> str:
    result = CliRunner().invoke(command, ["ledger", "recover", str(folder)])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("study", ["one", "x-agent-7"])
@EACH
def test_a_deleted_ledger_is_missed_and_made_again(
    name: str, study: str, tmp_path: Path
) -> None:
    play = PLAYS[name]
    play(tmp_path, study)
    rows = _rows(tmp_path)
    assert len(rows) == (2 if name == "tuning" else 1)
    (tmp_path / FILE_NAME).unlink()
    for _ in range(2):
        with pytest.raises(JournalError, match=r"ledger lacks|ledger recover"):
            play(tmp_path, "two")
        assert not (tmp_path / FILE_NAME).exists()
    assert f"{len(rows)} release" in _recover(tmp_path)
    assert _rows(tmp_path) == rows
    play(tmp_path, "two")
    assert len(_rows(tmp_path)) == 2 * len(rows)
    assert "0 releases added" in _recover(tmp_path)


@EACH
def test_an_older_copy_of_a_ledger_is_missed(name: str, tmp_path: Path) -> None:
    play, older = PLAYS[name], tmp_path / "older"
    play(tmp_path / "site")
    shutil.copy(tmp_path / "site" / FILE_NAME, older)
    play(tmp_path / "site", "two")
    rows = _rows(tmp_path / "site")
    shutil.copy(older, tmp_path / "site" / FILE_NAME)
    if name == "tuning":  # of two releases
        with pytest.raises(JournalError, match="ledger recover"):
            play(tmp_path / "site", "three")
        _recover(tmp_path / "site")
        assert _rows(tmp_path / "site") == rows
    else:  # the last one of a journal may be missing: it is counted
        play(tmp_path / "site", "three")
        assert len(_rows(tmp_path / "site")) == 3


@pytest.mark.parametrize("left", ["nothing", "an older copy"])
def test_a_round_without_enrolment_misses_it_too(left: str, tmp_path: Path) -> None:
    ledger = tmp_path / FILE_NAME
    with SpendingLedger.held(tmp_path):
        pass
    older = ledger.read_bytes()
    play_tuning(tmp_path)
    ledger.unlink()
    if left == "an older copy":
        ledger.write_bytes(older)
    with pytest.raises(JournalError, match="ledger recover"):
        Node(tmp_path).ask(site_of(), asked_of(study_of(study_id="two"), 0, 1))


def test_a_folder_counts_whatever_the_agent_id(tmp_path: Path) -> None:
    """A folder of an operator is about one site: another agent-id forgets nothing."""
    play_tuning(tmp_path)
    limits = Limits(max_releases=2)
    other = Node(tmp_path, **{"agent-id": 1})
    with pytest.raises(RefusedError, match="is 3 releases, and max_releases=2"):
        other.ask(site_of(limits), asked_of(study_of((Charge(9.0),)), 0, 1, slot=1))
    (tmp_path / FILE_NAME).unlink()
    with pytest.raises(JournalError, match="ledger recover"):
        other.ask(site_of(), asked_of(study_of((Charge(9.0),)), 0, 1, slot=1))


def test_agents_that_a_run_puts_into_one_folder_count_for_themselves(
    tmp_path: Path,
) -> None:
    config = {"fbo-folder": str(tmp_path)}
    for agent in (0, 1):
        context = Context(1, 1, {"agent-id": agent}, RecordDict(), dict(config))
        site, study = site_of(Limits(max_releases=1)), study_of((Charge(9.0),))
        assert site.answer(context, [], asked_of(study, 0, 1, slot=agent)).arrays
    assert "2 releases" not in _show(tmp_path)


def test_a_journal_that_cannot_be_read_stops_the_recovering(tmp_path: Path) -> None:
    play_tuning(tmp_path)
    (tmp_path / FILE_NAME).unlink()
    [journal] = tmp_path.glob("study-*.sqlite")
    journal.write_bytes(b"x" * 5000)
    result = CliRunner().invoke(command, ["ledger", "recover", str(tmp_path)])
    assert result.exit_code != 0
    assert not (tmp_path / FILE_NAME).exists()
    absent = CliRunner().invoke(command, ["ledger", "recover", str(tmp_path / "no")])
    assert "no folder" in absent.output


def test_a_site_that_was_killed_before_the_charge_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: Any) -> None:
        raise SystemExit

    with monkeypatch.context() as killed:
        killed.setattr(SpendingLedger, "add", dies)
        with pytest.raises(SystemExit):
            play_tuning(tmp_path)
    assert _rows(tmp_path) == []
    play_tuning(tmp_path)
    assert len(_rows(tmp_path)) == 2


def _show(folder: Path, *options: str) -> str:
    result = CliRunner().invoke(command, ["ledger", "show", str(folder), *options])
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def test_agents_of_a_folder_are_not_added_up(tmp_path: Path) -> None:
    config = {"fbo-folder": str(tmp_path)}
    for agent in range(3):
        context = Context(1, 1, {"agent-id": agent}, RecordDict(), dict(config))
        site, make = private_bandit_study("linear", LIMITS)
        study, _ = make(f"of-{agent}")
        number = site.answer(context, [], study.enrolment()).metrics["journal"]
        release = _release(study, agent, int(number))
        assert site.answer(context, [], release).arrays
    (tmp_path / "budget").mkdir()
    shutil.copy(tmp_path / FILE_NAME, tmp_path / "budget")
    text = _show(tmp_path / "budget")
    for agent in range(3):
        own = f"1 release of agent {agent}, of all studies together: epsilon 1.0000"
        assert f"{own} per example (replaced by another, delta 1e-05)" in text
    assert text.count(": epsilon ") == 3
    assert ", delta 0.001)" in _show(tmp_path / "budget", "--delta", "1e-3")


def _release(study: LinearBanditStudy, slot: int, number: int) -> dict[str, Any]:
    wide = LinearBanditInstruction(
        "round", study, slot, number, send_release=True, num_trials=2
    )
    return wide.to_config()


def test_a_site_without_releases_says_so(tmp_path: Path) -> None:
    with SpendingLedger.held(tmp_path):
        pass
    assert "0 releases" in _show(tmp_path)


def test_what_no_noise_covers_is_shown_as_such(tmp_path: Path) -> None:
    site = Site(gate_app(), **{"fbo-folder": str(tmp_path)})
    site.run_trials(is_hidden=False)
    text = _show(tmp_path / FILE_NAME)
    assert "unprotected" in text
    assert "epsilon infinite per client" in text


def test_an_auditor_finds_a_study_everywhere_by_its_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="flwr.fbo")
    server, sites = tmp_path / "server", tmp_path / "sites"
    configs: list[UserConfig] = [
        {"partition-id": agent, "fbo-folder": str(sites)} for agent in range(NUM_AGENTS)
    ]
    app = tuning_app(make_objective)
    grid = InProcessGrid(app, NUM_AGENTS, node_configs=configs)
    study = strategy(folder=server)
    study.start(grid, num_rounds=2)
    name = study.study.study_id
    with SpendingLedger.held(sites) as ledger:
        assert {row.facts["study_id"] for row in ledger.rows} == {name}
    page = tmp_path / "page.html"
    about = ["report", str(server), "--output", str(page)]
    assert CliRunner().invoke(command, about).exit_code == 0
    for text in (caplog.text, page.read_text(), _show(server), _show(sites)):
        assert name in text

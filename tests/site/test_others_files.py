"""No site or server uses a file that other users can change, and check-site says so."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict
from typer.testing import CliRunner

from flwr_fbo import InProcessGrid, tuning_app
from flwr_fbo._common.errors import NodeConfigError
from flwr_fbo._common.files import OPEN_TO_OTHERS
from flwr_fbo.cli import app
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.privacy.spending_ledger import FILE_NAME, Charge, SpendingLedger
from flwr_fbo.secure.roster import Roster, SigningKey
from flwr_fbo.secure.site_sums import SumIdentity
from tests.support.federation import NUM_AGENTS, make_objective, strategy
from tests.support.lost_ledgers import EACH, PLAYS

PUBLIC = rf"is not used, as |{OPEN_TO_OTHERS}"


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770])
@EACH
def test_a_ledger_that_others_have_deleted_is_no_new_beginning(
    name: str, mode: int, tmp_path: Path
) -> None:
    """Whoever may write the folder takes ledger and journals away together."""
    site = tmp_path / "site"
    PLAYS[name](site)
    for one in site.iterdir():
        one.unlink()
    site.chmod(mode)
    with pytest.raises(JournalError, match=PUBLIC):
        PLAYS[name](site, "two")
    assert not list(site.iterdir())
    site.chmod(0o700)
    PLAYS[name](site, "two")


@EACH
def test_a_folder_below_one_of_others_is_not_used(
    name: str, tmp_path: Path, belongs: Callable[[Path, int], None]
) -> None:
    above = tmp_path / "above"
    above.mkdir(mode=0o777)
    above.chmod(0o777)
    with pytest.raises(JournalError, match=PUBLIC):
        PLAYS[name](above / "site")
    above.chmod(0o755)
    PLAYS[name](above / "site")
    belongs(above, os.geteuid() + 1)
    with pytest.raises(JournalError, match=PUBLIC):
        PLAYS[name](above / "site", "two")


def test_a_server_keeps_no_record_where_others_can_change_it(tmp_path: Path) -> None:
    folder = tmp_path / "server"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(JournalError, match=f": chmod go-w {folder}"):
        strategy(folder=folder).start(
            InProcessGrid(tuning_app(make_objective), NUM_AGENTS), num_rounds=2
        )
    assert not list(folder.iterdir())


class Files:
    """A site with all files that it can have, and what check-site says of them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.site = folder, folder / "site"
        keys = [SigningKey.draw() for _ in range(3)]
        self.roster, self.key = folder / "roster.json", folder / "key.pem"
        Roster.draw({i: key.public for i, key in enumerate(keys)}).save(self.roster)
        keys[0].save(self.key)
        with SpendingLedger.held(self.site) as ledger:
            ledger.record(("tuning", "a"), 1, Charge(9.0), owner=0)
        self.ledger = self.site / FILE_NAME
        self.journal = self.site / "study-a-agent-7.sqlite"
        shutil.copy(self.ledger, self.journal)
        self.config = folder / "site.toml"
        self.config.write_text(
            f'agent-id = 0\nfbo-folder = "{self.site}"\nfbo-max-releases = 9\n'
            f'fbo-roster = "{self.roster}"\nfbo-key = "{self.key}"\n'
        )

    def problems(self) -> dict[str, str]:
        """Return the problems that check-site finds, by topic."""
        result = CliRunner().invoke(app, ["check-site", str(self.config)])
        lines = [t[9:] for t in result.output.splitlines() if t.startswith("PROBLEM")]
        assert result.exit_code == bool(lines), result.output
        return {line[:11].strip(): line for line in lines}


TOPICS = {
    "site": "fbo-folder",
    "ledger": "ledger",
    "journal": "ledger",
    "roster": "secure sums",
    "key": "secure sums",
    "config": "node config",
}


@pytest.mark.parametrize("name", TOPICS)
def test_check_site_names_the_file_and_the_command(
    name: str, tmp_path: Path, belongs: Callable[[Path, int], None]
) -> None:
    files = Files(tmp_path)
    assert files.problems() == {}
    path: Path = getattr(files, name)
    before = path.stat().st_mode & 0o777
    for mode in (0o666, 0o660, 0o777):
        path.chmod(mode | 0o700 if path.is_dir() else mode)
        ((topic, said),) = files.problems().items()
        assert topic == TOPICS[name]
        assert f"{path} is not used, as others may write it" in said
        assert said.endswith(f" {path}")
    path.chmod(before)
    assert files.problems() == {}
    belongs(path, os.geteuid() + 1)
    ((topic, said),) = files.problems().items()
    assert topic == TOPICS[name]
    assert f"belongs to user {os.geteuid() + 1}" in said


def test_check_site_names_the_folder_above_all_files_where_each_is_used(
    tmp_path: Path,
) -> None:
    files = Files(tmp_path)
    tmp_path.chmod(0o777)
    found = files.problems()
    assert found.keys() == {"fbo-folder", "secure sums", "node config"}
    assert all(said.endswith(f": chmod go-w {tmp_path}") for said in found.values())


@pytest.mark.parametrize("name", ["roster", "key"])
def test_a_site_uses_no_roster_or_key_of_others(name: str, tmp_path: Path) -> None:
    files = Files(tmp_path)
    node = {"fbo-roster": str(files.roster), "fbo-key": str(files.key)}
    context = Context(0, 0, dict(node), RecordDict(), {})
    assert SumIdentity.of(context.node_config).slot == 0
    getattr(files, name).chmod(0o666)
    with pytest.raises(NodeConfigError, match=f"fbo-{name}.* is not used") as error:
        SumIdentity.of(context.node_config)
    assert str(tmp_path) not in error.value.public


def test_a_roster_that_was_replaced_by_a_link_of_others_is_not_used(
    tmp_path: Path,
) -> None:
    theirs = tmp_path / "theirs"
    for folder in (tmp_path / "mine", theirs):
        folder.mkdir()
    files = Files(tmp_path / "mine")
    files.roster.rename(theirs / "roster.json")
    files.roster.symlink_to(theirs / "roster.json")
    assert files.problems() == {}
    theirs.chmod(0o777)
    assert files.problems()["secure sums"].endswith(f": chmod go-w {theirs}")

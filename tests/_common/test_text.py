"""No name steers a terminal, or the eye of who reads a page or a log."""

import io
import logging
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from typer.testing import CliRunner

from flwr_fbo import FedVote, InProcessGrid, tuning_app
from flwr_fbo._common.text import printable
from flwr_fbo.cli import app
from flwr_fbo.cli.output import TextConsole
from flwr_fbo.study.report.page import Section, Table, render

# Clears a terminal, sets its title, and reverses what comes after it.
CLEARS, TITLES, REVERSES = "\x1b[2J", "\x1b]0;mine\x07", "\u202e"
EVIL = f"x{CLEARS}{TITLES}{REVERSES}[/b]\x9b\r"
SEEN = r"x\x1b[2J\x1b]0;mine\x07\u202e[/b]\x9b\r"


def _is_plain(text: str) -> bool:
    return not any(c in text for c in "\x1b\x07\x9b\r\u202e")


def _said(*command: str) -> str:
    """Return what a command prints, to a terminal as into a pipe."""
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    return result.output


def test_what_cannot_be_seen_is_written_out() -> None:
    assert printable(EVIL) == SEEN
    plain = "C = 0.1 ± 2\n\tgamma\u2212x, \u00e9\u4e2d"
    assert printable(plain) == plain
    assert printable("\ud800") == r"\ud800"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the folders of a server and of its sites, in a study of evil names."""
    server, sites = (tmp_path_factory.mktemp(name) for name in ("server", "sites"))
    study = FedVote(
        {
            EVIL: FloatDistribution(0, 1),
            "kernel": CategoricalDistribution([EVIL, "linear"]),
        },
        "maximize",
        num_agents=3,
        epsilon=8.0,
        delta=1e-3,
    )
    clients = tuning_app(lambda context: lambda trial: trial[EVIL])
    grid = InProcessGrid(clients, 3, run_config={"fbo-folder": str(sites)})
    study.start(grid, num_rounds=3, folder=server)
    return server, sites


def test_no_escape_character_reaches_a_printed_ledger(
    folders: tuple[Path, Path],
) -> None:
    said = _said("ledger", "show", str(folders[0]))
    assert _is_plain(said)
    assert _is_plain(_said("ledger", "show", str(folders[1] / "spending.sqlite")))
    assert _is_plain(_said("ledger", "show", str(folders[0]), "--json"))


def test_no_escape_character_reaches_a_page(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    journal = min(folders[1].glob("study-*-agent-0.sqlite"))
    for i, results in enumerate((folders[0], journal)):
        page = tmp_path / f"{i}.html"
        _said("report", str(results), "--output", str(page))
        text = page.read_text()
        assert SEEN in text
        assert _is_plain(text)
    table = Table((EVIL, EVIL), [(EVIL, EVIL)], EVIL)
    section = Section(EVIL, [EVIL, table, replace(table, folded=EVIL)])
    assert _is_plain(render(EVIL, EVIL, [section], EVIL))


def test_no_escape_character_reaches_a_printed_table() -> None:
    """Such as that of an experiment, with the labels of somebody else's file."""
    from rich.table import Table as RichTable

    out = io.StringIO()
    console = TextConsole(file=out, width=200)
    table = RichTable(title=EVIL)
    table.add_column(EVIL)
    table.add_row(EVIL)
    console.print(table)
    console.print(EVIL)
    assert _is_plain(out.getvalue())
    assert out.getvalue().count(SEEN) == 4


def test_no_escape_character_reaches_a_printed_error(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    """A damaged row bears whatever name somebody gave it."""
    path = tmp_path / "server.sqlite"
    shutil.copy(folders[0] / "server.sqlite", path)
    with closing(sqlite3.connect(path)) as connection:
        first = "SELECT min(rowid) FROM state"
        connection.execute(
            f"UPDATE state SET name = ? WHERE rowid = ({first})", (EVIL,)
        )
        connection.commit()
    result = CliRunner().invoke(app, ["report", str(path)])
    assert result.exit_code == 1
    assert SEEN in result.output
    assert _is_plain(result.output)


def test_no_escape_character_reaches_the_log(caplog: pytest.LogCaptureFixture) -> None:
    log: Any = logging.getLogger("flwr.fbo")
    log.warning("agent %d: %s", 3, EVIL)
    try:
        raise ValueError(EVIL)
    except ValueError as error:
        log.error("failed: %s", EVIL, exc_info=error)
    assert caplog.text.count(SEEN) == 3
    assert _is_plain(caplog.text)

"""``flwr-fbo ledger show FOLDER``: what has left a study's server, for an auditor."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from flwr_fbo.cli.commands import add, group
from flwr_fbo.cli.errors import plain_errors
from flwr_fbo.cli.ledger_kinds import LEDGER_KINDS, SERVER_KINDS
from flwr_fbo.cli.tables import RULED, wide_console
from flwr_fbo.clients.bandits.bandit_journals import LINEAR_KIND as SITE_KIND
from flwr_fbo.clients.bandits.bandit_journals import NEURAL_KIND as NEURAL_SITE_KIND
from flwr_fbo.clients.bandits.bandit_journals import bandit_journals
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.journal.ledger_table import LedgerRow
from flwr_fbo.privacy.accounting import PrivacySpent
from flwr_fbo.privacy.budget import check_delta
from flwr_fbo.privacy.charge_notes import rebuild
from flwr_fbo.privacy.spending import FILE_NAME as SPENDING_FILE_NAME
from flwr_fbo.strategies.study_record import (
    FILE_NAME,
    KIND,
    read_ledger,
)
from flwr_fbo.tuner.tuner_record import FILE_NAME as TUNER_FILE_NAME

app = group()


@app.callback()
def ledger() -> None:
    """Read the record of what left a study's server, or a site."""


def show(
    folder: Annotated[Path, typer.Argument()],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a list in JSON, with the vectors.")
    ] = False,
    delta: Annotated[
        float | None,
        typer.Option(help="Delta for several studies (default: the studies' own)."),
    ] = None,
) -> None:
    """Check and print the ledgers in FOLDER, the folder of a server or of a site.

    A study's server, a FederationTuner and a bandit's site each keep a ledger of their
    releases. The folder of a site, or the `budget` of a server, has a ledger of what
    all studies have spent together. FOLDER may also be one file. A damaged ledger is
    refused; a forgery by somebody who can write the file is not noticed. A running
    server holds its ledger.

    Examples
    --------
    $ flwr-fbo ledger show /var/lib/fbo
    $ flwr-fbo ledger show /var/lib/fbo --json > ledger.json
    """
    with plain_errors(ValueError):
        if delta is not None:
            check_delta(delta)
    with plain_errors():
        found = [_read(path, delta) for path in _ledgers_in(folder)]
    if as_json:
        typer.echo(json.dumps([_json(*one) for one in found], indent=2))
        return
    console = wide_console()
    for identity, rows, spent in found:
        _print(console, identity, rows, spent)


def rebuild_ledger(folder: Annotated[Path, typer.Argument()]) -> None:
    """Add to a site's ledger in FOLDER the releases that its journals prove.

    For a site that refuses to start because its ledger was deleted, or replaced by an
    older copy. Every journal of the site is read, and nothing is taken out of the
    ledger. A journal that cannot be read is an error, and nothing is added.

    Examples
    --------
    $ flwr-fbo ledger rebuild /var/lib/fbo
    """
    with plain_errors():
        if not folder.is_dir():
            raise JournalError(f"There is no folder {folder}.")
        added, ledger = rebuild(folder)
    total = len(ledger.rows)
    typer.echo(f"{_releases(added)} added; the ledger has {total} now.")


add(app, "show", show)
add(app, "rebuild", rebuild_ledger)


def _ledgers_in(folder: Path) -> list[Path]:
    """Return the ledgers in a folder; a study's server's where there is none."""
    if not folder.is_dir():
        return [folder]
    found = [folder / name for name in (FILE_NAME, TUNER_FILE_NAME)]
    for kind in (SITE_KIND, NEURAL_SITE_KIND):
        found += bandit_journals(folder, kind)
    found = [path for path in (*found, folder / SPENDING_FILE_NAME) if path.is_file()]
    return found or [folder / FILE_NAME]


# Whose releases were added up, and what they have spent.
Spent = list[tuple[str, PrivacySpent]]
Found = tuple[dict[str, Any], list[LedgerRow], Spent]


def _read(path: Path, delta: float | None) -> Found:
    with Journal(None, path) as journal:
        identity = journal.identity
        kind = LEDGER_KINDS.get(str(identity.get("kind")))
        if kind is None:
            journal.require_kind(KIND)
        assert kind is not None
        rows = kind.rows(journal)
        if str(identity["kind"]) in SERVER_KINDS:  # the settings alone do not tell
            study = read_ledger(journal)[0]["study"]
            identity = {**identity, "study_id": study["study_id"]}
    spent: Spent = []
    for whose, own in kind.parts(rows).items() if rows else ():
        one = kind.spent({**_delta_of(own, delta), **identity}, own)
        spent += [] if one is None else [(whose or kind.whose, one)]
    return identity, rows, spent


def _delta_of(rows: list[LedgerRow], delta: float | None) -> dict[str, float]:
    """Return where epsilon is shown: the smallest delta of all studies is theirs."""
    given = [row.facts.get("delta") for row in rows]
    known = [one for one in given if one is not None]
    return {"delta": min(known, default=1e-5) if delta is None else delta}


def _print(
    console: Console,
    identity: Mapping[str, Any],
    rows: list[LedgerRow],
    spent: Spent,
) -> None:
    kind = LEDGER_KINDS[identity["kind"]]
    for name, value in sorted(identity.items()):
        console.print(f"{name}: {value}", highlight=False, soft_wrap=True)
    console.print(_table(kind.columns, rows))
    if not rows:
        console.print(_releases(0))
    for whose, one in spent:
        console.print(
            f"{_releases(one.num_releases)}{whose}: epsilon = {one.epsilon:.4f} "
            f"at delta = {one.delta:g} ({one.accounting_method})"
        )
    if not all(row.facts.get("private", True) for row in rows):
        console.print(f"NOT PRIVATE: {kind.why_not}")


def _releases(count: int) -> str:
    return "1 release" if count == 1 else f"{count} releases"


def _table(
    columns: Mapping[str, Callable[[LedgerRow], str]], rows: list[LedgerRow]
) -> Table:
    table = Table(box=RULED, padding=(0, 1, 0, 0))
    for heading in columns:
        # What an auditor looks for stays whole in a narrow terminal; the rest folds.
        whole = heading in ("committed", "study")
        table.add_column(heading, justify="right", no_wrap=whole, overflow="fold")
    for row in rows:
        table.add_row(*(cell(row) for cell in columns.values()))
    return table


def _json(
    identity: Mapping[str, Any], rows: list[LedgerRow], spent: Spent
) -> dict[str, Any]:
    releases = [
        {
            "iteration": row.iteration,
            "committed": row.committed,
            **_finite(row.facts),
            "vectors": _finite(row.vectors.tolist()),
        }
        for row in rows
    ]
    values = {"study": _finite(identity), "releases": releases}
    if len(spent) > 1:  # agents have data of their own: there is no sum over them
        return {**values, "epsilons": {whose: one.epsilon for whose, one in spent}}
    epsilon = spent[0][1].epsilon if spent else None
    return {**values, "epsilon": _finite(epsilon)}


def _finite(value: Any) -> Any:
    """Return the value; null where JSON lacks what is in it."""
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

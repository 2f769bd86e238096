"""``flwr-fbo ledger show FOLDER``: what has left a study's server, for an auditor."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from flwr_fbo.agents.bandit_study import BanditStudy
from flwr_fbo.cli.errors import plain_errors
from flwr_fbo.journal import Journal, LedgerRow
from flwr_fbo.privacy.accounting import Method, PrivacySpent, ReleaseAccountant
from flwr_fbo.privacy.sampling import Subsampling
from flwr_fbo.servers.linear_bandit import LinearBanditServer
from flwr_fbo.strategies.record import BANDIT_KIND, FILE_NAME, KIND, read_ledger

app = typer.Typer(no_args_is_help=True)


@app.callback()
def ledger() -> None:
    """Read the record of what left a study's server."""


@app.command()
def show(
    folder: Annotated[Path, typer.Argument()],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, with the vectors.")
    ] = False,
) -> None:
    """Check and print the ledger in FOLDER, the `folder` of a study's server.

    A ledger that was damaged is refused; one that was forged by somebody who can write
    the file is not noticed. While the server runs it holds the ledger.
    """
    with plain_errors():
        path = folder / FILE_NAME if folder.is_dir() else folder
        with Journal(None, path) as journal:
            identity = journal.identity
            bandit = identity.get("kind") == BANDIT_KIND
            if not bandit:
                journal.require_kind(KIND)
            _, rows = read_ledger(journal)
    if bandit:
        spent = _bandit_spent(identity, rows)
    else:
        spent = _spent(rows, identity.get("delta"), identity.get("accountant", "pld"))
    if as_json:
        typer.echo(_json(identity, rows, spent))
        return
    console = Console()
    if not console.is_terminal:
        console.width = 160  # nothing is cut off for whatever reads it
    for name, value in sorted(identity.items()):
        console.print(f"{name}: {value}", highlight=False, soft_wrap=True)
    console.print(_bandit_table(rows) if bandit else _table(rows))
    if spent is not None:
        whose = " of each agent, for one trial of it" if bandit else ""
        console.print(
            f"{spent.num_releases} releases{whose}: epsilon = {spent.epsilon:.4f} at "
            f"delta = {spent.delta:g} ({spent.accounting_method})"
        )
    if not all(row.facts["private"] for row in rows):
        console.print("NOT PRIVATE: the noise was seeded, or there was none.")


def _subsampling(row: LedgerRow) -> Subsampling:
    names = ("sampling", "sample_size", "population_size")
    return Subsampling(*(row.facts[name] for name in names))


def _spent(
    rows: list[LedgerRow], delta: float | None, method: Method
) -> PrivacySpent | None:
    """Charge the rows again; None where there is nothing that can be charged."""
    charges = [row.facts["noise_multiplier"] for row in rows]
    if not rows or delta is None or min(charges) <= 0:
        return None
    if all(row.facts["noise_only"] for row in rows):
        return PrivacySpent(0.0, delta, len(rows), "noise-only")
    subsampling = _subsampling(rows[0])
    accountant = ReleaseAccountant(subsampling, delta, method)
    for charge in charges:
        accountant.charge(charge)
    return accountant.spent()


def _bandit_spent(
    identity: Mapping[str, Any], rows: list[LedgerRow]
) -> PrivacySpent | None:
    """Return what the agents of FedUCB have spent, as its server counts it."""
    if not rows:
        return None
    server = LinearBanditServer(BanditStudy.from_dict({**identity, "study_id": ""}))
    server.resume(rows)
    return server.privacy_spent


def _bandit_table(rows: list[LedgerRow]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in (
        "iteration",
        "committed",
        "releases an agent",
        "norm of total",
        "version",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        made = row.facts["num_releases"]
        table.add_row(
            str(row.iteration),
            datetime.fromtimestamp(row.committed).isoformat(" ", "seconds"),
            str(max(made)) if min(made) == max(made) else f"{min(made)} to {max(made)}",
            f"{np.linalg.norm(row.vectors.sum(axis=0)):.4g}",
            str(row.facts["flwr_fbo"]),
        )
    return table


def _table(rows: list[LedgerRow]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in (
        "iteration",
        "committed",
        "noise multiplier",
        "q",
        "sensitivity",
        "norm of vectors",
        "version",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            str(row.iteration),
            datetime.fromtimestamp(row.committed).isoformat(" ", "seconds"),
            f"{row.facts['noise_multiplier']:.4g}",
            f"{row.facts['sample_size'] / row.facts['population_size']:g}",
            f"{row.facts['sensitivity']:.4g}",
            f"{np.linalg.norm(row.vectors):.4g}",
            str(row.facts["flwr_fbo"]),
        )
    return table


def _json(
    identity: Mapping[str, Any], rows: list[LedgerRow], spent: PrivacySpent | None
) -> str:
    releases = [
        {
            "iteration": row.iteration,
            "committed": row.committed,
            **_finite(row.facts),
            "vectors": row.vectors.tolist(),
        }
        for row in rows
    ]
    epsilon = None if spent is None else spent.epsilon
    values = {"study": _finite(identity), "releases": releases}
    values |= {"epsilon": _finite(epsilon)}
    return json.dumps(values, indent=2, allow_nan=False)


def _finite(value: Any) -> Any:
    """Return the value; null where JSON lacks what is in it."""
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value

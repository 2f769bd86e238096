"""The command ``flwr-fbo``: one module a subcommand."""

from __future__ import annotations

from typing import Annotated

import typer

from flwr_fbo import __version__
from flwr_fbo.cli import (
    audit,
    claims,
    data,
    export,
    ledger,
    privacy,
    report,
    run,
    show,
    tradeoff,
)
from flwr_fbo.cli import list as list_

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("run")(run.run)
app.command("list")(list_.list_experiments)
app.command("show")(show.show)
app.command("report")(report.report)
app.command("claims")(claims.claims)
app.command("tradeoff")(tradeoff.tradeoff)
app.command("export")(export.export)
app.add_typer(data.app, name="data")
app.add_typer(ledger.app, name="ledger")
app.command("audit")(audit.audit)
app.command("privacy")(privacy.privacy)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"flwr-fbo {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Federated black-box optimisation under differential privacy, for Flower."""

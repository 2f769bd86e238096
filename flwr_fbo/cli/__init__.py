"""The command ``flwr-fbo``: one module a subcommand, see `flwr_fbo.cli.commands`."""

from __future__ import annotations

from typing import Annotated

import typer

from flwr_fbo._common.version import __version__
from flwr_fbo.cli.commands import AllCommands

app = typer.Typer(
    cls=AllCommands,
    no_args_is_help=True,
    suggest_commands=False,  # Click does
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain text, in a terminal as in a pipe
)


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

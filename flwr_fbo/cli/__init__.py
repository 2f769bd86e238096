"""The command ``flwr-fbo``: one module a subcommand."""

from __future__ import annotations

import typer

from flwr_fbo.cli import run

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("run")(run.run)


@app.callback()
def main() -> None:
    """Federated black-box optimisation under differential privacy, for Flower."""

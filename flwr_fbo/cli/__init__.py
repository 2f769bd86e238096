"""The command ``flwr-fbo``: one module a subcommand.

A subcommand is imported when it is used: until then nothing but its line below is
known of it, so that ``flwr-fbo --help`` need not wait for what commands need.
"""

from __future__ import annotations

from typing import Annotated

import typer

from flwr_fbo._common.version import __version__
from flwr_fbo.cli.commands import LazyGroup, Listed

# In the order of `--help`; a text is the first line of the command's own.
LazyGroup.listed = {
    "init": Listed("init", "Write a Flower app that tunes a model."),
    "run": Listed("run", "Run a built-in experiment or a TOML file."),
    "list": Listed("list_experiments", "List the built-in experiments."),
    "show": Listed("show", "Print the table of results again."),
    "report": Listed("report", "Write results as one HTML page."),
    "claims": Listed("claims", "Print what papers claim, and what came out."),
    "tradeoff": Listed("tradeoff", "Draw utility against epsilon."),
    "export": Listed("export", "Copy trials to Optuna, or releases to a file."),
    "data": Listed("app", "Fetch data sets, and say what is there."),
    "ledger": Listed("app", "Read what left a study's server, or a site."),
    "evaluate": Listed("evaluate", "Estimate what other policies would have earned."),
    "keys": Listed("app", "Make the keys of secure aggregation, and a roster."),
    "audit": Listed("audit", "Bound what a release gives away from below."),
    "privacy": Listed("privacy", "Say what a study would spend."),
}

app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
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

"""``flwr-fbo keys new PATH``: a site's signing key for secure aggregation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flwr_fbo.cli.commands import add, group
from flwr_fbo.cli.errors import plain_errors, require_new_file
from flwr_fbo.secure_sum.roster import SigningKey

app = group()


@app.callback()
def keys() -> None:
    """Make a site's signing key for secure aggregation."""


def new(path: Annotated[Path, typer.Argument(help="New file.")]) -> None:
    """Make a site's private key, and print its public key.

    Only the owner can read the file PATH. The private key stays at the site. Give the
    public key to whoever makes the roster.

    Examples
    --------
    $ flwr-fbo keys new /etc/fbo/site.key
    """
    with plain_errors(ValueError):
        # A site that loses its key is no longer the one in the roster.
        require_new_file("PATH", path)
        key = SigningKey.draw()
        key.save(path)
    typer.echo(key.public)


def show(path: Annotated[Path, typer.Argument(help="File of the key.")]) -> None:
    """Print the public key of a private one.

    Examples
    --------
    $ flwr-fbo keys show /etc/fbo/site.key
    """
    with plain_errors(ValueError):
        key = SigningKey.load(path)
    typer.echo(key.public)


add(app, "new", new)
add(app, "show", show)

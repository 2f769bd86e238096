"""``flwr-fbo roster new FILE SLOT=KEY ...``: the public keys that all sites pin."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from flwr_fbo._validation import require
from flwr_fbo.cli.commands import add, group
from flwr_fbo.cli.errors import plain_errors, require_new_file
from flwr_fbo.secure_sum.roster import Roster

app = group()


@app.callback()
def roster() -> None:
    """Make or read the list of the sites' public keys."""


def new(
    file: Annotated[Path, typer.Argument(help="New file.")],
    keys: Annotated[
        list[str],
        typer.Argument(metavar="SLOT=KEY...", help="Public key of each slot, from 0."),
    ],
) -> None:
    """Write a roster, and print its digest.

    KEY is what `flwr-fbo keys new` printed at the site. FILE also gets a random seed,
    so two rosters of the same keys differ: make one, and copy it. Before a site uses
    its copy, it compares the digest by telephone.

    Examples
    --------
    $ flwr-fbo roster new roster.json 0=d75a9801... 1=3d4017c3... 2=fc51cd8e...
    """
    with plain_errors(ValueError):
        # The sites would refuse a second roster of the same name.
        require_new_file("FILE", file)
        drawn = Roster.draw(_by_slot(keys))
        drawn.save(file)
    typer.echo(drawn.digest())


def show(file: Annotated[Path, typer.Argument(help="File of the roster.")]) -> None:
    """Check a roster, and print each slot's public key and the digest.

    Examples
    --------
    $ flwr-fbo roster show roster.json
    """
    with plain_errors(ValueError):
        loaded = Roster.load(file)
    for slot in loaded.slots:
        typer.echo(f"slot {slot}  {loaded.keys[slot]}")
    typer.echo(f"digest  {loaded.digest()}")


add(app, "new", new)
add(app, "show", show)


def _by_slot(given: Iterable[str]) -> dict[int, str]:
    """Return the keys of SLOT=KEY arguments by slot: 0 to N - 1."""
    keys: dict[int, str] = {}
    for argument in given:
        slot, _, key = argument.partition("=")
        ok = slot.isascii() and slot.isdecimal() and len(slot) <= 9
        require(ok, "SLOT=KEY", argument, "a slot, '=' and its public key")
        require(int(slot) not in keys, "SLOT", int(slot), "each slot once")
        keys[int(slot)] = key
    slots = sorted(keys)
    require(len(slots) >= 2, "SLOT", slots, "two or more slots")
    ok = slots == list(range(len(slots)))
    require(ok, "SLOT", slots, f"0 to {len(slots) - 1} for {len(slots)} keys")
    return keys

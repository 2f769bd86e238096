"""``flwr-fbo keys``: the keys of secure aggregation, and the roster that sites pin."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from flwr_fbo._common.validation import require
from flwr_fbo.cli.commands import add, group
from flwr_fbo.cli.output import check_output, plain_errors
from flwr_fbo.secure import Roster, SigningKey

app = group()

_PAIR = re.compile(r"(\d{1,9})=([0-9a-f]{64})")


@app.callback()
def keys() -> None:
    """Make the keys of secure aggregation, and the roster that sites pin."""


def new(file: Path) -> None:
    """Make a site's private key, a new FILE.

    Only its owner can read FILE. The public key that is printed goes to whoever makes
    the roster.

    Examples
    --------
    $ flwr-fbo keys new site-0.pem
    """
    with plain_errors(ValueError):
        check_output("FILE", file, replace=False)
        key = SigningKey.draw()
        key.save(file)
    typer.echo(f"Wrote the private key to {file}. It must not leave this site.")
    typer.echo(f"Public key: {key.public}")


def public(file: Path) -> None:
    """Print the public key of the private key in FILE.

    Examples
    --------
    $ flwr-fbo keys public site-0.pem
    """
    with plain_errors(ValueError):
        key = SigningKey.load(file)
    typer.echo(key.public)


def roster(
    file: Path,
    pairs: Annotated[list[str], typer.Argument(metavar="SLOT=PUBLIC_KEY...")],
) -> None:
    """Write the roster, a new FILE: the public keys of all sites, by slot.

    Give SLOT=PUBLIC_KEY for each site; slots are 0 to N - 1. Every site and the server
    get a copy of FILE, from a person they trust. They compare the digest that is
    printed, by telephone for example. FILE also has a random seed: two rosters of the
    same keys differ.

    Examples
    --------
    $ flwr-fbo keys roster roster.json 0=5f3c... 1=a81e... 2=09bd...
    """
    with plain_errors(ValueError):
        check_output("FILE", file, replace=False)
        made = Roster.draw(_by_slot(pairs))
        made.save(file)
    _say(file, len(made.slots), made.digest())


def show(file: Path) -> None:
    """Print the digest of the roster in FILE, and whose keys it has.

    Examples
    --------
    $ flwr-fbo keys show roster.json
    """
    with plain_errors(ValueError):
        found = Roster.load(file)
    _say(file, len(found.slots), found.digest())
    for slot, key in sorted(found.keys.items()):
        typer.echo(f"  {slot}: {key}")


add(app, "new", new)
add(app, "public", public)
add(app, "roster", roster)
add(app, "show", show)


def _by_slot(pairs: list[str]) -> dict[int, str]:
    """Return the public keys by slot: 0 to N - 1, as in a study."""
    keys: dict[int, str] = {}
    for pair in pairs:
        found = _PAIR.fullmatch(pair)
        allowed = "SLOT=PUBLIC_KEY, as in 0=5f3c..., with 64 hexadecimal digits"
        require(found is not None, "SLOT=PUBLIC_KEY", pair, allowed)
        assert found is not None
        slot = int(found[1])
        require(slot not in keys, "SLOT", slot, "given once")
        keys[slot] = found[2]
    slots = sorted(keys)
    require(len(slots) >= 2, "SLOT", slots, "two or more slots")
    ok = slots == list(range(len(slots)))
    require(ok, "SLOT", slots, f"0 to {len(slots) - 1} for {len(slots)} keys")
    return keys


def _say(file: Path, num_sites: int, digest: str) -> None:
    typer.echo(f"{file}: the keys of {num_sites} sites")
    typer.echo(f"Digest: {digest}")

"""``flwr-fbo check-site NODE_CONFIG``: whether a site is ready, also for one study."""

from __future__ import annotations

import re
from pathlib import Path
from tomllib import TOMLDecodeError
from typing import Annotated

import typer

from flwr_fbo._common.text import counted, printable
from flwr_fbo._common.validation import require
from flwr_fbo._compat import parsed_config
from flwr_fbo.cli.output import plain_errors
from flwr_fbo.privacy.guarantee import Protects
from flwr_fbo.site.readiness import announced_study, check_site

# What a SuperNode takes of its text; it says nothing of the rest.
_ENTRY = re.compile(r"\S+?=(?:'[^']*'|\"[^\"]*\"|\S+)")


def check_site_command(
    node_config: str,
    epsilon: Annotated[
        float | None, typer.Option(help="Epsilon of one more study, with --delta.")
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="Delta at which it has that epsilon.")
    ] = None,
    num_releases: Annotated[
        int | None,
        typer.Option(
            "--releases",
            min=1,
            max=10_000,
            help="Its number of releases (default: 1).",
        ),
    ] = None,
    protects: Annotated[
        Protects | None,
        typer.Option(help="Whom its epsilon protects: a client, or one example."),
    ] = None,
) -> None:
    """Say what a site has with NODE_CONFIG, and what would keep it from a study.

    NODE_CONFIG is the SuperNode's --node-config, or its .toml file. Run it as the user
    of the SuperNode, before that starts: limits, folder, ledger and what is left of it,
    roster and key, OpenDP, versions, clock; and whether other users can change the
    files. The exit status is 1 if studies would be refused, or a limit would be
    forgotten when a run ends; not if a limit is used up, since a study that the site
    has joined may still go on, and not if charges have a date that is still to come.
    The limits of an app's own code are not known here. A ledger of an older schema is
    upgraded, because the command opens it.

    With --epsilon and --delta it also says whether a study that announces them is
    within the limits on epsilon and releases, with all studies in the ledger counted.
    Each site is taken to be in every release. All else that a site can refuse a study
    for, such as sizes or a missing secure aggregation, is not looked at.

    Examples
    --------
    $ flwr-fbo check-site 'agent-id=0 fbo-folder="/var/lib/fbo" fbo-max-releases=20'
    $ flwr-fbo check-site site.toml --epsilon 2 --delta 1e-3
    """
    with plain_errors(ValueError, TOMLDecodeError):
        file = Path(node_config) if node_config.endswith(".toml") else None
        if file is None:
            rest = _ENTRY.sub("", node_config).strip()
            require(not rest, "NODE_CONFIG", rest, "KEY=VALUE, with a space between")
        study = None
        if epsilon is None or delta is None:
            given = {
                "epsilon": epsilon,
                "delta": delta,
                "num_releases": num_releases,
                "protects": protects,
            }
            for name, value in given.items():
                allowed = "given with both --epsilon and --delta"
                require(value is None, name, value, allowed)
        else:
            num_releases = 1 if num_releases is None else num_releases
            study = announced_study(epsilon, delta, num_releases, protects or "client")
        found = check_site(parsed_config([node_config]), study, file)
    width = max(len(one.topic) for one in found)
    for one in found:
        line = f"{one.state:7}  {one.topic:{width}}  {printable(one.text)}"
        typer.echo(line)
    problems = sum(one.state == "PROBLEM" for one in found)
    if problems:
        typer.echo(f"{counted(problems, 'problem')}: this site is not ready.")
        raise typer.Exit(1)
    noted = any(one.state == "note" for one in found)
    typer.echo(f"This site is ready{', with the notes above' if noted else ''}.")

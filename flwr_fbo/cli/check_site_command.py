"""``flwr-fbo check-site NODE_CONFIG``: whether a SuperNode would refuse a study."""

from __future__ import annotations

import re
from tomllib import TOMLDecodeError
from typing import Annotated

import typer

from flwr_fbo._common.text import counted, printable
from flwr_fbo._common.validation import require
from flwr_fbo._compat import parsed_node_config
from flwr_fbo.cli.output import plain_errors
from flwr_fbo.clients.site_check import check_site

# What a SuperNode takes of its text; it says nothing of the rest.
_ENTRY = re.compile(r"\S+?=(?:'[^']*'|\"[^\"]*\"|\S+)")


def check_site_command(
    node_config: Annotated[
        str,
        typer.Argument(help="The SuperNode's --node-config, or its .toml file."),
    ],
) -> None:
    """Say what a site has with NODE_CONFIG, and whether it would refuse studies.

    Run it as the user of the SuperNode, before that starts: limits, folder, ledger and
    what is left of it, roster and key, OpenDP, versions, clock. The exit status is 1
    if studies would be refused. The limits of an app's own code are not known here.
    A ledger of an older schema is upgraded, because the command opens it.

    Examples
    --------
    $ flwr-fbo check-site 'agent-id=0 fbo-folder="/var/lib/fbo" fbo-max-releases=20'
    $ flwr-fbo check-site site.toml
    """
    with plain_errors(ValueError, TOMLDecodeError):
        if not node_config.endswith(".toml"):
            rest = _ENTRY.sub("", node_config).strip()
            require(not rest, "NODE_CONFIG", rest, "KEY=VALUE, with a space between")
        found = check_site(parsed_node_config(node_config))
    width = max(len(one.topic) for one in found)
    for one in found:
        line = f"{one.state:7}  {one.topic:{width}}  {printable(one.text)}"
        typer.echo(line)
    problems = sum(one.state == "PROBLEM" for one in found)
    if problems:
        typer.echo(f"{counted(problems, 'problem')}: studies would be refused.")
        raise typer.Exit(1)
    typer.echo("This site is ready.")

"""``flwr-fbo trust BUNDLE.fab FILE``: put an app on a site's list of reviewed apps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flwr_fbo._common.validation import refuse, require
from flwr_fbo.cli.output import plain_errors
from flwr_fbo.site.reviewed_apps import identity
from flwr_fbo.site.reviewed_apps import trust as put_on_list


def trust(
    bundle: Path,
    file: Annotated[Path | None, typer.Argument()] = None,
) -> None:
    """Print the SHA-256 of an app bundle, and add it to the list of reviewed apps.

    BUNDLE is what `flwr build` writes. Review it first: it is a ZIP file with the app's
    code. One with compiled code, links, or paths that are not plain is refused: it may
    hide something. A server may send another app under the same name and version; its
    SHA-256 is another one. FILE is the list that `flwr-fbo superexec` reads, begun if
    it is new: text, one line per app. Take a line out to trust an app no longer. Give
    FILE to an owner whom the SuperNode's user is not, such as root.

    Examples
    --------
    $ flwr-fbo trust hospitals.fab
    $ flwr-fbo trust hospitals.fab /etc/fbo/trusted-apps
    """
    with plain_errors(ValueError):
        # The second bundle where a shell has found several for *.fab.
        is_list = file is None or file.suffix != ".fab"
        require(is_list, "FILE", str(file), "a list, after one bundle")
        content = bundle.read_bytes()
        try:
            found = identity(content)
        except ValueError as error:
            refuse("BUNDLE", str(bundle), f"an app bundle (.fab), but {error}")
        is_new = file is not None and put_on_list(content, file)
    typer.echo(f"{found.fab_id} {found.version}")
    typer.echo(f"SHA-256: {found.digest}")
    if file is not None:
        said = "Added to" if is_new else "Already in"
        typer.echo(f"{said} {file}.")

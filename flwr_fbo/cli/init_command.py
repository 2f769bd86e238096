"""``flwr-fbo init [FOLDER]``: a Flower app to begin with.

The app is that of `examples/digits`, under the folder's name.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from jinja2 import Environment, PackageLoader, StrictUndefined

from flwr_fbo._common.validation import require
from flwr_fbo.cli.output import plain_errors

# What Flower allows as an app's name; it may not be that of its folder otherwise.
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,31}")
_RUN = (
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 flwr run . --stream "
    '--federation-config "num-supernodes=10"'
)


def init(
    folder: Annotated[Path, typer.Argument(help="New or empty folder.")] = Path(),
) -> None:
    """Write a Flower app that tunes a model.

    FOLDER is the current folder by default. The app gets the folder's name.

    Examples
    --------
    $ flwr-fbo init my-study
    """
    with plain_errors(ValueError):
        written = write_app(folder)
    typer.echo(
        f"Wrote {len(written)} files into {folder.resolve()}. Run the app there:"
    )
    typer.echo(f"  {_RUN}")


def write_app(folder: Path) -> list[Path]:
    """Write the app into a folder that is empty, or not there; return its files.

    Raises
    ------
    ValueError
        If the folder is not empty, or its name cannot be that of an app.
    """
    is_free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    require(is_free, "FOLDER", str(folder), "an empty folder, or a new one")
    name = folder.resolve().name
    package = name.replace("-", "_")
    allowed = "a name of at most 32 letters, digits and hyphens, a letter first"
    require(_NAME.fullmatch(name) is not None, "FOLDER", name, allowed)
    is_new = not keyword.iskeyword(package) and find_spec(package) is None
    require(is_new, "FOLDER", name, "a name that no Python module has")
    written = []
    for path, text in _rendered(name, package):
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        written.append(target)
    return written


def _rendered(name: str, package: str) -> Iterator[tuple[str, str]]:
    """Yield the path of each file of the app, and its text."""
    environment = Environment(
        loader=PackageLoader("flwr_fbo.cli", "app_template"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    for template in environment.list_templates():
        text = environment.get_template(template).render(name=name, package=package)
        path = template.removesuffix(".jinja")
        yield re.sub("^package/", f"{package}/", path), text

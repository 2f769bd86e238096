"""``flwr-fbo init [FOLDER]``: a Flower app to begin with, under the folder's name.

There are two: sites train one model together, or each site trains its own. The second
is the app of `examples/digits`.
"""

from __future__ import annotations

import keyword
import re
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import typer
from jinja2 import Environment, PackageLoader, StrictUndefined

from flwr_fbo._common.validation import require
from flwr_fbo.cli.output import plain_errors

# What Flower allows as an app's name; it may not be that of its folder otherwise.
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,31}")
_RUN = (
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 flwr run . --stream "
    '--federation-config "num-supernodes=20"'
)
# What an app imports, by what is installed for it.
_NEEDS = {
    "flwr-fbo[secure]": "opendp",
    "flwr-fbo[simulation]": "ray",
    "scikit-learn": "sklearn",
}


# What the sites of an app do.
Template = Literal["federation", "sites"]


def init(
    folder: Annotated[Path, typer.Argument()] = Path(),
    template: Annotated[
        Template | None,
        typer.Option(
            help="Whether sites train one model together (federation), or each trains "
            "its own (sites). Asked for in a terminal; federation elsewhere."
        ),
    ] = None,
) -> None:
    """Write a Flower app that tunes a model.

    FOLDER is new or empty; the current folder by default. The app gets the folder's
    name: letters, digits and hyphens. Its README says how to run it, and what to
    change.

    Examples
    --------
    $ flwr-fbo init my-app
    $ flwr-fbo init my-study --template sites
    """
    with plain_errors(ValueError):
        check_folder(folder)
        if template is None:
            text = (
                "Do the sites train one model together? If not, each site trains its "
                "own"
            )
            is_one_model = not is_terminal() or typer.confirm(text, default=True)
            template = "federation" if is_one_model else "sites"
        written = write_app(folder, template)
    typer.echo(
        f"Wrote the template {template!r}, {len(written)} files, into "
        f"{folder.resolve()}. Run it there, with 20 simulated sites:"
    )
    if folder.resolve() != Path.cwd():
        typer.echo(f"  cd {shlex.quote(str(folder))}")
    typer.echo(f"  {_RUN}")
    typer.echo("README.md says what it does, and which files to change.")
    missing = [name for name, module in _NEEDS.items() if find_spec(module) is None]
    if missing:
        typer.echo(f"Before that, install what is missing here: {', '.join(missing)}.")


def is_terminal() -> bool:
    """Return whether somebody can be asked."""
    return sys.stdin.isatty()


def check_folder(folder: Path) -> None:
    """Raise ValueError unless an app can be written into a folder.

    It must be empty, or not there, and its name must be one that an app can have.
    """
    is_free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    require(is_free, "FOLDER", str(folder), "an empty folder, or a new one")
    name = folder.resolve().name
    allowed = "a name of at most 32 letters, digits and hyphens, a letter first"
    require(_NAME.fullmatch(name) is not None, "FOLDER", name, allowed)
    package = name.replace("-", "_")
    is_new = not keyword.iskeyword(package) and find_spec(package) is None
    require(is_new, "FOLDER", name, "a name that no Python module has")


def write_app(folder: Path, template: Template) -> list[Path]:
    """Write an app into a folder; return its files."""
    name = folder.resolve().name
    package = name.replace("-", "_")
    environment = Environment(
        loader=PackageLoader("flwr_fbo.cli", "app_templates"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    written = []
    for file in environment.list_templates():
        part, _, path = file.partition("/")
        if part in (template, "all"):
            path = re.sub("^package/", f"{package}/", path.removesuffix(".jinja"))
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            text = environment.get_template(file).render(name=name, package=package)
            target.write_text(text)
            written.append(target)
    return written

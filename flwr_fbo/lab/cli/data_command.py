"""``flwr-fbo data``: what data sets there are, and how to get them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from flwr_fbo._common.validation import require_known
from flwr_fbo.cli.commands import AsJson, add, group
from flwr_fbo.cli.output import json_of, plain_errors
from flwr_fbo.lab.cli.export_emnist_command import export_emnist
from flwr_fbo.lab.cli.progress_bar import progress_bar
from flwr_fbo.lab.datasets.base import Dataset, data_folder
from flwr_fbo.lab.datasets.catalogue import DATASETS
from flwr_fbo.lab.datasets.download import fetch

app = group()


@app.callback()
def data() -> None:
    """Download data sets, and list them."""


def list_data(
    as_json: AsJson = False,
) -> None:
    """List the data sets with size, licence and citation, and whether you have them.

    It looks in the folder that FLWR_FBO_DATA names, or in a cache folder.

    Examples
    --------
    $ flwr-fbo data list
    """
    folder = data_folder()
    with plain_errors():
        found = {name: d.found(folder) for name, d in DATASETS.items()}
    if as_json:
        values = [_values(d, found[d.name]) for d in DATASETS.values()]
        typer.echo(json_of({"folder": str(folder), "datasets": values}))
        return
    console = Console()
    if not console.is_terminal:
        console.width = 100
    console.print(f"Folder: {folder}\n", markup=False, highlight=False, soft_wrap=True)
    for dataset in DATASETS.values():
        console.print(_block(dataset, folder, found[dataset.name]))
    console.print("The data of the task digits come with scikit-learn.")


def download(
    name: Annotated[str, typer.Argument(metavar="|".join(DATASETS))],
) -> None:
    """Download a data set over HTTPS, check its SHA-256 and unpack it.

    The folder is the one that FLWR_FBO_DATA names, or a cache folder. Existing files
    are kept. Downloads are atomic: after an interruption run the same command again.

    Examples
    --------
    $ flwr-fbo data download landmine
    """
    with plain_errors(ValueError):
        require_known("name", name, DATASETS)
        dataset, folder = DATASETS[name], data_folder()
        say = partial(typer.echo, err=True)
        with progress_bar(name, dataset.size, Console(stderr=True)) as advance:
            fetched = fetch(dataset, folder, say, advance)
    target = folder / dataset.target
    typer.echo(f"{target} is there{'' if fetched else ' already'}.")


add(app, "list", list_data)
add(app, "download", download)
add(app, "export-emnist", export_emnist)


def _values(dataset: Dataset, found: str | None) -> dict[str, Any]:
    fields = ("name", "summary", "target", "accepted", "url", "sha256", "size")
    more = ("unpacked", "licence", "citation")
    return {f: getattr(dataset, f) for f in (*fields, *more)} | {"found": found}


def _block(dataset: Dataset, folder: Path, found: str | None) -> Table:
    """Return what a person wants to know of a data set."""
    if found is None:
        there = f"no: flwr-fbo data download {dataset.name}"
        if (folder / dataset.target).exists():
            there = f"no: {dataset.target} lacks files; remove it, and download again"
    elif found == dataset.target:
        there = f"yes: {found}"
    else:
        there = f"{found}, accepted in place of {dataset.target}"
    size = f"{dataset.size / 1e6:,.1f} MB, unpacked {dataset.unpacked / 1e6:,.1f} MB"
    block = Table.grid(padding=(0, 1))
    block.add_column(width=10)
    block.add_column(overflow="fold")
    for row in (
        (f"[bold]{dataset.name}[/bold]", dataset.summary),
        ("  there", there),
        ("  download", size),
        ("  licence", dataset.licence),
        ("  cite", dataset.citation),
        (),
    ):
        block.add_row(*row)
    return block

"""A bar for what takes minutes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


@contextmanager
def progress_bar(
    text: str, total: int, console: Console
) -> Iterator[Callable[..., None]]:
    """Show how much of a total is done, where the console is a terminal.

    Gives the function ``advance``, of how much more is done, and of another text.
    """
    columns = TextColumn("{task.description:22}"), BarColumn(), TimeElapsedColumn()
    left = TextColumn("left"), TimeRemainingColumn()
    hidden = not console.is_terminal
    with Progress(
        *columns, *left, console=console, transient=True, disable=hidden
    ) as progress:
        bar = progress.add_task(text, total=total)

        def advance(size: int, text: str | None = None) -> None:
            progress.update(bar, advance=size, description=text)

        yield advance

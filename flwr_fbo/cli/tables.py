"""What tables of all commands share: consoles, CSV, and numbers in JSON."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.text import Text

from flwr_fbo._common.text import printable

# A rule below the headings, in characters that any file and terminal has.
RULED = box.Box(str(box.SIMPLE_HEAD).replace("\u2500", "-"), ascii=True)


class TextConsole(Console):
    """A console that prints names as they are: no markup, and nothing invisible."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return the text to print, of every string and every cell of a table."""
        return super().render_str(printable(text), **options)


def wide_console() -> TextConsole:
    """Return one for a table that a program may read: as wide as COLUMNS says.

    Where nobody says so, and there is no terminal, wide enough to cut nothing off.
    """
    console = TextConsole()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 160
    return console


def csv_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows with the same keys as CSV; None becomes an empty cell."""
    text = io.StringIO()
    headings = list(rows[0]) if rows else []
    writer = csv.DictWriter(text, headings, lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {name: _cell(value) for name, value in row.items()} for row in rows
    )
    return text.getvalue()


def _cell(value: Any) -> Any:
    """Return what CSV has in place of a bool."""
    return str(value).lower() if isinstance(value, bool) else value


def finite(value: float) -> float | None:
    """Return what JSON has in place of a number: null for infinity and NaN."""
    return value if math.isfinite(value) else None

"""Files of rows, a JSON object per line, that a benchmark adds to and goes on from."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr_fbo._common.text import write_whole


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file, none if there is no file.

    A last line without its end was cut off as it was written, and is no row.
    """
    text = path.read_text("utf-8") if path.is_file() else ""
    return [json.loads(line) for line in _whole(text).splitlines()]


def add_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Add rows to a file, which is made if it is not there, and whose cut line goes."""
    path.touch()
    text = path.read_text("utf-8")
    if _whole(text) != text:
        write_whole(path, _whole(text))
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))


def play_and_show(
    about: str | None,
    path: str,
    play: Callable[[Path, int], None],
    show: Callable[[Path], None],
) -> None:
    """Run a benchmark of paired seeds: add the rows that are missing, and show all.

    ``about`` is its help, ``path`` that of the file of rows.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("path", type=Path, help=path)
    parser.add_argument("--seeds", type=int, default=20)
    given = parser.parse_args()
    play(given.path, given.seeds)
    show(given.path)


def run_or_show(
    about: str | None,
    run: Callable[[Path], None],
    show: Callable[[Path], None],
    arguments: Sequence[str] | None = None,
) -> None:
    """Run a benchmark, ``run ROWS.jsonl``, or print its rows, ``show ROWS.jsonl``."""
    parser = argparse.ArgumentParser(description=(about or "").split("\n")[0])
    parser.add_argument("stage", choices=("run", "show"))
    parser.add_argument("rows", type=Path)
    given = parser.parse_args(arguments)
    {"run": run, "show": show}[given.stage](given.rows)


def _whole(text: str) -> str:
    return text[: text.rfind("\n") + 1]

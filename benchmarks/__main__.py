"""Measure everything, and write a table and a figure: `make bench`.

    python -m benchmarks [--quick] [SUBJECT ...]

The table goes to `benchmarks/table.md`, the figure to `benchmarks/figure.png`; with
subjects, or quickly, into the folder that `--into` names.
"""

from __future__ import annotations

import argparse
import datetime
import logging
import time
from importlib import import_module
from pathlib import Path

from benchmarks.measure import Section, draw, surroundings

SUBJECTS = (
    "startup",
    "study",
    "engine",
    "server",
    "model",
    "privatiser",
    "bandits",
    "transfer",
    "scale",
    "suggestion",
)
HERE = Path(__file__).parent
TITLE = """# Benchmarks

`make bench` writes this page and its figure. A / B is the ratio of the medians of two
things that ran alternately in one process; in brackets the middle half of the ratios of
paired runs. Above 1, A takes longer.
"""


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help=str(SUBJECTS))
    parser.add_argument("--quick", action="store_true", help="few repeats: a trial run")
    parser.add_argument("--into", type=Path, help="a folder")
    options = parser.parse_args()
    unknown = set(options.subjects) - set(SUBJECTS)
    if unknown:
        parser.error(f"no such subject: {sorted(unknown)}; there are {SUBJECTS}")
    whole = not (options.subjects or options.quick)
    if not whole and options.into is None:
        parser.error("give --into: this is not the whole")
    folder = HERE if options.into is None else options.into
    folder.mkdir(parents=True, exist_ok=True)
    logging.disable(logging.WARNING)
    sections: list[Section] = []
    for subject in options.subjects or SUBJECTS:
        began = time.perf_counter()
        sections += import_module(f"benchmarks.{subject}").measure(options.quick)
        print(f"{subject}: {time.perf_counter() - began:.0f} s", flush=True)
        _write(sections, folder)


def _write(sections: list[Section], folder: Path) -> None:
    day = datetime.date.today().isoformat()
    header = f"{TITLE}\n{day}: {surroundings()}.\n\n![The ratios](figure.png)\n"
    body = "\n".join(section.to_markdown() for section in sections)
    (folder / "table.md").write_text(f"{header}\n{body}")
    draw(sections, folder / "figure.png")


if __name__ == "__main__":
    main()

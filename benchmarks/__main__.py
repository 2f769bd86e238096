"""Measure everything, and write a table and a figure: `make bench`.

    python -m benchmarks [--quick] [--into FOLDER] [SUBJECT ...]

The rows go to `benchmarks/table.json`, and from there into `table.md` and `figure.png`.
With subjects only these are measured again; the others stay, if they were measured on
the same machine with the same versions. Quickly only into another folder.
"""

from __future__ import annotations

import argparse
import datetime
import json
import logging
import time
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.measure import Section, draw, surroundings

SUBJECTS = (
    "startup",
    "study",
    "engine",
    "server",
    "model",
    "privatiser",
    "policy",
    "blocks",
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
    if options.quick and options.into is None:
        parser.error("give --into: figures of few repeats are not for the table")
    folder = HERE if options.into is None else options.into
    folder.mkdir(parents=True, exist_ok=True)
    logging.disable(logging.WARNING)
    for subject in options.subjects or SUBJECTS:
        began = time.perf_counter()
        sections = import_module(f"benchmarks.{subject}").measure(options.quick)
        print(f"{subject}: {time.perf_counter() - began:.0f} s", flush=True)
        _keep(subject, sections, folder / "table.json")
        _write(folder)


def _keep(subject: str, sections: list[Section], path: Path) -> None:
    """Put a subject's sections beside those that were measured in the same place."""
    table: dict[str, Any] = {"surroundings": surroundings(), "subjects": {}}
    if path.exists():
        known = json.loads(path.read_text())
        table = known if known["surroundings"] == table["surroundings"] else table
    table["subjects"][subject] = {
        "day": datetime.date.today().isoformat(),
        "sections": [asdict(section) for section in sections],
    }
    path.write_text(json.dumps(table, indent=1) + "\n")


def _write(folder: Path) -> None:
    """Write the page and the figure of what the table holds."""
    table = json.loads((folder / "table.json").read_text())
    measured = [table["subjects"][s] for s in SUBJECTS if s in table["subjects"]]
    sections = [Section.of_json(each) for one in measured for each in one["sections"]]
    days = " and ".join(sorted({one["day"] for one in measured}))
    header = f"{TITLE}\n{days}: {table['surroundings']}.\n\n![The ratios](figure.png)\n"
    body = "\n".join(section.to_markdown() for section in sections)
    (folder / "table.md").write_text(f"{header}\n{body}")
    draw(sections, folder / "figure.png")


if __name__ == "__main__":
    main()

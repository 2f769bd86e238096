"""The curves of the demo, for its picture: see `benchmarks.pictures`.

    python -m benchmarks.demo FILE

FILE gets a line a training, of JSON: the accuracy by rounds of the whole federation's
work, as `make demo` has it.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import tempfile
from pathlib import Path

from typer.testing import CliRunner

from benchmarks.rows import add_rows
from flwr_fbo.cli import app

ROOT = Path(__file__).parents[1]
ROWS = Path(__file__).with_suffix(".jsonl")


def demo_arguments(folder: Path) -> list[str]:
    """Return the arguments of ``flwr-fbo`` in `make demo`, with another folder."""
    rules = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    (line,) = re.findall(r"flwr-fbo (tune examples/.*)$", rules, re.MULTILINE)
    words = shlex.split(line)
    words[1] = str(ROOT / words[1])
    words[words.index("--folder") + 1] = str(folder)
    return words


def main() -> None:
    """Run the demo, and write its curves."""
    parser = argparse.ArgumentParser(description="See the module.")
    parser.add_argument("file", type=Path)
    file: Path = parser.parse_args().file
    with tempfile.TemporaryDirectory() as folder:
        arguments = [*demo_arguments(Path(folder) / "record"), "--json"]
        done = CliRunner().invoke(app, arguments)
    found = json.loads(done.stdout)
    tuned = str(found["trial"])
    file.unlink(missing_ok=True)
    for name, points in found["curves"].items():
        kind = "own" if name == "plain" else "tuned" if name == tuned else "ended"
        add_rows(file, [{"kind": kind, "points": [p for p in points if p[0] > 0]}])


if __name__ == "__main__":
    main()

"""Flower's own examples, tuned by at most 15 changed lines each.

    RAY_worker_niceness=0 python -m benchmarks.flower_examples FLOWER RESULTS [NAME ...]

FLOWER is a checkout of github.com/adap/flower at `COMMIT`. Each example is copied. Its
data are replaced by data at hand (`IMPORTS`: one to three lines, which do not count),
and its patch of `benchmarks/flower_patches` is applied: the lines that a user would
write. `benchmarks.flower_engine` runs it on the simulation engine with 10 or 20
clients: with the settings that Flower ships (*before*), and tuned first (*after*).
RESULTS is a file of JSON lines, one a run: examples in it are not run again.

The table has the changed lines, and mean and standard error over seeds of the app's
metric on data that are held out. Seconds are medians: of the training before, and of
the tuner and the training after. The engine starts Ray, which listens on every
interface: run this where there is none but loopback. Ray gives its workers a low
priority, unless RAY_worker_niceness is 0.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import UserConfig
from rich.console import Console
from rich.table import Table

from benchmarks.flower_data import save_tiny_bert
from benchmarks.rows import add_rows, read_rows

COMMIT = "fdef7afb1d"
MOST_LINES = 15
PATCHES = Path(__file__).with_name("flower_patches")
_ROOT = Path(__file__).parents[1]

# Imports of data, and two that Flower has moved since COMMIT; what takes their place.
IMPORTS = {
    f"from {theirs}": f"from {ours}"
    for theirs, ours in (
        (
            "flwr_datasets import FederatedDataset",
            "benchmarks.flower_data import FederatedDataset",
        ),
        ("datasets import load_dataset", "benchmarks.flower_data import load_dataset"),
        (
            "evaluate import load as load_metric",
            "benchmarks.flower_data import load_metric",
        ),
        ("flwr.common.typing import UserConfig", "flwr.app import UserConfig"),
        (
            "flwr.client.typing import ClientAppCallable, Mod",
            "flwr.clientapp.typing import ClientAppCallable, Mod",
        ),
    )
}


@dataclass(frozen=True)
class Example:
    """One of Flower's examples.

    Attributes
    ----------
    metric : str
        Of its reply to ``evaluate``, in the table.
    clients : int
    run_config : dict
        What ``flwr run --run-config`` would change.
    why_not : str
        Why it is not tuned; empty if it is.
    """

    metric: str
    clients: int = 10
    run_config: UserConfig = field(default_factory=dict)
    why_not: str = ""


EXAMPLES = {
    "quickstart-sklearn": Example("accuracy"),
    "quickstart-pytorch": Example("eval_acc"),
    # 16 threads a client are slow on two cores.
    "quickstart-xgboost": Example("auc", clients=20, run_config={"params.nthread": 1}),
    "quickstart-numpy": Example("", why_not="its model and its metric are random"),
    "quickstart-tensorflow": Example("eval_acc"),
    "quickstart-pytorch-lightning": Example("eval_loss"),
    "quickstart-huggingface": Example("accuracy", clients=20),
    "fl-tabular": Example("accuracy", clients=20),
    "opacus": Example("accuracy"),
    "advanced-pytorch": Example("eval_acc"),
    "custom-mods": Example("eval_acc"),
    "fl-dp-sa": Example("accuracy", clients=20),
    # Flower ships a demonstration of the protocol, which does not train.
    "flower-secure-aggregation": Example("accuracy", run_config={"is-demo": False}),
}


class PatchError(Exception):
    """A patch does not fit an example."""


def prepare(example: Path, patch: Path, folder: Path) -> int:
    """Copy an example, replace imports of data, and apply a patch.

    Parameters
    ----------
    example : Path
        Of its ``pyproject.toml``.
    patch : Path
        A unified diff of the example, without context.
    folder : Path
        Of the copy, which is made.

    Raises
    ------
    PatchError
        If the patch does not fit.

    Returns
    -------
    int
        The number of imports that were replaced.
    """
    shutil.copytree(example, folder)
    command = ("git", "apply", "--unidiff-zero", "-p1", str(patch.resolve()))
    # Not of a repository that the folder may be in.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        told = f"{patch.name} does not fit {example} (see COMMIT): {done.stderr}"
        raise PatchError(told)
    return sum(map(_replace_imports, folder.rglob("*.py")))


def _replace_imports(path: Path) -> int:
    text = path.read_text()
    num_lines = 0
    for line, other in IMPORTS.items():
        num_lines += text.count(f"{line}\n")
        text = text.replace(f"{line}\n", f"{other}\n")
    path.write_text(text)
    return num_lines


def changed_lines(diff: str) -> int:
    """Return how many lines a unified diff without context changes.

    A line in place of another counts once. Blank lines do not count.
    """
    hunks = re.split(r"^@@.*\n", diff, flags=re.MULTILINE)[1:]
    return sum(
        max(
            len(re.findall(rf"^[{sign}](?![{sign}]{{2}} ).*\S", hunk, re.MULTILINE))
            for sign in "+-"
        )
        for hunk in hunks
    )


def runs(name: str, flower: Path, num_seeds: int, *more: str) -> Iterator[Any]:
    """Run an example before and after; yield a row a run."""
    example = EXAMPLES[name]
    with tempfile.TemporaryDirectory() as scratch:
        folder, config = Path(scratch) / name, dict(example.run_config)
        patch = PATCHES / f"{name}.diff"
        num_imports = prepare(flower / "examples" / name, patch, folder)
        if name == "quickstart-huggingface":
            save_tiny_bert(Path(scratch) / "tiny-bert")
            config["model-name"] = str(Path(scratch) / "tiny-bert")
        command = [sys.executable, "-m", "benchmarks.flower_engine", str(folder)]
        command += ["--seeds", str(num_seeds), "--clients", str(example.clients)]
        command += ["--run-config", json.dumps(config), *more]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(folder), str(_ROOT)]),
            "FLWR_TELEMETRY_ENABLED": "0",
            "HF_HUB_OFFLINE": "1",
            "WANDB_MODE": "disabled",
        }
        with subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith('{"seed": '):  # others are the app's own
                    row = {"example": name, **json.loads(line)}
                    lines = changed_lines(patch.read_text())
                    yield {**row, "lines": lines, "imports": num_imports}
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command)


def table(rows: list[dict[str, Any]]) -> Table:
    """Return the table of all examples."""
    found = Table()
    headings = ("example", "lines", "metric", "before", "after", "s before", "s after")
    for heading in headings:
        found.add_column(heading, no_wrap=True)
    for name, example in EXAMPLES.items():
        mine = [row for row in rows if row["example"] == name]
        if example.why_not or not mine:
            reason = example.why_not or "not run"
            found.add_row(name, "", f"not tuned: {reason}")
            continue
        cells = {"before": [""] * 2, "after": [""] * 2}
        for version in cells:
            these = [row for row in mine if row["version"] == version]
            values = np.array([row["metrics"][example.metric] for row in these])
            error = values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0.0
            cells[version][0] = f"{values.mean():.3f} ± {error:.3f}"
            cells[version][1] = f"{np.median([row['seconds'] for row in these]):.0f}"
        metrics, seconds = zip(*cells.values(), strict=True)
        found.add_row(name, str(mine[0]["lines"]), example.metric, *metrics, *seconds)
    return found


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("flower", type=Path, metavar="FLOWER", help="a checkout")
    parser.add_argument("results", type=Path, metavar="RESULTS")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(EXAMPLES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--in-process", action="store_true", help="no engine")
    options = parser.parse_args()
    more = ("--in-process",) if options.in_process else ()
    rows = read_rows(options.results)
    done = {row["example"] for row in rows}
    for name in options.names or EXAMPLES:
        if EXAMPLES[name].why_not or name in done:
            continue
        found = list(runs(name, options.flower, options.seeds, *more))
        add_rows(options.results, found)  # all of an example, or nothing
    Console(width=150).print(table(read_rows(options.results)))


if __name__ == "__main__":
    main()

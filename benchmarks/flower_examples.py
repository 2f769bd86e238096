"""Flower's own examples and baselines, tuned with no line of them changed.

    python -m benchmarks.flower_examples FLOWER RESULTS [NAME ...]

FLOWER is a checkout of github.com/adap/flower at `COMMIT`. Each app is copied, and its
data are replaced by data at hand (`benchmarks.flower_data`): a few lines
(`LOADERS`), or files that the app reads. All else is as shipped: training, strategy and
metrics. Then ``flwr-fbo tune`` runs on the copy, in this process's own grid, with the
options of `APPS`. RESULTS is a file of JSON lines, one an app: apps in it are not run
again. The apps need what their ``pyproject.toml`` lists, and Flower's current release.

The 18 were written down before the first run; rounds and numbers of clients were cut
after it, and options added that the command asks for. Twelve of them were not in the
repository's earlier list, six have a ``server_fn``, and two a secure sum. Three cannot
be tuned as they are: quickstart-sklearn reads no number from its run config that
changes its training, quickstart-pandas does not train, and vertical-fl logs its
accuracy and gives it to nobody. Left out: apps for other machines (embedded-devices,
quickstart-mlx, Android, iOS), of models that are downloaded (FlowerTune, Whisper,
lerobot), and baselines without a ``ServerApp``. The bar: at least 14 are *tuned*, that
is, the command ends with settings chosen. Each of the others is *refused*: the command
ends within a minute, before any client trains twice, and its last line says what to
change.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.flower_data import save_fedbn, save_statavg
from benchmarks.rows import add_rows, read_rows

COMMIT = "fdef7afb1d"
_ROOT = Path(__file__).parents[1]

# Lines that load data, and two imports that Flower has moved since COMMIT; what takes
# their place.
LOADERS = {
    "from flwr_datasets import FederatedDataset": (
        "from benchmarks.flower_data import FederatedDataset"
    ),
    "from datasets import load_dataset": (
        "from benchmarks.flower_data import load_dataset"
    ),
    "from datasets import DatasetDict, load_dataset": (
        "from datasets import DatasetDict\n"
        "from benchmarks.flower_data import load_dataset"
    ),
    # JAX and other processes wait for each other for ever.
    "        .batch(batch_size, num_proc=2, drop_last_batch=True)": (
        "        .batch(batch_size, drop_last_batch=True)"
    ),
    "from flwr.client.typing import ClientAppCallable, Mod": (
        "from flwr.clientapp.typing import ClientAppCallable, Mod"
    ),
    "from flwr.client.client import Client": "from flwr.client import Client",
}


@dataclass(frozen=True)
class App:
    """An app of Flower's, and how it is tuned.

    Attributes
    ----------
    metric : str
    search : tuple of str
        Of ``--search``; without any, the command proposes what it finds.
    clients : int
    run_config : str
        Of ``--run-config``: the sizes of data and federation, and what an app switches
        off by default.
    score : str
        Of ``--score``.
    epsilon : float or None
        Of ``--epsilon``. The other apps compare metrics that are public: those of the
        server, of trainings, or beside texts that the app reads.
    folder : str
        Of the checkout.
    save_data : callable or None
        Writes the files that the app reads into the folder of its copy.
    """

    metric: str
    search: tuple[str, ...] = ()
    clients: int = 10
    run_config: str = ""
    score: str = "clients"
    epsilon: float | None = None
    folder: str = "examples"
    save_data: Callable[[Path], None] | None = None


RATE = "learning-rate=1e-3..1:log"
SMALL_RATE = "learning-rate=1e-4..1e-1:log"

APPS = {
    # In the repository's earlier list.
    "quickstart-pytorch": App("eval_acc", (RATE, "local-epochs=1..5"), epsilon=2.0),
    "quickstart-sklearn": App("accuracy", epsilon=2.0),
    "custom-mods": App("eval_acc", (RATE,), epsilon=2.0),
    "opacus": App("accuracy", ("max-grad-norm=0.1..10:log",), epsilon=2.0),
    # No client evaluates: what it measures when it has trained.
    "fl-dp-sa": App(
        "val_accuracy", ("clipping-norm=1..100:log",), clients=20, score="server"
    ),
    # Flower ships a demonstration of the protocol, which does not train.
    "flower-secure-aggregation": App("accuracy", (RATE,), run_config="is-demo=false"),
    # New.
    "flower-simulation-step-by-step-pytorch": App("accuracy", ("local-epochs=1..5",)),
    # Its model has ten times the size after each round: that of five is 100 MB.
    "quickstart-catboost": App(
        "AUC",
        ("learning-rate=0.01..1:log", "depth=2..8"),
        run_config="num-server-rounds=3",
        score="server",
    ),
    "quickstart-jax": App(
        "eval_acc",
        (RATE,),
        run_config="batch-size=16 num-server-rounds=3",
        epsilon=2.0,
    ),
    # 16 threads a client are slow on two cores.
    "xgboost-comprehensive": App(
        "auc",
        ("params.eta=0.01..1:log", "params.max-depth=2..10"),
        clients=20,
        run_config="params.nthread=1",
        epsilon=2.0,
    ),
    "federated-vae": App("loss", (SMALL_RATE,), epsilon=2.0),
    "vertical-fl": App("accuracy", (SMALL_RATE,), clients=3),
    "quickstart-pandas": App("accuracy", ("fraction-sample=0.25..1.0",)),
    # It ships with 1000 clients, and evaluates at the server only.
    "fedprox": App(
        "accuracy",
        ("algorithm.learning-rate=1e-3..1:log", "algorithm.mu=1e-3..10:log"),
        clients=20,
        run_config="algorithm.min-available-clients=20 algorithm.num-clients=20 "
        "algorithm.fraction-fit=0.5 algorithm.num-server-rounds=5",
        score="server",
        folder="baselines",
    ),
    # One client a set of digits, and models of 50 MB.
    "fedbn": App(
        "accuracy",
        (RATE,),
        clients=5,
        run_config="fraction-evaluate=1.0 num-server-rounds=3",
        folder="baselines",
        save_data=save_fedbn,
    ),
    "fedrep": App(
        "accuracy",
        (RATE,),
        clients=20,
        run_config="num-server-rounds=4 fraction-evaluate=1.0",
        folder="baselines",
    ),
    "floco": App(
        "accuracy",
        ("local-epochs=1..8",),
        run_config="num-server-rounds=4",
        folder="baselines",
    ),
    "statavg": App(
        "accuracy",
        ("learning_rate=1e-4..1e-1:log", "local_epochs=1..5"),
        clients=5,
        run_config="num_server_rounds=3",
        folder="baselines",
        save_data=save_statavg,
    ),
}


def prepare(app: Path, folder: Path) -> int:
    """Copy an app, and replace the lines that load its data.

    Parameters
    ----------
    app : Path
        Of a ``pyproject.toml``, or of a folder that has one.
    folder : Path
        Of the copy, which is made.

    Returns
    -------
    int
        The number of lines that were replaced.
    """
    [project] = sorted(app.rglob("pyproject.toml"))
    shutil.copytree(project.parent, folder)
    return sum(map(_replace_loaders, folder.rglob("*.py")))


def _replace_loaders(path: Path) -> int:
    lines = path.read_text().splitlines(keepends=True)
    replaced = [LOADERS.get(line.rstrip("\n")) for line in lines]
    pairs = zip(replaced, lines, strict=True)
    path.write_text("".join(f"{new}\n" if new else line for new, line in pairs))
    return sum(map(bool, replaced))


def run(name: str, flower: Path) -> dict[str, Any]:
    """Tune an app, and return its row.

    Its ``trainings`` are those of the client that has trained most; stages of a secure
    sum count each.
    """
    app = APPS[name]
    with tempfile.TemporaryDirectory() as scratch:
        folder, counts = Path(scratch) / name, Path(scratch) / "trainings.json"
        num_lines = prepare(flower / app.folder / name, folder)
        if app.save_data is not None:
            app.save_data(folder)
        command = [sys.executable, "-m", "benchmarks.flower_trainings", str(counts)]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(folder), str(_ROOT)]),
            "FLWR_TELEMETRY_ENABLED": "0",
            "WANDB_MODE": "disabled",
            "OMP_NUM_THREADS": "1",
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        began = time.monotonic()
        done = subprocess.run(
            [*command, *tune(name, folder)],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
        )
        seconds = round(time.monotonic() - began, 1)
        trainings = json.loads(counts.read_text())
    row = {"name": name, "seconds": seconds, "lines": num_lines}
    row["trainings"] = max(trainings.values(), default=0)
    if done.returncode == 0:
        found = json.loads(done.stdout)
        kept = ("chosen", "defaults", "compared", "verdict", "epsilon")
        last_line = found["command"].replace(str(folder), name)
        row |= {"outcome": "tuned", **{key: found[key] for key in kept}}
    else:
        told = [line for line in done.stderr.splitlines() if line.strip()]
        last_line = told[-1].strip() if told else ""
        row["outcome"] = "refused"
    return {**row, "last_line": last_line}


def tune(name: str, folder: Path) -> list[str]:
    """Return the arguments of ``flwr-fbo`` that tune an app."""
    app = APPS[name]
    found = ["tune", str(folder), "--metric", app.metric]
    found += ["--folder", str(folder.with_name("record"))]
    found += ["--num-supernodes", str(app.clients)]
    for search in app.search:
        found += ["--search", search]
    if app.run_config:
        found += ["--run-config", app.run_config]
    found += ["--score", app.score]
    if app.epsilon is not None:
        found += ["--epsilon", str(app.epsilon)]
    return [*found, "--json"]


def table(rows: Iterable[dict[str, Any]]) -> Table:
    """Return the table of all apps."""
    by_name = {row["name"]: row for row in rows}
    found = Table()
    headings = ("app", "outcome", "s", "trainings", "before", "after", "last line")
    for heading in headings:
        found.add_column(heading, overflow="fold")
    for name in APPS:
        row = by_name.get(name)
        if row is None:
            found.add_row(name, "not run")
            continue
        compared = row.get("compared") or {}
        scores = [f"{compared[key]:.3g}" for key in ("before", "after") if compared]
        cells = [row["outcome"], f"{row['seconds']:.0f}", str(row["trainings"])]
        found.add_row(name, *cells, *(scores or ("", "")), row["last_line"])
    return found


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("flower", type=Path, metavar="FLOWER", help="a checkout")
    parser.add_argument("results", type=Path, metavar="RESULTS")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(APPS))
    options = parser.parse_args()
    done = {row["name"] for row in read_rows(options.results)}
    for name in options.names or APPS:
        if name not in done:
            add_rows(options.results, [run(name, options.flower)])
    Console(width=150).print(table(read_rows(options.results)))


if __name__ == "__main__":
    main()

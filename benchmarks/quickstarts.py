"""Whether an app that is tuned first becomes worse, and whether its user is told.

    OMP_NUM_THREADS=1 python -m benchmarks.quickstarts [numpy] [pytorch] [--seeds 10]

The apps are `examples/plug-in-numpyclient` and `examples/plug-in-pytorch`: five sites
tune a learning rate and a weight decay, then train one model with `FedAvg`. A seed
deals the digits out and draws the first weights and all of the tuning. Each app has a
poor default, its own, and a good one, the best of a grid, where tuning can only hurt.
All rows of a seed have the same digits, and the tuned rows the same tuning:

- *untuned*: all sites train with the default.
- *not compared*: each site trains with its best setting.
- *compared*: each site keeps the default unless ``compare`` prefers its best setting.
- *averages compared* (PyTorch, as its app is): `FederationTuner` then trains with all
  defaults and with what the sites prefer, and chooses.

Endpoints, fixed before the run: the accuracy of the last average on digits that no site
has, mean and standard error over seeds, and the paired differences. A run is a *loss*
if it is more than 0.01 below untuned. A user is *told* of it if a site has logged a
warning before its training. The bar, over ten seeds: no loss where settings are
compared, and the user is told of every loss.

A first run had no *averages compared*, and sites that preferred their best setting did
not warn: of ten runs of the PyTorch app with its good default, nine were losses where
its sites compare, four of them silent.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import logging
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from logging.handlers import BufferingHandler
from typing import Any
from unittest import mock

import numpy as np
from flwr.app import Context, RecordDict, UserConfig
from flwr.serverapp.strategy import FedAvg, Result

import flwr_fbo
from benchmarks.tuned_examples import EXAMPLES, App, imported, mean_and_error
from flwr_fbo import FedVote, InProcessGrid, Seeds
from flwr_fbo.space.search_space import Params

LOSS = 0.01
ROWS = ("untuned", "not compared", "compared", "averages compared")
TUNED, AVERAGES = ROWS[1], ROWS[3]

_NUM_SITES = 5


@dataclass(frozen=True)
class Quickstart:
    """An example, and how a run of it gets its seed and its default.

    Attributes
    ----------
    folder : str
        Of its ``pyproject.toml``, in `examples/`.
    defaults : dict of str to dict
        The default settings, by name.
    prepare : callable
        Makes an imported app one with a seed and a default; returns its run config.
    rows : tuple of str
        Of `ROWS`.
    """

    folder: str
    defaults: dict[str, Params]
    prepare: Callable[[App, int, Params], UserConfig]
    rows: tuple[str, ...]


@dataclass(frozen=True)
class Trained:
    """What came of one training.

    Attributes
    ----------
    accuracy : float
        The accuracy of the last average, on digits that no site has.
    num_defaults : int
        The number of sites that trained with the default.
    num_warnings : int
        The number of sites that warned before they trained.
    """

    accuracy: float
    num_defaults: int
    num_warnings: int


def _prepare_numpy(app: App, seed: int, default: Params) -> UserConfig:
    X, y = app.client.task._digits()
    order = np.random.default_rng(seed).permutation(len(y))
    app.client.task._digits = lambda: (X[order], y[order])
    app.client.DEFAULT = default
    return {}


def _prepare_pytorch(app: App, seed: int, default: Params) -> UserConfig:
    import torch

    torch.set_num_threads(1)
    settings = {name.replace("_", "-"): value for name, value in default.items()}
    return {**app.config, **settings, "seed": seed, "experiment": True}


QUICKSTARTS = {
    "numpy": Quickstart(
        "plug-in-numpyclient/after",
        {
            "poor": {"learning_rate": 0.1, "l2": 1e-3},
            "good": {"learning_rate": 1.0, "l2": 1e-6},
        },
        _prepare_numpy,
        ROWS[:3],
    ),
    "pytorch": Quickstart(
        "plug-in-pytorch",
        {
            "poor": {"learning_rate": 0.01, "weight_decay": 0.0},
            "good": {"learning_rate": 0.1, "weight_decay": 0.0},
        },
        _prepare_pytorch,
        ROWS,
    ),
}


def trained(quickstart: Quickstart, seed: int) -> dict[tuple[str, str], Trained]:
    """Return what came of all rows of one seed, by default and row.

    The app runs in the in-process Grid, which is *not private*. It tunes once: the
    trainings after the first find the sites' journals.

    Parameters
    ----------
    quickstart : Quickstart
    seed : int
        >= 0.
    """
    found: dict[tuple[str, str], Trained] = {}
    with tempfile.TemporaryDirectory() as folder:
        # The default plays no part in the first training: all sites find a setting.
        tuned = _play(quickstart, seed, quickstart.defaults["poor"], TUNED, folder)
        for name, default in quickstart.defaults.items():
            for row in quickstart.rows:
                again = partial(_play, quickstart, seed, default, row, folder)
                found[name, row] = tuned if row == TUNED else again()
    return found


def _play(
    quickstart: Quickstart, seed: int, default: Params, row: str, folder: str
) -> Trained:
    results: list[Result] = []

    class NotingFedAvg(FedAvg):
        def start(self, *args: Any, **kwargs: Any) -> Result:
            results.append(super().start(*args, **kwargs))
            return results[-1]

    def seeded_vote(*args: Any, **kwargs: Any) -> FedVote:
        seeds = Seeds(study=seed, features=seed, noise=seed)
        return FedVote(*args, **{**kwargs, "seeds": seeds})

    with _importing(row), imported(EXAMPLES / quickstart.folder) as app:
        app.server.FedAvg = NotingFedAvg
        app.server.FedVote = seeded_vote if row == TUNED else mock.Mock()
        config = quickstart.prepare(app, seed, default)
        if row != "untuned":
            config["fbo-folder"] = folder
        if row != AVERAGES:
            app.server.FederationTuner = _absent_tuner()
            config.pop("fbo-tuned", None)
        random.seed(seed)
        grid = InProcessGrid(app.client.app, _NUM_SITES, run_config=config)
        with _said() as lines:
            app.server.app(grid, Context(1, 1, {}, RecordDict(), dict(config)))
    tests: Any = results[-1].evaluate_metrics_serverapp
    at_sites = [line for line in lines if "on held-out data" in line.getMessage()]
    num_defaults = sum("The default is kept" in line.getMessage() for line in at_sites)
    if any("chosen: {'fbo-tuned': False}" in line.getMessage() for line in lines):
        num_defaults = _NUM_SITES
    return Trained(
        float(tests[max(tests)]["accuracy"]),
        num_defaults,
        sum(line.levelno >= logging.WARNING for line in at_sites),
    )


def _absent_tuner() -> Any:
    """Return what stands for `FederationTuner` where nothing compares averages."""
    tuner = mock.Mock()
    tuner.return_value.start.return_value.apply = lambda grid, context: (grid, context)
    return tuner


@contextlib.contextmanager
def _importing(row: str) -> Iterator[None]:
    """Import an app as if it had no ``compare``, where no setting is compared."""
    with contextlib.ExitStack() as stack:
        for name in ("add_tuning", "with_tuning") if row == TUNED else ():
            add = getattr(flwr_fbo, name)
            plain = partial(_without_compare, add)
            stack.enter_context(mock.patch.object(flwr_fbo, name, plain))
        yield


def _without_compare(add: Callable[..., Any], *args: Any, compare: Any) -> Any:
    return add(*args, compare=None)


@contextlib.contextmanager
def _said() -> Iterator[list[logging.LogRecord]]:
    """Collect what the sites log."""
    handler, log = BufferingHandler(capacity=sys.maxsize), logging.getLogger("flwr.fbo")
    log.addHandler(handler)
    try:
        yield handler.buffer
    finally:
        log.removeHandler(handler)


def table(name: str, num_seeds: int) -> list[str]:
    """Return the lines of a Markdown table about one app.

    Parameters
    ----------
    name : {"numpy", "pytorch"}
    num_seeds : int
        >= 2.
    """
    quickstart = QUICKSTARTS[name]
    runs = [trained(quickstart, seed) for seed in range(num_seeds)]
    lines = []
    for default, row in itertools.product(quickstart.defaults, quickstart.rows):
        untuned = np.array([run[default, "untuned"].accuracy for run in runs])
        here = [run[default, row] for run in runs]
        gain = np.array([one.accuracy for one in here]) - untuned
        is_loss = gain < -LOSS
        silent = sum(
            bool(loss) and one.num_warnings == 0
            for loss, one in zip(is_loss, here, strict=True)
        )
        cells = [
            f"{name}, {default}",
            row,
            mean_and_error(gain + untuned),
            mean_and_error(gain),
            f"{is_loss.sum()}",
            f"{silent}",
            f"{np.mean([one.num_defaults for one in here]):.1f}",
            f"{np.mean([one.num_warnings for one in here]):.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("apps", nargs="*", metavar="APP", help=f"of {[*QUICKSTARTS]}")
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    logging.getLogger("flwr").propagate = False
    print(
        "| app, default | row | accuracy | minus untuned | losses | of them silent "
        "| sites that keep the default | sites that warn |\n" + "|---" * 8 + "|"
    )
    for name in options.apps or QUICKSTARTS:
        print(*table(name, options.seeds), sep="\n", flush=True)


if __name__ == "__main__":
    main()

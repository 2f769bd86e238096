"""What tuning first is worth to `examples/tune-fedavg-*` and `private-training`.

    python -m benchmarks.tuned_examples [sklearn] [pytorch] [private] [--seeds 10]

The figure is the accuracy after the last round of training, on digits that no site has:
mean and standard error over seeds of the settings that are tried, the noise and the
first weights. In the in-process Grid, one thread.

- *defaults*: `before/`.
- *tuned*: `after/`, as it is but for the seeds.
- *tuned, choice not private*: the same trials, chosen by exact means: ``privacy=None``.

The last two lines are differences, paired by seed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import logging
import random
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Context, RecordDict, UserConfig
from flwr.serverapp.strategy import FedAvg, Result
from numpy.typing import NDArray

from flwr_fbo import FederationTuner, InProcessGrid, Seeds

EXAMPLES = Path(__file__).parents[1] / "examples"
# Folder of an example, and its number of sites.
NAMES = {
    "sklearn": ("tune-fedavg-sklearn", 20),
    "pytorch": ("tune-fedavg-pytorch", 20),
    "private": ("private-training", 10),
}

# Version of the example, and arguments of its `FederationTuner` in place of the app's.
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "defaults": ("before", {}),
    "tuned": ("after", {}),
    "tuned, choice not private": ("after", {"privacy": None}),
}


class App(NamedTuple):
    """The modules of a Flower app, and its run config."""

    server: Any
    client: Any
    config: UserConfig


@contextlib.contextmanager
def imported(folder: Path) -> Iterator[App]:
    """Import an app, and forget it afterwards: its other version has the same names.

    Parameters
    ----------
    folder : Path
        Of its ``pyproject.toml``.
    """
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    settings = project["tool"]["flwr"]["app"]
    server, client = (
        settings["components"][name].partition(":")[0]
        for name in ("serverapp", "clientapp")
    )
    package = server.partition(".")[0]
    _forget(package)
    sys.path.insert(0, str(folder))
    try:
        yield App(
            importlib.import_module(server),
            importlib.import_module(client),
            settings.get("config", {}),
        )
    finally:
        sys.path.remove(str(folder))
        _forget(package)


def _forget(package: str) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        del sys.modules[name]


def accuracies(
    folder: Path,
    seed: int,
    tuner: Mapping[str, Any],
    num_sites: int = 20,
    node_configs: Sequence[UserConfig] | None = None,
) -> list[float]:
    """Run an app in the in-process Grid, which is *not private*.

    Parameters
    ----------
    folder : Path
        Of its ``pyproject.toml``.
    seed : int
        Of the settings that are tried, the noise and the first weights, >= 0.
    tuner : mapping
        Arguments of its `FederationTuner`, if it has one, in place of the app's.
    num_sites : int
    node_configs : sequence of dict, optional
        Of the sites. See `InProcessGrid`.

    Returns
    -------
    list of float
        The accuracy before the training that comes last, and after each round of it.
    """
    results: list[Result] = []

    class NotingFedAvg(FedAvg):
        def start(self, *args: Any, **kwargs: Any) -> Result:
            results.append(super().start(*args, **kwargs))
            return results[-1]

    def seeded_tuner(*args: Any, **kwargs: Any) -> FederationTuner:
        seeds = Seeds(study=seed, noise=seed)
        return FederationTuner(*args, **{**kwargs, "seeds": seeds, **tuner})

    with (
        imported(folder) as app,
        tempfile.TemporaryDirectory() as written,
        contextlib.chdir(written),
    ):
        app.server.FedAvg = NotingFedAvg
        app.server.FederationTuner = seeded_tuner
        random.seed(seed)
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(1)
            torch.manual_seed(seed)
        grid = InProcessGrid(
            app.client.app,
            num_sites,
            run_config=app.config,
            node_configs=node_configs,
        )
        app.server.app(grid, Context(1, 1, {}, RecordDict(), dict(app.config)))
    tests: Any = results[-1].evaluate_metrics_serverapp
    return [float(tests[round_]["accuracy"]) for round_ in sorted(tests)]


def table(name: str, num_seeds: int) -> list[str]:
    """Return the lines about one example.

    Parameters
    ----------
    name : str
        One of ``NAMES``.
    num_seeds : int
        >= 2.
    """
    folder, num_sites = NAMES[name]
    example, seeds = EXAMPLES / folder, range(num_seeds)
    found = {
        row: np.array(
            [accuracies(example / v, s, changed, num_sites)[-1] for s in seeds]
        )
        for row, (v, changed) in ROWS.items()
    }
    for row in ("defaults", "tuned, choice not private"):
        found[f"tuned minus {row}"] = found["tuned"] - found[row]
    return [f"{name}: {row}: {mean_and_error(values)}" for row, values in found.items()]


def mean_and_error(values: NDArray[np.float64]) -> str:
    """Return mean and standard error, as a table has them."""
    return f"{values.mean():.3f} ± {values.std(ddof=1) / len(values) ** 0.5:.3f}"


def main() -> None:
    """Print a table for each example."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "examples", nargs="*", metavar="EXAMPLE", help=f"of {', '.join(NAMES)}"
    )
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    for name in options.examples or NAMES:
        print(*table(name, options.seeds), sep="\n", flush=True)


if __name__ == "__main__":
    main()

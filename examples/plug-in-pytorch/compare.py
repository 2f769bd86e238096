"""Tuned against untuned, over paired seeds, in one process: a table.

    python compare.py [NUM_SEEDS]

A seed deals the digits out and draws the first weights. All rows of a seed have the
same of both, and the same rounds of training.
"""

import logging
import sys
import tomllib
from pathlib import Path

import numpy as np
import torch
from flwr.app import Context, RecordDict, UserConfig

from digits_cnn import client_app, server_app
from flwr_fbo import InProcessGrid

ROWS: dict[str, UserConfig] = {
    "learning rate 0.01": {"tuning-rounds": 0},
    "learning rate 0.1": {"tuning-rounds": 0, "learning-rate": 0.1},
    "tuned": {},
    "tuned alone": {"noise-only": True},
}
CONTROLS = [name for name in ROWS if name != "tuned"]


def default_config() -> UserConfig:
    """Return the app's settings."""
    project = tomllib.loads(Path(__file__).with_name("pyproject.toml").read_text())
    config: UserConfig = project["tool"]["flwr"]["app"]["config"]
    return config


def accuracies(changed: UserConfig, seed: int) -> tuple[float, float]:
    """Return the validation and test accuracy of one run."""
    config = {**default_config(), "experiment": True, "seed": seed, **changed}
    num_sites = int(config["num-sites"])
    grid = InProcessGrid(client_app.app, num_sites, run_config=config)
    context = Context(1, 1, {}, RecordDict(), config)
    return server_app.tune_and_train(grid, context)


def main(num_seeds: int) -> None:
    """Print each row's means, and by how much the tuned one is better, paired."""
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    seeds = range(num_seeds)
    found = {k: np.array([accuracies(v, s) for s in seeds]) for k, v in ROWS.items()}
    print("| | validation | test |\n|---|---|---|")
    for name, values in found.items():
        print(f"| {name} | " + " | ".join(_cells(values)) + " |")
    for name in CONTROLS:
        cells = _cells(found["tuned"] - found[name])
        print(f"| tuned minus {name} | " + " | ".join(cells) + " |")


def _cells(values: np.ndarray) -> list[str]:
    """Return mean and standard error of both columns."""
    errors = values.std(axis=0, ddof=1) / np.sqrt(len(values))
    return [f"{m:.3f} ± {e:.3f}" for m, e in zip(values.mean(0), errors, strict=True)]


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)

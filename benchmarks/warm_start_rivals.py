"""A site's first evaluations beside Optuna's samplers, on the tables of `warm_start`.

    python -m benchmarks.warm_start_rivals play rows.jsonl [--seeds 5] [--jobs 2]
    python -m benchmarks.warm_start_rivals show rows.jsonl

8 sites, each by itself: an agent of ours, `GPSampler` and `TPESampler` by their
defaults (10 random trials first) and with 3 in their place; and the same 8 sites with
`FedWarmStart` at epsilon 8. The figure is that of `benchmarks.warm_start`. Needs the
extra ``torch``, as `GPSampler` does. *play* adds the lines that the file lacks.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.samplers import BaseSampler, GPSampler, TPESampler

from benchmarks.warm_start import (
    FEWER_EVALUATIONS,
    HIGH,
    TASKS,
    Federation,
    add_missing,
    best_so_far,
    honest,
    lines,
    path_of,
)
from flwr_fbo.lab.tasks.table import Table, names_of, tables

NUM_SITES = 8
SAMPLERS: dict[str, Callable[..., BaseSampler]] = {
    "GPSampler": GPSampler,
    "GPSampler, 3 random": partial(GPSampler, n_startup_trials=3),
    "TPESampler": TPESampler,
    "TPESampler, 3 random": partial(TPESampler, n_startup_trials=3),
}


def _mean_best(
    make: Callable[..., BaseSampler], site: Table, seed: int, num: int
) -> float:
    """Return the mean over evaluations of the best value so far."""
    names = names_of(len(site.axes))

    def objective(trial: optuna.Trial) -> float:
        return site({name: trial.suggest_float(name, 0.0, 1.0) for name in names})

    study = optuna.create_study(direction="maximize", sampler=make(seed=seed))
    study.optimize(objective, n_trials=num)
    values = np.array([trial.value for trial in study.trials], dtype=np.float64)
    return float(np.maximum.accumulate(values).mean())


def line_of(task: str, seed: int) -> dict[str, Any]:
    """Return all methods of one seed."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    num = FEWER_EVALUATIONS.get(task, 30)
    sites = tables(path_of(task), NUM_SITES, seed, unrelated=False)
    ours = Federation(sites, len(sites[0].axes), seed, num)
    agents, _, _ = ours.play(HIGH, honest)
    both = {"alone": ours.alone, "warm start": agents}
    means = {name: float(best_so_far(each).mean()) for name, each in both.items()}
    for name, make in SAMPLERS.items():
        found = [_mean_best(make, s, 100 * seed + n, num) for n, s in enumerate(sites)]
        means[name] = float(np.mean(found))
    rounded = {name: round(mean, 5) for name, mean in means.items()}
    return {"task": task, "seed": seed, "means": rounded}


def show(path: Path) -> None:
    """Print what is ahead of what, by task and in the mean."""
    found = list(lines(path))
    names = list(found[0]["means"])
    print("| task |", " | ".join(names), "|")
    print("| --- " * (len(names) + 1) + "|")
    by_task = {
        task: np.array(
            [list(o["means"].values()) for o in found if o["task"] == task]
        ).mean(axis=0)
        for task in dict.fromkeys(one["task"] for one in found)
    }
    for task, means in by_task.items():
        print(f"| {task} |", " | ".join(f"{mean:.4f}" for mean in means), "|")
    whole = np.mean(list(by_task.values()), axis=0)
    print("| mean |", " | ".join(f"{mean:.4f}" for mean in whole), "|")


def main() -> None:
    """Play or show."""
    parser = argparse.ArgumentParser(description="See the module.")
    parser.add_argument("what", choices=("play", "show"))
    parser.add_argument("rows", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    if asked.what == "play":
        add_missing(asked.rows, line_of, TASKS, asked.seeds, asked.jobs)
    else:
        show(asked.rows)


if __name__ == "__main__":
    # Workers import what they run by its name, which is not `__main__`.
    from benchmarks.warm_start_rivals import main

    main()

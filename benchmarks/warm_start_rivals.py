"""A site's first evaluations beside other libraries, on the tables of `warm_start`.

    python -m benchmarks.warm_start_rivals play rows.jsonl [--seeds 5] [--rivals ...]
    python -m benchmarks.warm_start_rivals show rows.jsonl

8 sites, each by itself: an agent of ours, and as many evaluations of each of `RIVALS`.
And the same 8 sites with `FedWarmStart` at epsilon 8. The figure is that of
`benchmarks.warm_start`.

Optuna's samplers are played by their defaults (10 random trials first), with 3 random
trials, and with 2: the centre, which is enqueued, and a random one. BoTorch (as
`benchmarks.suggestion` has it) begins with the same two, FLAML's CFO with the centre.
*play* adds what a line lacks; a rival that is not installed is left out, and so is a
table that is not there. `GPSampler` needs the extra ``torch``.
"""

from __future__ import annotations

import argparse
import json
import logging
import warnings
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.samplers import BaseSampler, GPSampler, TPESampler

from benchmarks.rows import read_rows
from benchmarks.suggestion import BoTorch
from benchmarks.warm_start import (
    FEWER_EVALUATIONS,
    HIGH,
    TASKS,
    Federation,
    best_so_far,
    honest,
    path_of,
)
from flwr_fbo.lab.tasks.table import Table, names_of, tables

NUM_SITES = 8
# Takes a site, a seed and a number of evaluations; returns their values.
Rival = Callable[[Table, int, int], list[float]]


def _of_optuna(
    site: Table, seed: int, num: int, *, make: Callable[..., BaseSampler], centre: bool
) -> list[float]:
    names = names_of(len(site.axes))

    def objective(trial: optuna.Trial) -> float:
        return site({name: trial.suggest_float(name, 0.0, 1.0) for name in names})

    study = optuna.create_study(direction="maximize", sampler=make(seed=seed))
    if centre:
        study.enqueue_trial(dict.fromkeys(names, 0.5))
    study.optimize(objective, n_trials=num)
    return [float(trial.value or 0.0) for trial in study.trials]


def _of_botorch(site: Table, seed: int, num: int) -> list[float]:
    dim = len(site.axes)
    names, rng = names_of(dim), np.random.default_rng(seed)
    search = BoTorch(dim, seed)
    for k in range(num):
        first = (np.full(dim, 0.5), rng.random(dim))
        point = first[k] if k < len(first) else np.clip(search.ask(), 0.0, 1.0)
        search.tell(point, site(dict(zip(names, point.tolist(), strict=True))))
    return search.y


def _of_flaml(site: Table, seed: int, num: int) -> list[float]:
    from flaml import CFO, tune

    logging.getLogger("flaml").setLevel(logging.ERROR)
    names, values = names_of(len(site.axes)), []

    def objective(params: dict[str, float]) -> dict[str, float]:
        values.append(site(params))
        return {"value": values[-1]}

    space = {name: tune.uniform(0.0, 1.0) for name in names}
    first = [dict.fromkeys(names, 0.5)]
    about: Any = {"metric": "value", "mode": "max", "space": space, "seed": seed}
    search = CFO(points_to_evaluate=first, **about)
    # A proposal that has been evaluated is not evaluated again.
    tune.run(objective, search_alg=search, num_samples=num, verbose=0)
    return values[:num]


def _optuna(make: Callable[..., BaseSampler], centre: bool = False) -> Rival:
    return partial(_of_optuna, make=make, centre=centre)


# A rival, and the module that it needs.
RIVALS: dict[str, tuple[Rival, str]] = {
    "GPSampler": (_optuna(GPSampler), "torch"),
    "GPSampler, 3 random": (_optuna(partial(GPSampler, n_startup_trials=3)), "torch"),
    "GPSampler, centre": (
        _optuna(partial(GPSampler, n_startup_trials=2), centre=True),
        "torch",
    ),
    "TPESampler": (_optuna(TPESampler), "optuna"),
    "TPESampler, 3 random": (
        _optuna(partial(TPESampler, n_startup_trials=3)),
        "optuna",
    ),
    "TPESampler, centre": (
        _optuna(partial(TPESampler, n_startup_trials=2), centre=True),
        "optuna",
    ),
    "BoTorch, centre": (_of_botorch, "botorch"),
    "FLAML CFO, centre": (_of_flaml, "flaml"),
}


def _mean_best(values: list[float], num: int) -> float:
    """Return the mean over evaluations of the best value so far."""
    best = np.maximum.accumulate(values)
    # FLAML may have evaluated fewer different settings.
    return float(np.append(best, np.full(num - len(best), best[-1])).mean())


def add_to(line: dict[str, Any], rivals: list[str]) -> dict[str, Any]:
    """Return a line of one table and seed with what it lacks."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    task, seed, means = line["task"], line["seed"], dict(line["means"])
    num = FEWER_EVALUATIONS.get(task, 30)
    sites = tables(path_of(task), NUM_SITES, seed, unrelated=False)
    if "alone" not in means:
        ours = Federation(sites, len(sites[0].axes), seed, num)
        agents, _, _ = ours.play(HIGH, honest)
        both = {"alone": ours.alone, "warm start": agents}
        means = {name: float(best_so_far(each).mean()) for name, each in both.items()}
    for name in rivals:
        if name not in means and find_spec(RIVALS[name][1]) is not None:
            seeds = [100 * seed + n for n in range(len(sites))]
            pairs = zip(sites, seeds, strict=True)
            found = [_mean_best(RIVALS[name][0](*p, num), num) for p in pairs]
            means[name] = float(np.mean(found))
    rounded = {name: round(mean, 5) for name, mean in means.items()}
    return {**line, "means": rounded}


def play(path: Path, num_seeds: int, rivals: list[str]) -> None:
    """Add what a file lacks, table by table."""
    known = {(line["task"], line["seed"]): line for line in read_rows(path)}
    for seed in range(num_seeds):
        for task in TASKS:
            try:
                path_of(task)
            except SystemExit:
                continue
            new = {"task": task, "seed": seed, "means": {}}
            known[task, seed] = add_to(known.get((task, seed), new), rivals)
            text = "".join(json.dumps(line) + "\n" for line in known.values())
            path.write_text(text, "utf-8")


def show(path: Path) -> None:
    """Print what is ahead of what, by task and in the mean, over lines that have it."""
    found = read_rows(path)
    names = ["alone", "warm start", *RIVALS]
    for chosen in (names[:2], *([*names[:2], name] for name in RIVALS)):
        own = [line for line in found if set(chosen) <= line["means"].keys()]
        by_task = {
            task: np.array(
                [
                    [line["means"][name] for name in chosen]
                    for line in own
                    if line["task"] == task
                ]
            ).mean(axis=0)
            for task in dict.fromkeys(line["task"] for line in own)
        }
        if by_task:
            about = f"{len(by_task)} tables, {len(own)} lines"
            mean = np.mean(list(by_task.values()), axis=0)
            pairs = zip(chosen, mean, strict=True)
            print(about, *(f"{name} {value:.4f}" for name, value in pairs), sep="; ")
            for task, means in by_task.items():
                print(f"    {task:28}", *(f"{mean:.4f}" for mean in means))


def main() -> None:
    """Play or show."""
    parser = argparse.ArgumentParser(description="See the module.")
    parser.add_argument("what", choices=("play", "show"))
    parser.add_argument("rows", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rivals", nargs="+", choices=RIVALS, default=list(RIVALS))
    asked = parser.parse_args()
    if asked.what == "play":
        play(asked.rows, asked.seeds, asked.rivals)
    else:
        show(asked.rows)


if __name__ == "__main__":
    main()

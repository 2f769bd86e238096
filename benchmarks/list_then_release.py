"""What FedWarmStart adds to a public list, replayed from tables.

    python -m benchmarks.list_then_release tables CLONES OWN
    python -m benchmarks.list_then_release play rows.jsonl [--seeds 20] [TASK ...]
    python -m benchmarks.list_then_release show rows.jsonl

Each seed draws sites from a table's data sets: two thirds of them, at most 30. The list
has three settings, chosen greedily on the data sets that are left
(`benchmarks.make_portfolios`). `benchmarks.warm_start` describes tables and figures.
*tables* writes the tables of `JUDGES` to ``results/surfaces``, from a clone of
`udellgroup/oboe` in the folder CLONES, and from what `benchmarks.portfolio_tables` has
written to the folder OWN. ``har`` is a table of `benchmarks.task_tables`.

**Plan**, written before the runs. Arms, with the same draws:

- *list*: the three settings, then the centre, then expected improvement.
- *epsilon 2*, *epsilon 8*: the same, and those that start later start from releases, by
  the rule of `FedWarmStartAgent`. *noise-only*: the same with every message zeroed.

A release that takes the place of nothing changes nothing, to the last bit. So sites
play on only in seeds where one does; else the difference is 0.

A rule says when a release takes the place of what a site would do otherwise. It is
chosen on the seven tables of `CHOSEN_ON`, by evaluations 1 to 15, from these:

1. A released function's maximiser takes the place of the centre, and leads
   evaluations 2 to 6, whatever was listed: as it was.
2. As 1, but a start is given first, and five evaluations after it are led.
3. It leads evaluations 5 and 6, the centre stays.
4. As 1, if the shared function's maximum is above its value at each given setting with
   a posterior probability of 95 %, given that anything is shared; otherwise nothing is
   followed.
5. In evaluations up to 6 it leads if the site's own values are more probable with the
   function than without it.

Chosen is the rule whose *epsilon 2* less *list* has the largest mean over tasks
among those with no task below -.001; if none is, the one whose worst task is best.

**Choice**: rule 4. Over the seven tables and two seeds the five rules added +.0002,
+.0001, -.0002, .0000 and -.0001; the worst table lost .0010, .0025, .0019, .0000 and
.0014. By rule 4 no release took the place of a list. In the first three seeds the least
of the three probabilities was .54 to .80 where something was shared; that of the
centre, without a list, .91 to 1. In an exploratory run on four tables it was above .95,
or close to it, where the worst settings were listed.

**Endpoint**, judged on the tables of `JUDGES`, which no rule was tried on: *epsilon 2*
less *list*, in mean best value over evaluations 1 to 30. Its lower 95 % bound
(bootstrap over tasks, then seeds) is at or above 0, and no task is below -.001.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from scipy.stats.qmc import Sobol

from benchmarks.make_portfolios import greedy, oboe_table
from benchmarks.rows import read_rows
from benchmarks.warm_start import (
    FEWER_EVALUATIONS,
    HIGH,
    LOW,
    NUM_SITES,
    OWN_TABLES,
    SETTINGS,
    Federation,
    Message,
    add_missing,
    best_so_far,
    honest,
    lower_bound,
    nothing,
    path_of,
)
from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.algorithms.search.portfolios import LEARNERS, SIZE
from flwr_fbo.lab.tasks.table import Table, names_of, tables
from flwr_fbo.space.search_space import SearchSpace

CHOSEN_ON = (
    "oboe_ksvm",
    "pimp_random_forest",
    "lcbench_surrogate_2d",
    "lcbench_surrogate_7d",
    "rbv2_xgboost_surrogate_4d",
    "mlp_har_6d",
    "hgb_magic_5d",
)
OF_OBOE: dict[str, tuple[str, Mapping[str, BaseDistribution]]] = {
    "oboe_boosting": (
        "GBT",
        {
            "learning_rate": FloatDistribution(1e-3, 0.5, log=True),
            "max_depth": IntDistribution(3, 6, step=3),
            "max_features": CategoricalDistribution(["log2", None]),
        },
    ),
    "oboe_extra_trees": ("ExtraTrees", LEARNERS["extra_trees"].space),
    "oboe_logistic_regression": ("Logit", LEARNERS["logistic_regression"].space),
}
OF_OWN = ("svc", "random_forest", "gradient_boosting", "mlp")
JUDGES = (*OF_OBOE, *(f"own_{learner}" for learner in OF_OWN), "har")
FEWER = {**FEWER_EVALUATIONS, **dict.fromkeys(OF_OBOE, 15)}
NUM_CANDIDATES = 256
ARMS: dict[str, tuple[float, Message]] = {
    "epsilon 2": (LOW, honest),
    "epsilon 8": (HIGH, honest),
    "noise-only": (LOW, nothing),
}


def write_tables(clones: Path, own: Path) -> None:
    """Write the tables of `JUDGES`, but for ``har``."""
    OWN_TABLES.mkdir(parents=True, exist_ok=True)
    for name, (algorithm, axes) in OF_OBOE.items():
        table = oboe_table(clones, algorithm, SearchSpace(axes))
        np.savez(
            OWN_TABLES / f"{name}.npz", X=table.points[0], Y=np.array(table.values)
        )
    for learner in OF_OWN:
        space = SearchSpace(LEARNERS[learner].space)
        rows = read_rows(own / f"{learner}.jsonl")
        points = [space.to_unit(params) for params in rows[0]["settings"]]
        scores = np.array([row["scores"] for row in rows])
        np.savez(OWN_TABLES / f"own_{learner}.npz", X=np.array(points), Y=scores)


def listed_on(others: Sequence[Table], num_settings: int) -> list[dict[str, float]]:
    """Return the settings that serve other data sets best, one after another."""
    dim = len(others[0].axes)
    sobol = Sobol(dim, rng=np.random.default_rng(0)).random(num_settings)
    points = [np.full(dim, 0.5), *sobol, *others[0].points[:num_settings]]
    settings = [dict(zip(names_of(dim), map(float, x), strict=True)) for x in points]
    values = np.array([[table(params) for params in settings] for table in others])
    return [settings[k] for k in greedy(values, ["one"] * len(others), SIZE)]


def line_of(task: str, seed: int) -> dict[str, Any]:
    """Return what releases add in one seed."""
    began = time.process_time()
    data_sets = tables(path_of(task), 10**6, seed, unrelated=False)
    num_sites = min(NUM_SITES, 2 * len(data_sets) // 3)
    sites, others = data_sets[:num_sites], data_sets[num_sites:]
    listed, dim = listed_on(others, NUM_CANDIDATES), len(sites[0].axes)
    few = Federation(sites, dim, seed, SETTINGS.share_after + SIZE, listed)
    whole = cache(lambda: Federation(sites, dim, seed, FEWER.get(task, 30), listed))
    arms: dict[str, dict[str, Any]] = {}
    for arm, (epsilon, messages) in ARMS.items():
        _, displaced, _ = few.play(epsilon, messages)
        arms[arm] = {"displaced": displaced, "added": 0.0, "added last": 0.0}
        if any(displaced):
            agents, _, _ = whole().play(epsilon, messages)
            both = best_so_far(agents), best_so_far(whole().alone)
            added = (both[0] - both[1]).mean(axis=0)
            arms[arm]["added"] = round(float(added.mean()), 5)
            arms[arm]["added last"] = round(float(added[-1]), 5)
    seconds = round(time.process_time() - began, 1)
    about = {"task": task, "sites": num_sites, "dim": dim, "seed": seed}
    return {**about, "seconds": seconds, "arms": arms}


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Print what releases add, by task, with means and bounds."""
    print("| table (D; sites; seeds) |", " | ".join(ARMS), "|")
    print("| --- " * (len(ARMS) + 1) + "|")
    added: dict[str, dict[str, FloatArray]] = {arm: {} for arm in ARMS}
    for task in dict.fromkeys(row["task"] for row in rows):
        own = [row for row in rows if row["task"] == task]
        cells = []
        for arm in ARMS:
            values = np.array([row["arms"][arm]["added"] for row in own])
            made = [one for row in own for one in row["arms"][arm]["displaced"]]
            added[arm][task] = values
            cells.append(f"{values.mean():+.4f} ({sum(made)} of {len(made)})")
        about = f"{task} ({own[0]['dim']}; {own[0]['sites']}; {len(own)})"
        print(f"| {about} |", " | ".join(cells), "|")
    for name, part in (("chosen on", CHOSEN_ON), ("judged on", JUDGES)):
        for arm, by_task in added.items():
            chosen = {task: by_task[task] for task in part if task in by_task}
            if chosen:
                means = {task: float(one.mean()) for task, one in chosen.items()}
                worst = min(means, key=lambda task: means[task])
                print(
                    f"{name} {len(means)} tables, {arm}: "
                    f"{np.mean(list(means.values())):+.4f}, 95 % bound "
                    f"{lower_bound(chosen):+.4f}, worst {means[worst]:+.4f} ({worst})"
                )


def main() -> None:
    """Write tables, play or show."""
    parser = argparse.ArgumentParser(description="See the module.")
    parser.add_argument("what", choices=("tables", "play", "show"))
    parser.add_argument("path", type=Path)
    parser.add_argument("more", nargs="*", help="OWN, or tasks")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_intermixed_args()
    if asked.what == "tables":
        write_tables(asked.path, Path(asked.more[0]))
    elif asked.what == "play":
        tasks = asked.more or (*CHOSEN_ON, *JUDGES)
        add_missing(asked.path, line_of, tasks, asked.seeds, asked.jobs)
    else:
        show(read_rows(asked.path))


if __name__ == "__main__":
    # Workers import what they run by its name, which is not `__main__`.
    from benchmarks.list_then_release import main

    main()

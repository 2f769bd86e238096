"""What a head start is worth, beside a list, on tables that nobody tuned on.

    python -m benchmarks.warm_start tables CLONES OWN
    python -m benchmarks.warm_start play rows.jsonl [--seeds 10] [--jobs 1] [TASK ...]
    python -m benchmarks.warm_start show rows.jsonl

A table has the values of many data sets, and a data set plays a site. Each seed draws
the sites: two thirds of a table's data sets, at most 30. A value between a table's
points is that of a linear radial basis function. *play* adds a line to the file for
each task and seed that it lacks, so it can be stopped, and gone on with.

**Tables.** Seven of Oboe's learners, and three learners of scikit-learn on the small
data sets of `benchmarks.portfolio_tables`. *tables* writes them to ``results/surfaces``
from a clone of `udellgroup/oboe` in the folder CLONES, and from what
`benchmarks.portfolio_tables` has written to the folder OWN. No constant or rule of
`FedWarmStart` was chosen on one of them. Its constants were chosen, and its gate and
its timing revised, with other tables in view: digits, landmine, HAR, MAGIC, LCBench,
XGBoost, a random forest and two SVMs. There the gain over *alone* was +.0101 at epsilon
2, mean of eight tables.

**Plan**, written before the run. A figure is the mean over evaluations 1 to 30 (15 for
Oboe's grids), and over all sites, of the best value so far, from 0 to 1 between a
site's worst and best table value. Primary: *epsilon 2* less *alone*, and *list* less
*alone*, each with the lower 95 % bound of a bootstrap over tasks and, within, over
seeds. All tasks are shown.

Draws are keyed by site. So pioneers do in each arm what they do alone, and followers
too where the gate stays closed: only what differs is played. Arms:

- *alone*: the centre, then expected improvement.
- *list*: three settings, then the centre, then expected improvement. They are chosen
  greedily on the data sets that are left (`benchmarks.make_portfolios`).
- *epsilon 2*, *epsilon 8*, *epsilon 1000* (next to no noise): `FedWarmStart`.
- *noise-only*: every message zeroed, epsilon 2.
- *list, epsilon 2*: the list, and `FedWarmStart` after it. A release takes the place of
  listed settings where its function is larger than at each of them with a posterior
  probability of 95 %. Of five rules this one was chosen, on seven of the tables named
  above.
- *10 random points*, then expected improvement; nobody sends anything.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from scipy.stats.qmc import Sobol

from benchmarks.make_portfolios import greedy, oboe_table
from benchmarks.rows import add_rows, read_rows
from benchmarks.task_tables import OWN_TABLES, path_of
from flwr_fbo._common.arrays import FloatArray, one_blas_thread
from flwr_fbo.lab.tasks.table import Table, names_of, tables
from flwr_fbo.privacy.accounting import calibrate_noise_multiplier
from flwr_fbo.space.search_space import SearchSpace
from flwr_fbo.tuning.fed_warm_start.agent import FedWarmStartAgent
from flwr_fbo.tuning.fed_warm_start.head_start import head_start
from flwr_fbo.tuning.fed_warm_start.settings import (
    Cohorts,
    FedWarmStartSettings,
    WarmStartFacts,
    default_cohorts,
)
from flwr_fbo.tuning.search.agent import play_round
from flwr_fbo.tuning.search.agents_at_once import run_together
from flwr_fbo.tuning.search.portfolios import LEARNERS, SIZE

_FOREST = LEARNERS["extra_trees"].space
# Learners of Oboe's, and the axes of their grids.
OF_OBOE: dict[str, tuple[str, Mapping[str, BaseDistribution]]] = {
    "oboe_adaboost": (
        "AB",
        {
            "n_estimators": IntDistribution(50, 100, step=50),
            "learning_rate": FloatDistribution(1.0, 3.0),
        },
    ),
    "oboe_boosting": (
        "GBT",
        {
            "learning_rate": FloatDistribution(1e-3, 0.5, log=True),
            "max_depth": IntDistribution(3, 6, step=3),
            "max_features": CategoricalDistribution(["log2", None]),
        },
    ),
    "oboe_extra_trees": ("ExtraTrees", _FOREST),
    "oboe_logistic_regression": ("Logit", LEARNERS["logistic_regression"].space),
    "oboe_mlp": (
        "MLP",
        {
            "learning_rate_init": FloatDistribution(1e-4, 1e-2, log=True),
            "solver": CategoricalDistribution(["adam", "sgd"]),
            "alpha": FloatDistribution(1e-4, 1e-2, log=True),
        },
    ),
    "oboe_neighbours": (
        "KNN",
        {"n_neighbors": IntDistribution(1, 15, step=2), "p": IntDistribution(1, 2)},
    ),
    "oboe_random_forest": ("RF", _FOREST),
}
OF_OWN = ("svc", "random_forest", "gradient_boosting")
TASKS = (*OF_OBOE, *(f"own_{learner}" for learner in OF_OWN))
NUM_SITES, DELTA, LOW, HIGH, HIGHEST = 30, 1e-3, 2.0, 8.0, 1000.0
FEWER_EVALUATIONS = dict.fromkeys(OF_OBOE, 15)
NUM_CANDIDATES = 256
SETTINGS = FedWarmStartSettings()
IN_TABLE = ("list", "epsilon 2", "epsilon 8", "epsilon 1000")
NUM_BOOTSTRAPS = 10_000


Message = Callable[["Federation", range], list[FloatArray]]


class Federation:
    """The sites of one seed, alone and with a head start.

    Parameters
    ----------
    objectives : sequence of callable
        Each takes a dict of D numbers from 0 to 1, x0 and so on.
    dim : int
        D.
    seed : int
    num_evaluations : int
    listed : sequence of dict
        Settings that each site evaluates first.
    """

    def __init__(
        self,
        objectives: Sequence[Callable[[Mapping[str, Any]], float]],
        dim: int,
        seed: int,
        num_evaluations: int,
        listed: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self._objectives, self.seed = objectives, seed
        self._num_evaluations = num_evaluations
        axes = {name: FloatDistribution(0.0, 1.0) for name in names_of(dim)}
        self.space = SearchSpace(axes)
        self._listed = [dict(params) for params in listed]
        points = [self.space.to_unit(params) for params in self._listed]
        self._given = np.array(points).reshape(-1, dim)
        self.alone = self._played(range(len(objectives)), None, None)

    @one_blas_thread
    def _played(
        self,
        slots: Sequence[int],
        cohorts: Cohorts | None,
        vectors: FloatArray | None,
        first: FloatArray | None = None,
    ) -> list[FedWarmStartAgent]:
        """Return agents that have done all their evaluations."""
        agents = []
        for slot in slots:
            about = self.space, "maximize", SETTINGS, slot, self.seed, self.seed
            agents.append(FedWarmStartAgent(*about, facts=WarmStartFacts(cohorts)))
            agents[-1].list_first(self._listed)
            if first is not None:
                agents[-1].enqueue([self.space.from_unit(x) for x in first[slot]])
        num_first = agents[0].num_first
        for iteration in range(self._num_evaluations - num_first + 1):
            rounds: list[Callable[[], Any]] = [
                partial(
                    play_round,
                    agent,
                    self._objectives[agent.slot],
                    iteration,
                    vectors,
                    False,
                )
                for agent in agents
            ]
            list(run_together(rounds))
        return agents

    def after_random_points(self, num: int) -> list[FedWarmStartAgent]:
        """Return agents that begin with random points in place of the centre."""
        rng = np.random.default_rng([self.seed, 17])
        first = rng.random((len(self._objectives), num, self.space.dim))
        return self._played(range(len(first)), None, None, first)

    def play(
        self, epsilon: float, messages: Message
    ) -> tuple[list[FedWarmStartAgent], list[bool]]:
        """Return agents with a head start, and which releases were followed."""
        num = len(self._objectives)
        z = calibrate_noise_multiplier(epsilon, DELTA, 1.0, 1)
        cohorts = Cohorts(num, default_cohorts(num, z), z)
        rng = np.random.default_rng([self.seed, 13])
        agents, followed = list(self.alone), []
        rows: list[FloatArray] = []
        for cohort in range(len(cohorts.cohort_sizes)):
            slots = cohorts.slots(cohort)
            self.sent_by = agents
            total = np.sum(messages(self, slots), axis=0)
            rows.append((total + z * rng.standard_normal(len(total))) / num)
            vectors = np.array(rows)
            about = SETTINGS, cohorts, self.space, self.seed, vectors.tobytes()
            start = head_start(*about)
            followed.append(start.is_followed and start.is_above(self._given))
            last = cohort + 1 == len(cohorts.cohort_sizes)
            nexts = range(slots.stop, num) if last else cohorts.slots(cohort + 1)
            if followed[-1]:
                agents[nexts.start : nexts.stop] = self._played(nexts, cohorts, vectors)
        return agents, followed


def honest(federation: Federation, slots: range) -> list[FloatArray]:
    """Return what sites send."""
    agents = [federation.sent_by[slot] for slot in slots]
    return [agent.message(SETTINGS.share_after - 1) for agent in agents]


def nothing(federation: Federation, slots: range) -> list[FloatArray]:
    """Return zeros."""
    return [np.zeros(SETTINGS.num_features) for _ in slots]


def best_so_far(agents: Sequence[FedWarmStartAgent]) -> FloatArray:
    """Return each agent's best value after each evaluation, shape (N, E)."""
    return np.maximum.accumulate([agent.values for agent in agents], axis=1)


def _figures(agents: Sequence[FedWarmStartAgent]) -> dict[str, Any]:
    """Return an arm's figures."""
    curve = best_so_far(agents).mean(axis=0)
    return {"mean": round(float(curve.mean()), 5), "last": round(float(curve[-1]), 5)}


def write_tables(clones: Path, own: Path) -> None:
    """Write the tables of `TASKS`."""
    OWN_TABLES.mkdir(parents=True, exist_ok=True)
    for name, (algorithm, axes) in OF_OBOE.items():
        table = oboe_table(clones, algorithm, SearchSpace(axes))
        values = np.array(table.values)
        np.savez(OWN_TABLES / f"{name}.npz", X=table.points[0], Y=values)
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
    """Return all arms of one seed."""
    began = time.process_time()
    num = FEWER_EVALUATIONS.get(task, 30)
    data_sets = tables(path_of(task), 10**6, seed, unrelated=False)
    num_sites = min(NUM_SITES, 2 * len(data_sets) // 3)
    sites, others = data_sets[:num_sites], data_sets[num_sites:]
    dim = len(sites[0].axes)
    plain = Federation(sites, dim, seed, num)
    listed = Federation(sites, dim, seed, num, listed_on(others, NUM_CANDIDATES))
    arms: dict[str, Any] = {
        "alone": _figures(plain.alone),
        "list": _figures(listed.alone),
    }

    def play(name: str, which: Federation, epsilon: float, messages: Message) -> None:
        agents, followed = which.play(epsilon, messages)
        arms[name] = {**_figures(agents), "followed": followed}

    play("epsilon 2", plain, LOW, honest)
    play("epsilon 8", plain, HIGH, honest)
    play("epsilon 1000", plain, HIGHEST, honest)
    play("noise-only", plain, LOW, nothing)
    play("list, epsilon 2", listed, LOW, honest)
    arms["10 random points"] = _figures(plain.after_random_points(10))
    seconds = round(time.process_time() - began, 1)
    about = {"task": task, "dim": dim, "sites": num_sites, "seed": seed}
    return {**about, "seconds": seconds, "arms": arms}


def add_missing(
    path: Path,
    line_of: Callable[[str, int], dict[str, Any]],
    names: Sequence[str],
    num_seeds: int,
    num_jobs: int,
) -> None:
    """Add the lines that a file lacks, as each is done."""
    path.parent.mkdir(parents=True, exist_ok=True)
    done = {(one["task"], one["seed"]) for one in read_rows(path)}
    cases = [(t, s) for s in range(num_seeds) for t in names if (t, s) not in done]
    parallel = Parallel(n_jobs=num_jobs, return_as="generator_unordered", batch_size=1)
    for found in parallel(delayed(line_of)(*case) for case in cases):
        add_rows(path, [found])


def gains(
    found: Sequence[dict[str, Any]], arm: str, of: str = "mean", over: str = "alone"
) -> dict[str, FloatArray]:
    """Return by how much an arm is better than another, a seed each, by task."""
    by_task: dict[str, list[float]] = {}
    for one in sorted(found, key=lambda one: (one["task"], one["seed"])):
        arms = one["arms"]
        by_task.setdefault(one["task"], []).append(arms[arm][of] - arms[over][of])
    return {task: np.array(values) for task, values in by_task.items()}


def lower_bound(by_task: Mapping[str, FloatArray]) -> float:
    """Return the one-sided 95 % bound of a bootstrap over tasks, then over seeds."""
    rng, values = np.random.default_rng(0), list(by_task.values())
    means = []
    for _ in range(NUM_BOOTSTRAPS):
        drawn = rng.integers(len(values), size=len(values))
        resampled = (
            values[i][rng.integers(len(values[i]), size=len(values[i]))] for i in drawn
        )
        means.append(np.mean([one.mean() for one in resampled]))
    return float(np.quantile(means, 0.05))


def show(found: Sequence[dict[str, Any]]) -> None:
    """Print the gains over the same sites alone, and their bounds."""
    tasks = list(gains(found, "epsilon 2"))
    print("| table (D; sites; seeds) | alone |", " | ".join(IN_TABLE), "|")
    print("| --- " * (len(IN_TABLE) + 2) + "|")
    for task in tasks:
        own = [one for one in found if one["task"] == task]
        alone = np.mean([one["arms"]["alone"]["mean"] for one in own])
        cells = []
        for arm in IN_TABLE:
            values = gains(own, arm)[task]
            error = values.std(ddof=1) / np.sqrt(len(values))
            cells.append(f"{values.mean():+.4f} ± {error:.4f}")
        about = f"`{task}` ({own[0]['dim']}; {own[0]['sites']}; {len(own)})"
        print(f"| {about} | {alone:.3f} |", " | ".join(cells), "|")
    over_alone = [_mean_and_bound(gains(found, arm)) for arm in IN_TABLE]
    print("| mean | |", " | ".join(f"{mean:+.4f}" for mean, _ in over_alone), "|")
    bounds = " | ".join(f"{bound:+.4f}" for _, bound in over_alone)
    print(f"| lower 95 % bound | | {bounds} |\n")
    for arm, over in (
        ("noise-only", "alone"),
        ("10 random points", "alone"),
        ("list", "epsilon 2"),
        ("list, epsilon 2", "list"),
    ):
        mean, bound = _mean_and_bound(gains(found, arm, over=over))
        print(f"{arm} over {over}: {mean:+.4f}, 95 % bound {bound:+.4f}")
    for arm in ("list", "epsilon 2"):
        mean, bound = _mean_and_bound(gains(found, arm, "last"))
        print(f"{arm} after the last evaluation: {mean:+.4f}, 95 % bound {bound:+.4f}")
    for arm in found[0]["arms"]:
        made = [one for row in found for one in row["arms"][arm].get("followed", ())]
        if made:
            print(f"{arm}: {sum(made)} of {len(made)} releases followed")
    print(f"{sum(one['seconds'] for one in found) / 60:.0f} CPU-minutes")


def _mean_and_bound(by_task: Mapping[str, FloatArray]) -> tuple[float, float]:
    means = [one.mean() for one in by_task.values()]
    return float(np.mean(means)), lower_bound(by_task)


def main() -> None:
    """Write tables, play or show."""
    parser = argparse.ArgumentParser(description="See the module.")
    parser.add_argument("what", choices=("tables", "play", "show"))
    parser.add_argument("rows", type=Path, help="or CLONES")
    parser.add_argument("more", nargs="*", help="OWN, or tasks")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_intermixed_args()
    if asked.what == "tables":
        write_tables(asked.rows, Path(asked.more[0]))
    elif asked.what == "play":
        add_missing(asked.rows, line_of, asked.more or TASKS, asked.seeds, asked.jobs)
    else:
        show(read_rows(asked.rows))


if __name__ == "__main__":
    # Workers import what they run by its name, which is not `__main__`.
    from benchmarks.warm_start import main

    main()

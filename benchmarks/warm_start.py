"""What a head start is worth, replayed from tables: sites that really differ.

    python -m benchmarks.warm_start play rows.jsonl [--seeds 40] [--jobs 2] [TASK ...]
    python -m benchmarks.warm_start show rows.jsonl
    python -m benchmarks.warm_start draw rows.jsonl picture.png

Tables lie in ``surfaces/`` of the folder FLWR_FBO_DATA, or in ``results/surfaces``,
where `benchmarks.task_tables` puts those of this package's own tasks. In each seed
other data sets of a table play the sites, 30 where there are as many. A value between a
table's points is that of a linear radial basis function. *play* adds a line to the file
for each task and seed that it lacks, so it can be stopped, and gone on with.

**Endpoint**, written down before the first run. A figure is the mean over evaluations 1
to 30 (15 with ``oboe_ksvm``), and over all sites, of the best value so far, from 0 to 1
between a site's worst and best table value. Primary: `FedWarmStart` less the same sites
alone at epsilon 2 and delta 1e-3, mean over the tasks of `TASKS`, lower 95 % bound of a
bootstrap over tasks and, within, over seeds, above 0. Constants of the method were
chosen on ``digits``, ``landmine``, ``lcbench_surrogate_2d`` and Gaussian functions,
which are not among the tasks.

Draws are keyed by site. So pioneers do in each arm what they do alone, and followers
too where the gate stays closed: only what differs is played. Arms:

- *alone*: the centre, then expected improvement.
- *epsilon 2*, *epsilon 8*: `FedWarmStart`.
- *noise-only*: every message zeroed, epsilon 2.
- *blind*: each site sends the ranks of a smooth function of its own, drawn at random.
- *colluding*: a third of the pioneers send the opposite of what the others send in all.
- *unrelated*, at both epsilons, beside *unrelated, alone*: of each site axes are
  permuted, and shifted at random around a circle on which they lie twice, there and
  back. So no place is better than another in the mean over sites.
- *10 random points*, then expected improvement; nobody sends anything.
- *N = 5*, *N = 10*: the first so many sites at epsilon 8, beside the same alone.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from optuna.distributions import FloatDistribution
from scipy.stats import ttest_1samp

from benchmarks.rows import add_rows, read_rows
from flwr_fbo._common.arrays import FloatArray, one_blas_thread
from flwr_fbo.algorithms.fed_warm_start.agent import FedWarmStartAgent
from flwr_fbo.algorithms.fed_warm_start.head_start import head_start
from flwr_fbo.algorithms.fed_warm_start.settings import (
    Cohorts,
    FedWarmStartSettings,
    WarmStartFacts,
    default_cohorts,
)
from flwr_fbo.algorithms.fed_warm_start.shared_function import matern, rank_vector
from flwr_fbo.algorithms.search.agent import play_round
from flwr_fbo.algorithms.search.agent_blocks import run_together
from flwr_fbo.lab.tasks.table import names_of, tables
from flwr_fbo.privacy.accounting import calibrate_noise_multiplier
from flwr_fbo.space.search_space import SearchSpace

TASKS = (
    "har",
    "oboe_ksvm",
    "pimp_random_forest",
    "lcbench_surrogate_7d",
    "rbv2_xgboost_surrogate_4d",
    "mlp_har_6d",
    "hgb_magic_5d",
    "emnist",
)
NUM_SITES, DELTA, LOW, HIGH = 30, 1e-3, 2.0, 8.0
FEWER_EVALUATIONS = {"oboe_ksvm": 15}
SETTINGS = FedWarmStartSettings()
LEAST = -0.005  # what counts as no loss
# Arms that are drawn; evaluations, and rounds of the calendar, that a line keeps.
DRAWN = ("epsilon 2", "epsilon 8")
KEPT = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 35, 40, 45, 50)
OWN_TABLES = Path("results/surfaces")
NUM_BOOTSTRAPS = 10_000


def path_of(name: str) -> Path:
    """Return where a table is."""
    folders = Path(os.environ["FLWR_FBO_DATA"]) / "surfaces", OWN_TABLES
    paths = [folder / f"{name}.npz" for folder in folders]
    found = [path for path in paths if path.is_file()]
    if not found:
        raise SystemExit(f"No table of {name}: see `benchmarks.task_tables`.")
    return found[0]


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
        self, epsilon: float, messages: Message, num: int | None = None
    ) -> tuple[list[FedWarmStartAgent], list[bool], tuple[int, ...]]:
        """Return agents with a head start, which releases were followed, and cohorts.

        Only of the first ``num`` sites, where given.
        """
        num = len(self._objectives) if num is None else num
        z = calibrate_noise_multiplier(epsilon, DELTA, 1.0, 1)
        cohorts = Cohorts(num, default_cohorts(num, z), z)
        rng = np.random.default_rng([self.seed, 13])
        agents, followed = list(self.alone[:num]), []
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
        return agents, followed, cohorts.cohort_sizes


def honest(federation: Federation, slots: range) -> list[FloatArray]:
    """Return what sites send."""
    agents = [federation.sent_by[slot] for slot in slots]
    return [agent.message(SETTINGS.share_after - 1) for agent in agents]


def nothing(federation: Federation, slots: range) -> list[FloatArray]:
    """Return zeros."""
    return [np.zeros(SETTINGS.num_features) for _ in slots]


def blind(federation: Federation, slots: range) -> list[FloatArray]:
    """Return ranks of smooth functions that have nothing in common."""
    pool = SETTINGS.pool(federation.space, federation.seed)
    sent = []
    for slot in slots:
        rng = np.random.default_rng([federation.seed, 19, slot])
        lengths = 0.6 * np.exp(0.5 * rng.standard_normal(pool.shape[1]))
        covariance = matern(pool, pool, lengths) + 1e-8 * np.eye(len(pool))
        drawn = np.linalg.cholesky(covariance) @ rng.standard_normal(len(pool))
        sent.append(rank_vector(drawn))
    return sent


def colluding(federation: Federation, slots: range) -> list[FloatArray]:
    """Return what is sent where a third of the pioneers know what others send."""
    sent = honest(federation, slots)
    if slots.start > 0:
        return sent
    num = len(sent) // 3
    opposite = -np.sum(sent[num:], axis=0)
    return [opposite / np.linalg.norm(opposite)] * num + sent[num:]


def best_so_far(agents: Sequence[FedWarmStartAgent]) -> FloatArray:
    """Return each agent's best value after each evaluation, shape (N, E)."""
    return np.maximum.accumulate([agent.values for agent in agents], axis=1)


def _figures(agents: Sequence[FedWarmStartAgent]) -> dict[str, Any]:
    """Return an arm's figures."""
    curve = best_so_far(agents).mean(axis=0)
    return {"mean": round(float(curve.mean()), 5), "last": round(float(curve[-1]), 5)}


def _curves(
    agents: Sequence[FedWarmStartAgent], waits: Sequence[int]
) -> dict[str, list[float]]:
    """Return mean best values, by evaluation, and by round where agents have waited."""
    best = best_so_far(agents)
    curve = [best[:, t - 1] for t in KEPT if t <= best.shape[1]]
    # A site has its worst value before its first evaluation.
    late = [np.r_[np.zeros(w), b] for w, b in zip(waits, best, strict=True)]
    calendar = [[b[min(t, len(b)) - 1] for b in late] for t in KEPT]
    return {
        "curve": [round(float(np.mean(values)), 4) for values in curve],
        "calendar": [round(float(np.mean(values)), 4) for values in calendar],
    }


def line_of(task: str, seed: int) -> dict[str, Any]:
    """Return all arms of one seed."""
    began = time.process_time()
    num = FEWER_EVALUATIONS.get(task, 30)
    path = path_of(task)
    sites, strange = (tables(path, NUM_SITES, seed, u) for u in (False, True))
    dim = len(sites[0].axes)
    related = Federation(sites, dim, seed, num)
    unrelated = Federation(strange, dim, seed, num)
    alone = {**_figures(related.alone), **_curves(related.alone, [0] * len(sites))}
    arms: dict[str, Any] = {"alone": alone}

    def play(name: str, which: Federation, *about: Any) -> None:
        agents, followed, sizes = which.play(*about)
        arms[name] = {**_figures(agents), "followed": followed}
        if name in DRAWN:
            ends = np.cumsum(sizes)
            cohorts = np.searchsorted(ends, range(len(agents)), side="right")
            waits = [SETTINGS.share_after * int(cohort) for cohort in cohorts]
            arms[name] |= _curves(agents, waits)

    play("epsilon 2", related, LOW, honest)
    play("epsilon 8", related, HIGH, honest)
    play("noise-only", related, LOW, nothing)
    play("blind", related, LOW, blind)
    play("colluding", related, LOW, colluding)
    arms["unrelated, alone"] = _figures(unrelated.alone)
    play("unrelated, epsilon 2", unrelated, LOW, honest)
    play("unrelated, epsilon 8", unrelated, HIGH, honest)
    arms["10 random points"] = _figures(related.after_random_points(10))
    for few in (5, 10):
        arms[f"N = {few}, alone"] = _figures(related.alone[:few])
        play(f"N = {few}", related, HIGH, honest, few)
    seconds = round(time.process_time() - began, 1)
    about = {"task": task, "dim": dim, "sites": len(sites), "seed": seed}
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


CONTROL = {
    "unrelated, epsilon 2": "unrelated, alone",
    "unrelated, epsilon 8": "unrelated, alone",
    "N = 5": "N = 5, alone",
    "N = 10": "N = 10, alone",
}
NO_LOSS = ("noise-only", "blind", "colluding", *CONTROL)[:5]


def gains(
    found: Sequence[dict[str, Any]], arm: str, of: str = "mean", over: str | None = None
) -> dict[str, FloatArray]:
    """Return by how much an arm is better than its control, a seed each, by task."""
    control = over or CONTROL.get(arm, "alone")
    by_task: dict[str, list[float]] = {}
    for one in sorted(found, key=lambda one: (one["task"], one["seed"])):
        arms = one["arms"]
        by_task.setdefault(one["task"], []).append(arms[arm][of] - arms[control][of])
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


def holm(p_values: FloatArray) -> FloatArray:
    """Return p-values adjusted for being many, by Holm's step-down method."""
    order, adjusted = np.argsort(p_values), np.empty(len(p_values))
    steps = (len(p_values) - np.arange(len(p_values))) * p_values[order]
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted


def _p_above(values: FloatArray, least: float) -> float:
    """Return the one-sided p-value of a mean at most ``least``."""
    if np.ptp(values) == 0:
        return 0.0 if values[0] > least else 1.0
    return float(ttest_1samp(values, least, alternative="greater").pvalue)


def show(found: Sequence[dict[str, Any]]) -> None:
    """Print the tables, and the bars one by one."""
    arms = [a for a in found[0]["arms"] if a not in ("alone", *CONTROL.values())]
    tasks = list(gains(found, "epsilon 2"))
    print("| task (D; N; seeds) | alone |", " | ".join(arms), "|")
    print("| --- " * (len(arms) + 2) + "|")
    for task in tasks:
        own = [one for one in found if one["task"] == task]
        alone = np.mean([one["arms"]["alone"]["mean"] for one in own])
        cells = []
        for arm in arms:
            values = gains(own, arm)[task]
            error = values.std(ddof=1) / np.sqrt(len(values))
            made = [f for one in own for f in one["arms"][arm].get("followed", ())]
            share = f" ({sum(made)}/{len(made)})" if made else ""
            cells.append(f"{values.mean():+.4f} ± {error:.4f}{share}")
        about = f"{task} ({own[0]['dim']}; {own[0]['sites']}; {len(own)})"
        print(f"| {about} | {alone:.3f} |", " | ".join(cells), "|")
    means = [np.mean([v.mean() for v in gains(found, a).values()]) for a in arms]
    print("| mean | |", " | ".join(f"{mean:+.4f}" for mean in means), "|\n")
    for arm in ("epsilon 2", "epsilon 8"):
        for control in ("alone", "noise-only", "blind"):
            over = gains(found, arm, over=control)
            mean = np.mean([one.mean() for one in over.values()])
            bound = lower_bound(over)
            print(f"{arm} over {control}: {mean:+.4f}, 95 % bound {bound:+.4f}")
    for of in ("mean", "last"):
        pairs = [(arm, task) for arm in NO_LOSS for task in tasks]
        p = holm(np.array([_p_above(gains(found, a, of)[t], LEAST) for a, t in pairs]))
        failed = [
            f"{a} on {t}" for (a, t), one in zip(pairs, p, strict=True) if one > 0.05
        ]
        text = ", ".join(failed) or "none"
        print(f"Loss below {-LEAST} not shown ({of}, Holm over {len(p)}): {text}")
    lean = gains(found, "alone", over="10 random points")
    better = holm(np.array([_p_above(values, 0.0) for values in lean.values()]))
    worse = holm(np.array([_p_above(-values, 0.0) for values in lean.values()]))
    print(
        f"Lean start over 10 random points: better on {np.sum(better < 0.05)} tasks, "
        f"worse on {np.sum(worse < 0.05)}, mean "
        f"{np.mean([one.mean() for one in lean.values()]):+.4f}"
    )
    for arm in (a for a in arms if "unrelated" in a or a == "noise-only"):
        made = [f for one in found for f in one["arms"][arm]["followed"]]
        print(f"{arm}: {sum(made)} of {len(made)} releases followed")
    print(f"{sum(one['seconds'] for one in found) / 3600:.2f} CPU-hours")


def draw(found: Sequence[dict[str, Any]], path: Path) -> None:
    """Write a picture: gain over alone, by evaluation and by round of the calendar."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    axes = figure.subplots(1, 2)
    full = [one for one in found if one["task"] not in FEWER_EVALUATIONS]
    about = {
        "curve": "evaluations of a site",
        "calendar": "rounds since the first site began (a site that waits has 0)",
    }
    for panel, (what, title) in zip(axes, about.items(), strict=True):
        for arm, color in zip(DRAWN, ("#0072b2", "#d55e00"), strict=True):
            by_task: dict[str, list[FloatArray]] = {}
            for one in full:
                led, alone = (np.array(one["arms"][a][what]) for a in (arm, "alone"))
                by_task.setdefault(one["task"], []).append(led - alone)
            mean = np.mean([np.mean(values, axis=0) for values in by_task.values()], 0)
            panel.plot(KEPT[: len(mean)], mean, color=color, label=arm, marker=".")
        panel.axhline(0.0, color="black", lw=0.8)
        panel.set_xlabel(title)
    axes[0].set_ylabel("best value so far, over alone")
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Play, show or draw."""
    parser = argparse.ArgumentParser(description="See the module.")
    parser.add_argument("what", choices=("play", "show", "draw"))
    parser.add_argument("rows", type=Path)
    parser.add_argument("more", nargs="*", help="tasks, or the picture")
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_intermixed_args()
    if asked.what == "play":
        add_missing(asked.rows, line_of, asked.more or TASKS, asked.seeds, asked.jobs)
    elif asked.what == "show":
        show(read_rows(asked.rows))
    else:
        draw(read_rows(asked.rows), Path(asked.more[0]))


if __name__ == "__main__":
    # Workers import what they run by its name, which is not `__main__`.
    from benchmarks.warm_start import main

    main()

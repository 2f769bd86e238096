"""What a part of the space where every trial fails costs a site.

    python -m benchmarks.failing_regions play rows.jsonl [--seeds 10] [--methods M ...]
    python -m benchmarks.failing_regions show rows.jsonl

Twenty functions, five known ones by four parts of the cube in which a trial fails: a
*corner*, a *band*, the *centre*, where most searches begin, and *half* of the cube.
There the objective raises, returns NaN or returns a penalty, -1e12. In each seed
`NUM_SITES` sites have the same function. *play* adds a line to the file for each run
that it lacks.

**Endpoint**, written down before the first run. A value counts from 0, the function's
minimum, to 1, its maximum where no trial fails. Of each method, function and kind of
failure: the median over sites and seeds of the best value after 20 trials is at most a
tenth below that of the same method on the *extended* function, which has its minimum
where trials fail. No site spends more than 6 of its 20 trials in failures, but where
half of the cube fails. Optuna's TPESampler and GPSampler play the same.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.distributions import FloatDistribution

from benchmarks.problems import Problem, branin, hartmann
from benchmarks.rows import add_rows, read_rows
from flwr_fbo import DPFTSDE, FedVote, FedWarmStart, InProcessGrid, Seeds, tuning_app
from flwr_fbo._common.arrays import FloatArray

NUM_TRIALS, NUM_SITES, MOST_FAILURES, MOST_WORSE = 20, 5, 6, 0.1
KINDS = ("raises", "NaN", "penalty")
EXTENDED = "extended"
# Until each site has had so many trials: one of FedWarmStart's last cohort begins late,
# and a published agent begins with ten trials.
_ROUNDS = {"FedVote": 20, "FedWarmStart": 50, "DPFTSDE": 11}
_STRATEGIES: dict[str, Any] = {
    "FedVote": FedVote,
    "FedWarmStart": FedWarmStart,
    "DPFTSDE": DPFTSDE,
}
OURS, PEERS = tuple(_STRATEGIES), ("TPESampler", "GPSampler")
_NUM_UNIFORM = 100_000

REGIONS: dict[str, Callable[[FloatArray], Any]] = {
    "corner": lambda x: (x[:, 0] > 0.5) & (x[:, 1] > 0.5),
    "band": lambda x: (x[:, 0] > 0.3) & (x[:, 0] < 0.5),
    "centre": lambda x: (np.abs(x[:, :2] - 0.5) < 0.25).all(axis=1),
    "half": lambda x: x[:, 0] + x[:, 1] > 1.0,
}


def _bowl(x: FloatArray) -> FloatArray:
    return np.asarray(-np.sum((x - np.array([0.2, 0.7, 0.4, 0.9])) ** 2, axis=1))


def _waves(x: FloatArray) -> FloatArray:
    away = x - np.array([0.35, 0.15])
    return np.asarray(np.sum(0.3 * np.cos(9.0 * away) - 2.0 * away**2, axis=1))


@cache
def functions() -> dict[str, Problem]:
    """Return the five functions, of 2 to 6 variables."""
    known = {one.name: one for one in (branin(), hartmann(3), hartmann(6))}
    bowl = Problem("bowl", 4, _bowl, 0.0)
    waves = Problem("waves", 2, _waves, 0.6)
    return {**known, "bowl": bowl, "waves": waves}


@cache
def bounds(function: str, region: str) -> tuple[float, float]:
    """Return the function's minimum, and its maximum where no trial fails.

    Those of uniform points, and of steps from the best of these.
    """
    problem, fails = functions()[function], REGIONS[region]
    rng = np.random.default_rng(0)
    x = rng.random((_NUM_UNIFORM, problem.dim))
    values = problem.function(x)
    allowed = np.where(fails(x), -np.inf, values)
    best = x[np.argmax(allowed)]
    highest = float(allowed.max())
    for reach in (0.1, 0.03, 0.01, 0.003):
        near = best + reach * rng.standard_normal((10_000, problem.dim))
        near = np.clip(near, 0.0, 1.0)
        of_near = np.where(fails(near), -np.inf, problem.function(near))
        if of_near.max() > highest:
            best, highest = near[np.argmax(of_near)], float(of_near.max())
    return float(values.min()), highest


class Objective:
    """A function of parameters x0, x1, ..., that keeps what it has returned.

    Parameters
    ----------
    function, region : str
    kind : str
        What happens in the region: one of `KINDS`, or `EXTENDED`.
    """

    def __init__(self, function: str, region: str, kind: str) -> None:
        self._problem, self._fails = functions()[function], REGIONS[region]
        self._low, self._high = bounds(function, region)
        self._kind = kind
        self.values: list[float] = []  # NaN in the region

    def __call__(self, params: Mapping[str, float]) -> float:
        """Return the value, from 0 to 1."""
        x = np.array([[params[f"x{d}"] for d in range(self._problem.dim)]])
        if bool(self._fails(x)[0]):
            self.values.append(math.nan)
            if self._kind == "raises":
                raise RuntimeError("in the region")
            bad = {"NaN": math.nan, "penalty": -1e12, EXTENDED: 0.0}
            return bad[self._kind]
        value = float(self._problem.function(x)[0])
        self.values.append((value - self._low) / (self._high - self._low))
        return self.values[-1]


def space(function: str) -> dict[str, FloatDistribution]:
    """Return the unit cube."""
    dim = functions()[function].dim
    return {f"x{d}": FloatDistribution(0.0, 1.0) for d in range(dim)}


def played(method: str, function: str, region: str, kind: str, seed: int) -> list[Any]:
    """Return what each site's objective returned, trial by trial; NaN in the region."""
    objectives = [Objective(function, region, kind) for _ in range(NUM_SITES)]
    if method in PEERS:
        for site, objective in enumerate(objectives):
            _ask_optuna(method, objective, space(function), 1000 * seed + site)
        return [one.values for one in objectives]
    strategy = _STRATEGIES[method](
        space(function),
        "maximize",
        NUM_SITES,
        epsilon=8,
        delta=1e-3,
        seeds=Seeds(study=seed, features=seed, noise=seed),
    )
    app = tuning_app(lambda c: objectives[int(c.node_config["partition-id"])])
    strategy.start(InProcessGrid(app, NUM_SITES), num_rounds=_ROUNDS[method])
    return [one.values[:NUM_TRIALS] for one in objectives]


def _ask_optuna(
    name: str, objective: Objective, axes: Mapping[str, FloatDistribution], seed: int
) -> None:
    sampler = getattr(optuna.samplers, name)(seed=seed)
    study = optuna.create_study(direction="maximize", sampler=sampler)

    def asked(trial: optuna.Trial) -> float:
        return objective(
            {name: trial.suggest_float(name, a.low, a.high) for name, a in axes.items()}
        )

    study.optimize(asked, n_trials=NUM_TRIALS, catch=(RuntimeError,))


def play(path: Path, seeds: int, methods: list[str], kinds: list[str]) -> None:
    """Add the rows that the file lacks."""
    done = {tuple(row["run"]) for row in read_rows(path)}
    for seed in range(seeds):
        for method in methods:
            for function in functions():
                for region in REGIONS:
                    for kind in (*kinds, EXTENDED):
                        run = method, function, region, kind, seed
                        if run in done:
                            continue
                        values = np.array(played(*run))
                        best = np.fmax.accumulate(values, axis=1)[:, -1]
                        failures = np.isnan(values).sum(axis=1)
                        row = {
                            "run": run,
                            "best": [round(v, 6) for v in best.tolist()],
                            "failures": failures.tolist(),
                        }
                        add_rows(path, [row])


def show(path: Path) -> None:
    """Print what each method gave, part of the cube by part, and the bars."""
    best: dict[tuple[str, ...], list[float]] = defaultdict(list)
    failures: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for line in path.read_text().splitlines():
        row = json.loads(line)
        *cell, _ = row["run"]
        best[tuple(cell)] += [0.0 if v != v else v for v in row["best"]]
        failures[tuple(cell)] += row["failures"]
    print("| method | part | failure | best | extended | worst share | failed, most |")
    print("|---|---|---|---|---|---|---|")
    for method in (*OURS, *PEERS):
        for region in REGIONS:
            for kind in KINDS:
                cells = [(method, f, region, kind) for f in functions()]
                cells = [cell for cell in cells if cell in best]
                if not cells:
                    continue
                medians = np.array([np.median(best[cell]) for cell in cells])
                whole = np.array(
                    [np.median(best[(*cell[:3], EXTENDED)]) for cell in cells]
                )
                share = (medians / whole).min()
                counts = np.concatenate([failures[cell] for cell in cells])
                print(
                    f"| {method} | {region} | {kind} | {medians.mean():.3f} "
                    f"| {whole.mean():.3f} | {share:.2f} "
                    f"| {np.mean(counts):.1f}, {counts.max()} |"
                )


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("command", choices=("play", "show"))
    parser.add_argument("rows", type=Path)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--methods", nargs="+", default=[*OURS, *PEERS])
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    given = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    if given.command == "show":
        show(given.rows)
    else:
        play(given.rows, given.seeds, given.methods, given.kinds)


if __name__ == "__main__":
    main()

"""How often a setting is recommended, and how good it is, where all sites are alike.

Run with ``python -m benchmarks.recommendation``, in 20 minutes on two cores. The
objective is a draw of a Gaussian process of two variables (squared exponential kernel,
lengthscale 0.3), scaled to [0, 1], the same at all sites.

Endpoints, fixed before the run: the share of studies that recommend a setting, by N
and epsilon; among these, the mean loss against the maximum, and the share of losses
above 0.02. With noise alone at most 5 % of studies may recommend anything. Delta is
1e-3; 50 seeds; standard errors over seeds. `FedVote` plays 41 rounds, its default.

The kernel of late votes is a third as wide as that of early ones. This was chosen on
seeds 50 to 99, at N = 10 and epsilon 8: the largest loss was .029 with the same width,
.022 with half, .009 with a third and .005 with a quarter. A narrower kernel makes more
sites disagree, so the widest one within .02 was taken.

`FedWarmStart` recommends no setting to keep: its rows are about the start that it gives
new sites, for which no bar is set.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from optuna.distributions import FloatDistribution
from scipy.optimize import minimize
from scipy.stats.qmc import Sobol

from flwr_fbo import FedVote, FedWarmStart, InProcessGrid, Privacy, Seeds, tuning_app
from flwr_fbo._common.arrays import FloatArray

_NUM_AGENTS, _EPSILONS, _NUM_SEEDS = (3, 10, 30), (1.0, 2.0, 8.0), 50
_LENGTHSCALE, _NUM_FEATURES = 0.3, 400
_SPACE = {"x": FloatDistribution(0, 1), "y": FloatDistribution(0, 1)}
# Strategy and rounds.
_METHODS: dict[str, tuple[Any, int]] = {
    "FedVote": (FedVote, 41),
    "FedWarmStart, start": (FedWarmStart, 12),
}


@lru_cache(maxsize=4)
def shared_objective(seed: int) -> Callable[[Any], float]:
    """Return a random function of x and y whose extremes are 0 and 1."""
    rng = np.random.default_rng(seed)
    frequencies = rng.standard_normal((_NUM_FEATURES, 2)) / _LENGTHSCALE
    phases = rng.uniform(0, 2 * np.pi, _NUM_FEATURES)
    weights = rng.standard_normal(_NUM_FEATURES)

    def raw(x: FloatArray) -> FloatArray:
        return np.asarray(np.cos(x @ frequencies.T + phases) @ weights)

    grid = Sobol(2, rng=rng).random_base2(12)
    values = raw(grid)

    def largest(sign: float) -> float:
        starts = grid[np.argsort(-sign * values)[:5]]
        bounds = [(0, 1)] * 2
        ends = [
            minimize(lambda x: -sign * float(raw(x[None])[0]), x, bounds=bounds).fun
            for x in starts
        ]
        return -float(min(ends))

    top, bottom = largest(1.0), -largest(-1.0)

    def objective(params: Any) -> float:
        value = float(raw(np.array([[params["x"], params["y"]]]))[0])
        return (value - bottom) / (top - bottom)

    return objective


def loss(
    method: str, num_agents: int, epsilon: float, seed: int, noise_only: bool
) -> float:
    """Return the loss of what one study recommends; NaN where that is nothing."""
    logging.disable(logging.WARNING)
    strategy_type, num_rounds = _METHODS[method]
    objective = shared_objective(seed)
    strategy = strategy_type(
        _SPACE,
        "maximize",
        num_agents,
        epsilon=epsilon,
        delta=1e-3,
        privacy=Privacy(noise_only=noise_only),
        seeds=Seeds(study=seed, features=seed, noise=seed),
    )
    grid = InProcessGrid(tuning_app(lambda context: objective), num_agents)
    found = strategy.start(grid, num_rounds=num_rounds).recommendation.params
    return float("nan") if found is None else 1.0 - objective(found)


def main() -> None:
    """Print a row a method, number of sites and epsilon."""
    cells = [(m, n, e, False) for m in _METHODS for n in _NUM_AGENTS for e in _EPSILONS]
    cells += [(m, 10, 2.0, True) for m in _METHODS]
    num_seeds = int(sys.argv[1]) if len(sys.argv) > 1 else _NUM_SEEDS
    print("| method | sites | epsilon | given | loss | above .02 |")
    print("| --- | --- | --- | --- | --- | --- |")
    with Parallel(n_jobs=2) as parallel:
        for method, n, epsilon, noise_only in cells:
            jobs = (
                delayed(loss)(method, n, epsilon, seed, noise_only)
                for seed in range(num_seeds)
            )
            losses = np.array(parallel(jobs))
            given = losses[np.isfinite(losses)]
            name = f"{method}, noise only" if noise_only else method
            row = f"| {name} | {n} | {epsilon:g} | {len(given) / num_seeds:.0%} |"
            if len(given) > 1 and not noise_only:
                error = given.std(ddof=1) / np.sqrt(len(given))
                above = np.mean(given > 0.02)
                row += f" {given.mean():.3f} ± {error:.3f} | {above:.0%} |"
            else:
                row += " - | - |"
            print(row, flush=True)


if __name__ == "__main__":
    from benchmarks.recommendation import main

    main()

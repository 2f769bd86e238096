"""What a head start is worth, replayed from tables: sites that really differ.

    python -m benchmarks.warm_start TASK [--first-seed 0] [--seeds 6] [--sites 30]

TASK is a file of ``surfaces/`` in the folder FLWR_FBO_DATA, without its ending. In each
seed other data sets play the sites. A value between a table's points is that of a
linear radial basis function. The figure is the mean over evaluations 1 to 30, and over
all sites, of the best value so far, from 0 to 1 between a site's worst and best table
value; differences to the same sites alone are paired by seed.

Draws are keyed by site. So pioneers do in each arm what they do alone, and followers
too where the gate stays closed: only what differs is played.

Arms: epsilon 2 and 8 at delta 1e-3; *noise-only*, every message zeroed; *unrelated*,
where each site's axes are reflected and permuted at random, at both epsilons.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import FloatDistribution
from scipy.spatial.distance import cdist

from flwr_fbo.agents.tuning.base import play_round
from flwr_fbo.agents.tuning.blocks import run_together
from flwr_fbo.agents.tuning.fed_warm_start import WarmStartAgent, head_start
from flwr_fbo.models.threads import one_blas_thread
from flwr_fbo.privacy.calibration import calibrate_noise_multiplier
from flwr_fbo.protocol.fed_warm_start_settings import (
    Cohorts,
    WarmStartSettings,
    default_cohorts,
)
from flwr_fbo.space.search_space import SearchSpace

FloatArray = NDArray[np.float64]

NUM_EVALUATIONS, DELTA, EPSILONS = 30, 1e-3, (2.0, 8.0)
SETTINGS = WarmStartSettings()


class Table:
    """One site's objective: a table, and linear radial basis functions in between.

    Parameters
    ----------
    points : ndarray of shape (n, D)
        In the unit cube.
    values : ndarray of shape (n,)
        Larger is better.
    axes : ndarray of int, shape (D,)
        Which of the table's axes each parameter is.
    is_reflected : ndarray of bool, shape (D,)
    """

    def __init__(
        self,
        points: FloatArray,
        values: FloatArray,
        axes: NDArray[np.int64],
        is_reflected: NDArray[np.bool_],
    ) -> None:
        self._points, self._axes, self._is_reflected = points, axes, is_reflected
        self.lowest, self.highest = float(values.min()), float(values.max())
        n = len(points)
        system = np.ones((n + 1, n + 1))
        system[:n, :n], system[n, n] = -cdist(points, points), 0.0
        self._weights, *_ = np.linalg.lstsq(system, np.append(values, 0.0))

    def __call__(self, params: dict[str, Any]) -> float:
        """Return the value at a setting, within the table's range."""
        x = np.array([params[name] for name in sorted(params)])
        x = np.where(self._is_reflected, 1.0 - x, x)[self._axes]
        away = np.append(-cdist(x[None], self._points)[0], 1.0)
        return float(np.clip(away @ self._weights, self.lowest, self.highest))


def tables(name: str, num_sites: int, seed: int, unrelated: bool) -> list[Table]:
    """Return the objectives of the sites of one seed."""
    path = Path(os.environ["FLWR_FBO_DATA"]) / "surfaces" / f"{name}.npz"
    with np.load(path, allow_pickle=False) as stored:
        x, y = stored["X"], stored["Y"]
    # The last epoch, and the first metric, of tables that have several.
    y = y[:, :, -1, 0] if y.ndim == 4 else y.reshape(*y.shape[:2], -1)[..., 0]
    lower, upper = x.min(axis=tuple(range(x.ndim - 1))), x.max((*range(x.ndim - 1),))
    x = (x - lower) / (upper - lower)
    rng = np.random.default_rng(seed)
    varied = np.flatnonzero(np.ptp(y, axis=1) > 0)  # else there is nothing to find
    chosen = rng.permutation(varied)[:num_sites]
    dim, found = x.shape[-1], []
    for site in chosen:
        axes = rng.permutation(dim) if unrelated else np.arange(dim)
        reflected = rng.random(dim) < 0.5 if unrelated else np.zeros(dim, dtype=bool)
        points = x[site] if x.ndim == 3 else x
        found.append(Table(points, y[site], axes, reflected))
    return found


@dataclass(frozen=True)
class Arm:
    """One way to play the same sites.

    Attributes
    ----------
    epsilon : float
    noise_only : bool
    """

    epsilon: float
    noise_only: bool = False


class Federation:
    """The sites of one seed, alone and with a head start.

    Parameters
    ----------
    objectives : sequence of Table
    seed : int
    """

    def __init__(self, objectives: Sequence[Table], seed: int) -> None:
        self._objectives, self._seed = objectives, seed
        dim = len(objectives[0]._axes)
        names = {f"x{d:02}": FloatDistribution(0.0, 1.0) for d in range(dim)}
        self._space = SearchSpace(names)
        self._alone = self._played(range(len(objectives)), None, None)
        self.alone = self._curve(self._alone)

    def _agent(self, slot: int, cohorts: Cohorts | None) -> WarmStartAgent:
        about = self._space, "maximize", SETTINGS, slot, self._seed, self._seed
        return WarmStartAgent(*about, cohorts=cohorts)

    @one_blas_thread
    def _played(
        self, slots: Sequence[int], cohorts: Cohorts | None, vectors: FloatArray | None
    ) -> list[WarmStartAgent]:
        agents = [self._agent(slot, cohorts) for slot in slots]
        for iteration in range(NUM_EVALUATIONS):
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

    def _curve(self, agents: Sequence[WarmStartAgent]) -> float:
        means = []
        for agent in agents:
            table = self._objectives[agent.slot]
            best = np.maximum.accumulate(agent.values)
            means.append(
                np.mean((best - table.lowest) / (table.highest - table.lowest))
            )
        return float(np.mean(means))

    def play(self, arm: Arm) -> tuple[float, list[bool]]:
        """Return an arm's figure, and which of its releases were followed."""
        num = len(self._objectives)
        z = calibrate_noise_multiplier(arm.epsilon, DELTA, 1.0, 1)
        cohorts = Cohorts(num, default_cohorts(num, z), z)
        rng = np.random.default_rng([self._seed, 13])
        agents, followed = list(self._alone), []
        rows: list[FloatArray] = []
        for cohort in range(len(cohorts.cohort_sizes)):
            slots = cohorts.slots(cohort)
            sent = [agents[n].message(SETTINGS.share_after - 1) for n in slots]
            total = np.zeros(SETTINGS.num_features)
            total += 0.0 if arm.noise_only else np.sum(sent, axis=0)
            rows.append((total + z * rng.standard_normal(len(total))) / num)
            vectors = np.array(rows)
            about = SETTINGS, cohorts, self._space, self._seed, vectors.tobytes()
            followed.append(head_start(*about).is_followed)
            first = slots.stop
            last = cohort + 1 == len(cohorts.cohort_sizes)
            nexts = range(first, num) if last else cohorts.slots(cohort + 1)
            if followed[-1]:
                agents[first : nexts.stop] = self._played(nexts, cohorts, vectors)
        return self._curve(agents), followed


def main() -> None:
    """Print one line an arm."""
    parser = argparse.ArgumentParser(description="See the module.")
    parser.add_argument("task")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--sites", type=int, default=30)
    asked = parser.parse_args()
    started = time.process_time()
    arms = {f"epsilon {e:g}": (Arm(e), False) for e in EPSILONS}
    arms["noise-only"] = Arm(EPSILONS[0], noise_only=True), False
    arms |= {f"unrelated, epsilon {e:g}": (Arm(e), True) for e in EPSILONS}
    gains: dict[str, list[float]] = {name: [] for name in arms}
    followed: dict[str, list[bool]] = {name: [] for name in arms}
    alone = []
    for seed in range(asked.first_seed, asked.first_seed + asked.seeds):
        both = [
            Federation(tables(asked.task, asked.sites, seed, unrelated), seed)
            for unrelated in (False, True)
        ]
        alone.append(both[0].alone)
        for name, (arm, unrelated) in arms.items():
            value, which = both[unrelated].play(arm)
            gains[name].append(value - both[unrelated].alone)
            followed[name] += which
    print(f"{asked.task}: alone {np.mean(alone):.3f}, {asked.seeds} seeds")
    for name in arms:
        error = np.std(gains[name], ddof=1) / np.sqrt(asked.seeds)
        print(
            f"  {name:22s} {np.mean(gains[name]):+.4f} +- {error:.4f}, "
            f"{sum(followed[name])} of {len(followed[name])} releases followed"
        )
    print(f"  {time.process_time() - started:.0f} s of CPU time")


if __name__ == "__main__":
    main()

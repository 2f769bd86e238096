"""What a head start is worth, replayed from tables: sites that really differ.

    python -m benchmarks.warm_start TASK [--first-seed 0] [--seeds 6] [--sites 30]

TASK is a file of ``surfaces/`` in the folder FLWR_FBO_DATA, without its ending. In each
seed other data sets play the sites. A value between a table's points is that of a
linear radial basis function. The figure is the mean over evaluations 1 to 30, and over
all sites, of the best value so far, from 0 to 1 between a site's worst and best table
value (`TableTask`); differences to the same sites alone are paired by seed.

Draws are keyed by site. So pioneers do in each arm what they do alone, and followers
too where the gate stays closed: only what differs is played.

Arms: epsilon 2 and 8 at delta 1e-3; *noise-only*, every message zeroed; *unrelated*,
where each site's axes are reflected and permuted at random, at both epsilons.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
from flwr_fbo.tasks.table import TableTask

FloatArray = NDArray[np.float64]

NUM_EVALUATIONS, DELTA, EPSILONS = 30, 1e-3, (2.0, 8.0)
SETTINGS = WarmStartSettings()


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
    task : TableTask
    num_sites : int
    seed : int
    """

    def __init__(self, task: TableTask, num_sites: int, seed: int) -> None:
        sites = range(num_sites)
        self._objectives = [task.objective(n, num_sites, seed) for n in sites]
        self._space, self._seed = SearchSpace(task.space), seed
        self._alone = self._played(sites, None, None)
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
        return float(np.mean([agent.best_so_far for agent in agents]))

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
            Federation(TableTask(table=asked.task, unrelated=u), asked.sites, seed)
            for u in (False, True)
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

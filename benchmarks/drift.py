"""What a sliding window is worth where rewards change over time.

    python -m benchmarks.drift --seeds 10

100 agents play linear bandits (d = 10, K = 30) of 4,000 trials each, and synchronise
after every 100. theta is drawn anew after every 1,000 trials. Printed is the regret of
FedUCB with all trials in its sums, with sliding windows, and of noise alone in such
windows, paired by seed.

Written down before the runs: at epsilon 4, a window of 5 releases has less regret than
all trials. Windows of 2 and 10 are there to see how much the choice matters, and an
epsilon of 1 to see when it stops to pay.
"""

import argparse
from dataclasses import replace

import numpy as np

from benchmarks.released_bandits import Player, play, print_regrets
from flwr_fbo._common.arrays import one_blas_thread
from flwr_fbo.lab.tasks.linear_bandit import LinearBandits, LinearBanditTask
from flwr_fbo.privacy.continual_settings import ContinualSettings

NUM_AGENTS, NUM_TRIALS, EVERY, CHANGE = 100, 4_000, 100, 1_000
TASK = LinearBanditTask(dimension=10, num_actions=30)
WINDOWS = (None, 2, 5, 10)
EPSILONS = (4.0, 1.0)


def players(epsilon: float, seed: int) -> dict[str, Player]:
    """Return a player a method."""
    releases = ContinualSettings(
        NUM_TRIALS // EVERY, TASK.dimension, epsilon, delta=1e-5
    )
    nothing = np.zeros((NUM_AGENTS, *releases.sum_shape))
    found = {}
    for window in WINDOWS:
        name = "all trials" if window is None else f"window of {window}"
        settings = replace(releases, sliding_window=window)
        found[name] = Player(settings, EVERY, seed, nothing, informed=True)
    alone = replace(releases, sliding_window=5)
    found["noise-only, window of 5"] = Player(alone, EVERY, seed, nothing, False)
    return found


@one_blas_thread
def regrets(epsilon: float, seed: int) -> dict[str, float]:
    """Return each method's regret of an agent, and that of random play."""
    everybody, random = players(epsilon, seed), 0.0
    for start in range(0, NUM_TRIALS, CHANGE):
        bandits = LinearBandits(TASK, NUM_TRIALS * seed + start, range(NUM_AGENTS))
        random += play(everybody, bandits, range(start, start + CHANGE))
    return {name: one.regret for name, one in everybody.items()} | {"random": random}


def main() -> None:
    """Play, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    given = parser.parse_args()
    for epsilon in EPSILONS:
        rows = [regrets(epsilon, seed) for seed in range(given.seeds)]
        print_regrets(epsilon, rows, "all trials")


if __name__ == "__main__":
    main()

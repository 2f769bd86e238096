"""What logged trials from before a study are worth, counted in its epsilon.

    python -m benchmarks.bandit_history --seeds 20

20 agents play linear bandits (d = 10, K = 30) of 1,000 trials each, and synchronise
after every 50. Each has a log of n trials of the same bandit, of actions that were
uniform, which its first release includes. Printed is the regret of an agent with n = 0,
100 and 1,000, of noise alone (all sums are zero where they are released), and of
uniform actions, paired by seed. The log's own regret, which was before, is not counted.

Written down before the runs: with n = 1,000 the regret is lower than with n = 0, by
more than two standard errors, at epsilon 4 and at epsilon 1, and lower than that of
noise alone. A log of 100 is there to see from where on it pays.
"""

import argparse

import numpy as np

from benchmarks.released_bandits import Player, play, print_regrets
from flwr_fbo._common.arrays import FloatArray, one_blas_thread
from flwr_fbo._common.random import Purpose, generator
from flwr_fbo.lab.tasks.linear_bandit import LinearBandits, LinearBanditTask
from flwr_fbo.privacy.continual_settings import ContinualSettings

NUM_AGENTS, NUM_TRIALS, EVERY = 20, 1_000, 50
TASK = LinearBanditTask(dimension=10, num_actions=30)
LOGGED = (0, 100, 1_000)
EPSILONS = (4.0, 1.0)


def logged_sums(settings: ContinualSettings, seed: int) -> dict[int, FloatArray]:
    """Return the agents' sums of their first n logged trials, for each n."""
    # Trials that nobody plays afterwards.
    bandits = LinearBandits(TASK, seed, range(NUM_AGENTS))
    rng = generator(seed, Purpose.SEARCH)
    sums, found = np.zeros((NUM_AGENTS, *settings.sum_shape)), {}
    for n in range(max(LOGGED) + 1):
        if n in LOGGED:
            found[n] = sums.copy()
        t = NUM_TRIALS + n
        chosen = rng.integers(TASK.num_actions, size=NUM_AGENTS)
        actions = bandits.peek(t)[np.arange(NUM_AGENTS), chosen]
        sums += settings.outer_products(actions, bandits.rewards(t, chosen))
    return found


@one_blas_thread
def regrets(epsilon: float, seed: int) -> dict[str, float]:
    """Return each method's regret of an agent."""
    settings = ContinualSettings(
        NUM_TRIALS // EVERY, TASK.dimension, epsilon, delta=1e-5
    )
    sums = logged_sums(settings, seed)
    players = {
        f"log of {n}": Player(settings, EVERY, seed, sums[n], informed=True)
        for n in LOGGED
    }
    players["noise-only"] = Player(settings, EVERY, seed, sums[0], informed=False)
    bandits = LinearBandits(TASK, seed, range(NUM_AGENTS))
    random = play(players, bandits, range(NUM_TRIALS))
    return {name: one.regret for name, one in players.items()} | {"random": random}


def main() -> None:
    """Play, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    given = parser.parse_args()
    for epsilon in EPSILONS:
        rows = [regrets(epsilon, seed) for seed in range(given.seeds)]
        print_regrets(epsilon, rows, "log of 0")


if __name__ == "__main__":
    main()

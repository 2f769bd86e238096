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

from flwr_fbo._arrays import FloatArray
from flwr_fbo.experiment_runner.estimates import Estimate
from flwr_fbo.models.threads import one_blas_thread
from flwr_fbo.privacy.continual import ContinualRelease
from flwr_fbo.privacy.continual_settings import ContinualSettings
from flwr_fbo.privacy.noise import SeededEntropy
from flwr_fbo.protocol.confidence import Confidence
from flwr_fbo.protocol.linear_ucb_settings import LinearUCBSettings
from flwr_fbo.simulation.agent_group import AgentGroup
from flwr_fbo.tasks.linear_bandit import LinearBandits, LinearBanditTask

NUM_AGENTS, NUM_TRIALS, EVERY, CHANGE = 100, 4_000, 100, 1_000
TASK = LinearBanditTask(dimension=10, num_actions=30)
WINDOWS = (None, 2, 5, 10)
EPSILONS = (4.0, 1.0)


class Player:
    """All agents of a method: they act on what was released, and so alike."""

    def __init__(self, settings: ContinualSettings, seed: int, informed: bool) -> None:
        self._settings, self._informed = settings, informed
        self._group = AgentGroup(Confidence.of(LinearUCBSettings(settings), NUM_AGENTS))
        self._releases = [
            ContinualRelease(settings, SeededEntropy(seed, agent))
            for agent in range(NUM_AGENTS)
        ]
        self._sums = np.zeros((NUM_AGENTS, *settings.sum_shape))
        self._earlier = [self._sums.copy()]
        self._group.believe(self._sums)
        self.regret = 0.0

    def play(self, bandits: LinearBandits, t: int) -> None:
        """Play trial t, and synchronise if it is time."""
        contexts = bandits.peek(t)
        chosen = self._group.choose(contexts, lambda: [])
        actions = contexts[np.arange(NUM_AGENTS), chosen]
        rewards = bandits.rewards(t, chosen)
        self._sums += self._settings.outer_products(actions, rewards)
        self.regret += bandits.regrets(t, chosen).mean()
        if (t + 1) % EVERY == 0:
            self._synchronise((t + 1) // EVERY)

    def _synchronise(self, k: int) -> None:
        window = self._settings.sliding_window or k
        sums = self._sums - self._earlier[max(k - window, 0)]
        self._earlier.append(self._sums.copy())
        sums = sums if self._informed else np.zeros_like(sums)
        pairs = zip(self._releases, sums, strict=True)
        self._group.believe(np.stack([one.release(k, own) for one, own in pairs]), k)


def players(epsilon: float, seed: int) -> dict[str, Player]:
    """Return a player a method."""
    releases = ContinualSettings(
        NUM_TRIALS // EVERY, TASK.dimension, epsilon, delta=1e-5
    )
    found = {}
    for window in WINDOWS:
        name = "all trials" if window is None else f"window of {window}"
        settings = replace(releases, sliding_window=window)
        found[name] = Player(settings, seed, informed=True)
    alone = replace(releases, sliding_window=5)
    return {**found, "noise-only, window of 5": Player(alone, seed, informed=False)}


@one_blas_thread
def regrets(epsilon: float, seed: int) -> dict[str, float]:
    """Return each method's regret of an agent, and that of random play."""
    everybody, random = players(epsilon, seed), 0.0
    for start in range(0, NUM_TRIALS, CHANGE):
        bandits = LinearBandits(TASK, NUM_TRIALS * seed + start, range(NUM_AGENTS))
        for t in range(start, start + CHANGE):
            for player in everybody.values():
                player.play(bandits, t)
            means = bandits.peek(t) @ bandits.theta
            random += float((means.max(axis=1) - means.mean(axis=1)).mean())
    return {name: one.regret for name, one in everybody.items()} | {"random": random}


def main() -> None:
    """Play, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    given = parser.parse_args()
    for epsilon in EPSILONS:
        rows = [regrets(epsilon, seed) for seed in range(given.seeds)]
        print(f"epsilon {epsilon:g}: regret of an agent, {len(rows)} seeds")
        for name in rows[0]:
            own: FloatArray = np.array([row[name] for row in rows])
            less = Estimate.of(np.array([row["all trials"] for row in rows]) - own)
            print(
                f"  {name:24s} {own.mean():7.1f}   {less.mean:+7.1f} "
                f"+- {less.standard_error:.1f} less than all trials"
            )


if __name__ == "__main__":
    main()

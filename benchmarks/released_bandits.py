"""Agents of a linear bandit that act on what was released, for benchmarks of FedUCB."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.bandits.linear.confidence import Confidence
from flwr_fbo.bandits.linear.settings import LinearUCBSettings
from flwr_fbo.lab.experiment_runner.estimates import Estimate
from flwr_fbo.lab.simulation.linear_bandits import AgentGroup
from flwr_fbo.lab.tasks.linear_bandit import LinearBandits
from flwr_fbo.privacy.continual import ContinualRelease
from flwr_fbo.privacy.continual_settings import ContinualSettings
from flwr_fbo.privacy.noise import SeededEntropy


class Player:
    """All agents of a method: they act on what was released, and so alike.

    Parameters
    ----------
    settings : ContinualSettings
    every : int
        Trials from one synchronisation to the next.
    seed : int
    logged : ndarray of shape (M, d + 1, d + 1)
        What each of the M agents knows from before: the first release includes it.
    informed : bool
        Whether what they see is in the releases, or noise alone.

    Attributes
    ----------
    regret : float
        Of an agent.
    """

    def __init__(
        self,
        settings: ContinualSettings,
        every: int,
        seed: int,
        logged: FloatArray,
        informed: bool,
    ) -> None:
        self._settings, self._every, self._informed = settings, every, informed
        self._group = AgentGroup(
            Confidence.of(
                LinearUCBSettings(settings, local_data="released"), len(logged)
            )
        )
        self._releases = [
            ContinualRelease(settings, SeededEntropy(seed, agent))
            for agent in range(len(logged))
        ]
        self._sums = logged.copy()
        # By release; a sliding window is a difference of two of them.
        self._earlier = [np.zeros_like(logged)]
        self._group.believe(self._earlier[0])
        self.regret = 0.0

    def play(self, bandits: LinearBandits, t: int) -> None:
        """Play trial t, and synchronise if it is time."""
        contexts = bandits.peek(t)
        chosen = self._group.belief.choose(contexts, lambda: [])[0]
        actions = contexts[np.arange(len(chosen)), chosen]
        rewards = bandits.rewards(t, chosen)
        self._sums += self._settings.outer_products(actions, rewards)
        self.regret += bandits.regrets(t, chosen).mean()
        if (t + 1) % self._every == 0:
            self._synchronise((t + 1) // self._every)

    def _synchronise(self, k: int) -> None:
        window = self._settings.sliding_window or k
        sums = self._sums - self._earlier[max(k - window, 0)]
        self._earlier.append(self._sums.copy())
        sums = sums if self._informed else np.zeros_like(sums)
        pairs = zip(self._releases, sums, strict=True)
        self._group.believe(np.stack([one.release(k, own) for one, own in pairs]), k)


def play(players: Mapping[str, Player], bandits: LinearBandits, trials: range) -> float:
    """Let all play the same trials; return the regret of uniform actions in them."""
    regret = 0.0
    for t in trials:
        for player in players.values():
            player.play(bandits, t)
        means = bandits.peek(t) @ bandits.theta
        regret += float((means.max(axis=1) - means.mean(axis=1)).mean())
    return regret


def print_regrets(
    epsilon: float, rows: Sequence[Mapping[str, float]], reference: str
) -> None:
    """Print each method's regret, and by how much it is below that of one of them.

    ``rows`` has a regret a method, by name, for each seed.
    """
    print(f"epsilon {epsilon:g}: regret of an agent, {len(rows)} seeds")
    compared = np.array([row[reference] for row in rows])
    for name in rows[0]:
        own: FloatArray = np.array([row[name] for row in rows])
        less = Estimate.of(compared - own)
        print(
            f"  {name:24s} {own.mean():7.1f}   {less.mean:+7.1f} "
            f"+- {less.standard_error:.1f} less than {reference}"
        )

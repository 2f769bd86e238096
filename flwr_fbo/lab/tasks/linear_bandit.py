"""Linear bandits of agents that share a parameter: the environment of FedUCB's paper.

Dubey & Pentland, *Differentially-Private Federated Linear Bandits* (NeurIPS 2020),
section 4.4: in each trial an agent has K <= d^2 actions in the unit ball. K - 1 of them
have a mean reward in [0.5, 0.6] and one in [0.7, 0.8]; rewards are Beta-distributed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.fields import check_fields, integer, number, positive
from flwr_fbo._common.random import Purpose, generator, uniform_in_ball
from flwr_fbo._common.validation import require, require_int

IntArray = NDArray[np.intp]

_COMMON = (0.5, 0.6)
_BEST = (0.7, 0.8)
_PUBLISHED_GAP = 0.1
_LARGEST_GAP = 0.3  # with a larger one means would be above 1
# Trials whose draws share a generator: making one takes as long as 2,000 normals.
_BLOCK_LENGTH = 32


@dataclass(frozen=True)
class LinearBanditTask:
    """The environment's settings.

    The paper has a random theta in the unit ball, and does not say how to get actions
    with these means. Here theta is uniform on the unit sphere. An action's mean reward
    m is uniform on its interval; the action is then uniform on what the plane x'theta =
    m has in common with the unit ball. So the means are exact, and ||theta|| = 1. Which
    action is the best one is uniform too.

    Attributes
    ----------
    dimension : int
        d >= 2.
    num_actions : int
        K, from 2 to d^2.
    concentration : float
        a + b > 0 of the rewards' Beta(a, b) law, which has mean a / (a + b). The paper
        has 1: Beta(m, 1 - m). With 2, a mean of 1/2 has uniform rewards. Rewards lie in
        [0, 1], and so are 1/2-subgaussian, whatever it is.
    gap : float
        Least distance of the best action's mean from all others': its mean is uniform
        on [0.6 + gap, 0.7 + gap], with 0.1 the paper's [0.7, 0.8]. Above 0, and at most
        0.3, where that ends at 1.
    """

    dimension: int = field(default=10, metadata=integer(2))
    num_actions: int = field(default=100, metadata=integer(2))
    concentration: float = field(default=2.0, metadata=positive())
    gap: float = field(
        default=_PUBLISHED_GAP, metadata=number(above=0, most=_LARGEST_GAP)
    )
    name: Literal["linear-bandit"] = "linear-bandit"

    def __post_init__(self) -> None:
        check_fields(self)
        most, num = self.dimension**2, self.num_actions
        require(num <= most, "num_actions", num, f"at most d^2 = {most}")

    @property
    def best(self) -> tuple[float, float]:
        """Between what the mean of the best action lies."""
        # Moved from where it was published, which stays as it is to the bit.
        more = self.gap - _PUBLISHED_GAP
        return _BEST[0] + more, _BEST[1] + more


class LinearBandits:
    """The bandits of some agents in one run.

    What an agent meets in trial t depends on the seed, its slot and t: not on which
    other agents are here, the order in which trials are asked for, or what was played
    before. Methods on the same seed see the same luck: a reward is the quantile of its
    Beta law at a uniform number that belongs to the trial. Trials that follow each
    other are cheap, as draws are made by the block.

    Parameters
    ----------
    task : LinearBanditTask
        Task that the bandits are of.
    seed : int
        Seed of the run.
    agents : sequence of int
        Their slots, M of them.

    Attributes
    ----------
    theta : ndarray of shape (d,)
        The shared parameter, of norm 1.
    """

    def __init__(self, task: LinearBanditTask, seed: int, agents: Sequence[int]):
        self.task = task
        self.agents = tuple(agents)
        self._seed = seed
        self._basis = _orthogonal(generator(seed, Purpose.TEST_FUNCTION), task)
        self.theta: FloatArray = self._basis[0]
        m, k, d = len(self.agents), task.num_actions, task.dimension
        self._block = -1
        # Coordinates apart: what solves with them need not transpose. An agent's block
        # is in one piece, as it is drawn.
        self._columns = np.empty((m, _BLOCK_LENGTH, d, k))
        self._means = np.empty((_BLOCK_LENGTH, m, k))
        self._best = np.empty((_BLOCK_LENGTH, m))
        self._luck = np.empty((_BLOCK_LENGTH, m))
        # For draws: fresh memory for each would take as long as they do.
        self._across = np.empty((_BLOCK_LENGTH, k, d - 1))
        self._along = np.empty((_BLOCK_LENGTH, d, k))
        self._sizes = np.empty((2, _BLOCK_LENGTH, k))
        # What somebody has asked for; NaN elsewhere.
        self._rewards = np.empty((_BLOCK_LENGTH, m, k))

    def contexts(self, t: int) -> FloatArray:
        """Return the actions of trial t >= 0, shape (M, K, d)."""
        return np.array(self.peek(t))

    def peek(self, t: int) -> FloatArray:
        """Return the same, not copied: until another trial is asked for, to read."""
        columns = self._columns[:, self._row(t)]
        columns.flags.writeable = False
        return np.swapaxes(columns, -1, -2)

    def rewards(self, t: int, chosen: IntArray) -> FloatArray:
        """Return what the chosen actions' rewards are in trial t, in [0, 1].

        ``chosen`` are M indices of actions.
        """
        row, everyone = self._row(t), np.arange(len(self.agents))
        rewards = self._rewards[row, everyone, chosen]
        missing = np.isnan(rewards)
        if missing.any():  # else another method was here before
            mean = self._means[row, everyone, chosen][missing]
            a = self.task.concentration * mean
            b = self.task.concentration * (1 - mean)
            from scipy.special import betaincinv

            rewards[missing] = betaincinv(a, b, self._luck[row, missing])
            self._rewards[row, everyone, chosen] = rewards
        return np.asarray(rewards)

    def regrets(self, t: int, chosen: IntArray) -> FloatArray:
        """Return how much lower the chosen actions' means are than the best ones'."""
        row = self._row(t)
        means = self._means[row, np.arange(len(self.agents)), chosen]
        return np.asarray(self._best[row] - means)

    def _row(self, t: int) -> int:
        """Return where trial t is in the block, once that is drawn."""
        require_int("t", t, 0)
        block, row = divmod(t, _BLOCK_LENGTH)
        if block != self._block:
            self._rewards.fill(np.nan)
            for i, agent in enumerate(self.agents):
                self._draw(i, generator(self._seed, agent, block, Purpose.CONTEXTS))
            self._block = block
        return row

    def _draw(self, i: int, rng: np.random.Generator) -> None:
        """Draw the block of agent i."""
        k, (least, most) = self.task.num_actions, _COMMON
        means, scale = self._sizes
        rng.random(out=means)
        means *= most - least
        means += least
        best = rng.integers(k, size=_BLOCK_LENGTH)
        better = rng.uniform(*self.task.best, _BLOCK_LENGTH)
        means[np.arange(_BLOCK_LENGTH), best] = better
        across = np.swapaxes(uniform_in_ball(rng, self._across, scale), 1, 2)
        basis = self._basis
        columns = np.matmul(basis[1:].T, across, out=self._columns[i])
        np.subtract(1, np.square(means, out=scale), out=scale)
        columns *= np.sqrt(scale, out=scale)[:, None, :]
        columns += np.multiply(basis[0][:, None], means[:, None, :], out=self._along)
        self._means[:, i], self._best[:, i] = means, means.max(axis=1)
        self._luck[:, i] = rng.random(_BLOCK_LENGTH)


class LinearBanditEnvironment:
    """The bandit of the agent of a slot, for `flwr_fbo.linear_bandit_app`."""

    def __init__(self, task: LinearBanditTask, seed: int, agent: int) -> None:
        self._bandits = LinearBandits(task, seed, [agent])
        self._t = 0

    def contexts(self, t: int) -> FloatArray:
        """Return the actions of trial t >= 0, shape (K, d)."""
        self._t = t
        return np.asarray(self._bandits.contexts(t)[0])

    def reward(self, x: FloatArray) -> float:
        """Return what action ``x`` of the last contexts gives, in [0, 1].

        Raises
        ------
        ValueError
            If it is none of them.
        """
        same = np.all(self._bandits.contexts(self._t)[0] == x, axis=1)
        require(bool(same.any()), "x", x, "one of the last contexts")
        return float(self._bandits.rewards(self._t, np.array([same.argmax()]))[0])


def _orthogonal(rng: np.random.Generator, task: LinearBanditTask) -> FloatArray:
    """Return an orthonormal basis, in rows; the first is uniform on the sphere."""
    normal = rng.standard_normal((task.dimension, task.dimension))
    basis, triangle = np.linalg.qr(normal)
    return np.asarray((basis * np.sign(np.diagonal(triangle))).T)

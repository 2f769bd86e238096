"""Linear bandits of agents that share a parameter: the environment of FedUCB's paper.

Dubey & Pentland, *Differentially-Private Federated Linear Bandits* (NeurIPS 2020),
section 6: in each trial an agent has K <= d^2 actions in the unit ball, of which K - 1
have a mean reward in [0.5, 0.6] and one in [0.7, 0.8]; rewards are Beta-distributed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict
from scipy.special import betaincinv

from flwr_fbo._random import Purpose, generator
from flwr_fbo._validation import require, require_int, require_positive
from flwr_fbo.tasks.base import STRICT

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]

_COMMON = (0.5, 0.6)
_BEST = (0.7, 0.8)
# Trials whose draws share a generator: making one takes as long as 2,000 normals.
_BLOCK_LENGTH = 32


@dataclass(frozen=True)
class LinearBanditTask:
    """The environment's settings.

    The paper does not say how to get actions with these means. Here theta is uniform on
    the unit sphere. An action's mean reward m is uniform on its interval; the action is
    then uniform on what the plane x'theta = m has in common with the unit ball. So the
    means are exact, and ||theta|| = 1. Which action is the best one is uniform too.

    Attributes
    ----------
    dimension : int
        d >= 2.
    num_actions : int
        K, from 2 to d^2.
    concentration : float
        a + b > 0 of the rewards' Beta(a, b) law, which has mean a / (a + b); not given
        in the paper. With 2, a mean of 1/2 has uniform rewards. Rewards lie in [0, 1],
        and so are 1/2-subgaussian, whatever it is.
    """

    dimension: int = 10
    num_actions: int = 100
    concentration: float = 2.0
    name: Literal["linear-bandit"] = "linear-bandit"
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        require_int("dimension", self.dimension, 2)
        require_int("num_actions", self.num_actions, 2)
        most = self.dimension**2
        ok = self.num_actions <= most
        require(ok, "num_actions", self.num_actions, f"at most d^2 = {most}")
        require_positive("concentration", self.concentration)


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
    seed : int
        Of the run.
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
        # Coordinates apart: what solves with them need not transpose.
        self._columns = np.empty((_BLOCK_LENGTH, m, d, k))
        self._means = np.empty((_BLOCK_LENGTH, m, k))
        self._luck = np.empty((_BLOCK_LENGTH, m))
        # For draws: fresh memory for each would take as long as they do.
        self._scratch = np.empty((_BLOCK_LENGTH, k, d - 1))
        # What somebody has asked for; NaN elsewhere.
        self._rewards = np.empty((_BLOCK_LENGTH, m, k))

    def contexts(self, t: int) -> FloatArray:
        """Return the actions of trial t >= 0, shape (M, K, d)."""
        return np.array(self.peek(t, 1)[0])

    def peek(self, t: int, num_trials: int) -> FloatArray:
        """Return the actions of n trials from t on, shape (n, M, K, d): not a copy.

        Read-only, and only until trials of another block are asked for. The n trials
        are of one block: at most `num_left` (t).
        """
        columns = self._columns[self._rows(t, num_trials)]
        columns.flags.writeable = False
        return np.swapaxes(columns, -1, -2)

    @staticmethod
    def num_left(t: int) -> int:
        """Return how many trials, from t on, are drawn together."""
        return _BLOCK_LENGTH - t % _BLOCK_LENGTH

    def rewards(self, t: int, chosen: IntArray) -> FloatArray:
        """Return what the chosen actions' rewards are, in [0, 1].

        Parameters
        ----------
        t : int
        chosen : ndarray of int, shape (M,) or (n, M)
            Indices of actions in trial t; or in n trials from t on, of one block.

        Returns
        -------
        ndarray of the shape of ``chosen``
        """
        at = self._entries(t, chosen)
        rewards = self._rewards[at]
        missing = np.isnan(rewards)
        if missing.any():  # else another method was here before
            mean = self._means[at][missing]
            a = self.task.concentration * mean
            b = self.task.concentration * (1 - mean)
            luck = np.broadcast_to(self._luck[at[0], at[1]], missing.shape)
            rewards[missing] = betaincinv(a, b, luck[missing])
            self._rewards[at] = rewards
        return np.asarray(rewards.reshape(np.shape(chosen)))

    def regrets(self, t: int, chosen: IntArray) -> FloatArray:
        """Return how much lower their means are than the best; arguments as above."""
        at = self._entries(t, chosen)
        regrets = self._means[at[0]].max(axis=-1).reshape(-1, len(self.agents))
        regrets = regrets - self._means[at]
        return np.asarray(regrets.reshape(np.shape(chosen)))

    def _entries(self, t: int, chosen: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """Return where the chosen actions of trials are: row, agent, action."""
        actions = np.atleast_2d(chosen)
        rows = np.arange(_BLOCK_LENGTH)[self._rows(t, len(actions)), None]
        return rows, np.arange(len(self.agents)), actions

    def _rows(self, t: int, num_trials: int) -> slice:
        """Return where n trials from t on are in the block, once that is drawn."""
        require_int("t", t, 0)
        ok = num_trials <= self.num_left(t)
        require(ok, "num_trials", num_trials, f"at most {self.num_left(t)} from {t} on")
        block, row = divmod(t, _BLOCK_LENGTH)
        if block != self._block:
            self._rewards.fill(np.nan)
            for i, agent in enumerate(self.agents):
                self._draw(i, generator(self._seed, agent, block, Purpose.CONTEXTS))
            self._block = block
        return slice(row, row + num_trials)

    def _draw(self, i: int, rng: np.random.Generator) -> None:
        """Draw the block of agent i."""
        k = self.task.num_actions
        means = rng.uniform(*_COMMON, (_BLOCK_LENGTH, k))
        best = rng.integers(k, size=_BLOCK_LENGTH)
        means[np.arange(_BLOCK_LENGTH), best] = rng.uniform(*_BEST, _BLOCK_LENGTH)
        across = _uniform_in_ball(rng, self._scratch)
        columns = self._columns[:, i]
        np.matmul(self._basis[1:].T, np.swapaxes(across, 1, 2), out=columns)
        columns *= np.sqrt(1 - means**2)[:, None, :]
        columns += self.theta[:, None] * means[:, None, :]
        self._means[:, i] = means
        self._luck[:, i] = rng.random(_BLOCK_LENGTH)


class LinearBanditEnvironment:
    """The bandit of one agent, for `flwr_fbo.linear_bandit_app`.

    Parameters
    ----------
    task : LinearBanditTask
    seed : int
        Of the run.
    agent : int
        The agent's slot.
    """

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


def _uniform_in_ball(rng: np.random.Generator, out: FloatArray) -> FloatArray:
    """Return ``out``, filled with uniform points of the unit ball, shape (..., d).

    g / sqrt(||g||^2 + 2 E) with g normal and E exponential (Barthe, Guedon, Mendelson &
    Naor, 2005): the first coordinates of a point on the sphere of two dimensions more.
    """
    g = rng.standard_normal(out=out)
    exponential = rng.standard_exponential(out.shape[:-1])
    g /= np.sqrt(np.einsum("...i,...i->...", g, g) + 2 * exponential)[..., None]
    return g

"""The agent of Fed-GLB-UCB: a generalised linear bandit that all agents share.

Li & Wang, *Communication Efficient Federated Learning for Generalized Linear Bandits*
(NeurIPS 2022), algorithm 1. The mean reward of an action is mu(<x, theta>), where x are
its coordinates and a constant 1, as in our DisLinUCB. With A = (lambda / c_mu) I + sum
x x' an agent plays the action with the largest

    <x, A^-1 b> + sqrt(beta) ||x||_{A^-1},

which is the one of the largest mu, as mu increases. After a reward y it makes an online
Newton step, projected onto the ball ||theta|| <= S in the norm of A,

    A <- A + x x',    z = <x, theta>,    b <- b + x z,
    theta <- Proj_A(theta - (1 / c_mu) A^-1 (mu(z) - y) x),

and asks for a synchronisation by the determinant of A, as DisLinUCB does. Then all run
accelerated gradient descent on the loss of all data, sum (m(<x, theta>) - y <x, theta>)
+ (lambda / 2) ||theta||^2 with m' = mu; to its result theta_g all restart their online
regressions, and A becomes that of all data. What the paper leaves open, or where we
differ:

- b after a synchronisation is A theta_g: the predictions z of all that was before are
  made anew by theta_g, so that theta_g is the ellipsoid's centre. The paper, as we know
  it, keeps the predictions that earlier global estimates made. With an identity link
  ours is ridge LinUCB whenever agents have just synchronised. Between synchronisations
  the online theta is the ridge estimate, but the centre A^-1 b is that of predictions
  made *before* each reward, as printed, and so behind it.
- So agents need to send x x' only; b costs nothing on the way up.
- What an agent sends is the sum over all of its evaluations, not the increment.
- beta is a constant that is set, as for the other methods; so is c_mu, which algorithm
  1 takes as input: the least slope of mu, where it matters.
- Rewards here are real numbers. The paper's experiments have clicks and a logistic mu;
  ours is the identity, or logistic between two numbers that a setting gives.
- The descent ends at an excess of ``accuracy`` / n over the least loss of n trials; 1 /
  n is what the analysis asks for (epsilon = 1 / n^2 for the mean loss).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.validation import require, require_int
from flwr_fbo.algorithms.fed_go_ucb.agent import checked_observation
from flwr_fbo.algorithms.linear_bandit.settings import DeterminantTrigger
from flwr_fbo.lab.baselines.glm import projected
from flwr_fbo.lab.baselines.glm_ucb_settings import GLMUCBSettings, Gram
from flwr_fbo.lab.baselines.kernel_ucb_agent import checked_actions
from flwr_fbo.models.ellipsoid import Ellipsoid
from flwr_fbo.models.near_ties import first_best
from flwr_fbo.models.threads import one_blas_thread
from flwr_fbo.study.wire_arrays import is_sum


class GLMUCBAgent:
    """One agent: `choose` and `tell`; the rest is a synchronisation.

    There all agents send their `message`, then their `gradient` as often as the server
    asks for it, and `receive` what came out.

    Parameters
    ----------
    settings : GLMUCBSettings
    dimension : int
        D, an action's coordinates.

    Attributes
    ----------
    theta : ndarray of shape (d,)
        The online estimate, d = D + 1.
    """

    theta: FloatArray

    def __init__(self, settings: GLMUCBSettings, dimension: int) -> None:
        require_int("dimension", dimension, 1)
        self.settings, self.dimension = settings, dimension
        self._link = settings.link
        self._trigger = DeterminantTrigger(settings.threshold)
        self._x: list[FloatArray] = []
        self._y: list[float] = []
        size = dimension + 1
        self._gram = np.zeros((size, size))
        self._believe(self._gram, np.zeros(size))

    @one_blas_thread
    def choose(self, actions: ArrayLike) -> int:
        """Return the index of the action with the largest upper confidence bound.

        Of several that are equal, the lowest.

        Parameters
        ----------
        actions : array of shape (K, D)
            K >= 1, finite.
        """
        return int(first_best(self.upper_bounds(actions)))

    def upper_bounds(self, actions: ArrayLike) -> FloatArray:
        """Return that of <x, theta> of each action, shape (K,)."""
        x = checked_actions(actions, self.dimension)
        x = np.column_stack([x, np.ones(len(x))])
        return self._ellipsoid.upper_bounds(x, math.sqrt(self.settings.beta))

    @one_blas_thread
    def tell(self, action: ArrayLike, reward: float) -> None:
        """Record what an action, shape (D,), was rewarded with.

        Raises
        ------
        ValueError
            If either is not finite, or of another shape. Nothing is recorded then.
        """
        x, y = checked_observation(action, reward, self.dimension)
        x = np.append(x, 1.0)
        self._x.append(x)
        self._y.append(y)
        self._gram = self._gram + np.outer(x, x)
        z = x @ self.theta
        self._ellipsoid.observe(x, z)
        self._step(x, self._link.mean(z) - y)

    def _step(self, x: FloatArray, error: FloatArray) -> None:
        """Make an online Newton step."""
        ellipsoid, settings = self._ellipsoid, self.settings
        direction = ellipsoid.unwhitened(ellipsoid.whitened(x[:, None]))[:, 0]
        theta = self.theta - error / settings.curvature * direction
        self.theta = projected(theta, ellipsoid.factor, settings.parameter_norm)

    @one_blas_thread
    def wants_synchronisation(self) -> bool:
        """Return whether the agent has learned enough by itself."""
        growth = self._ellipsoid.log_det - self._synchronised_log_det
        return self._trigger.fires(growth, self._ellipsoid.num_observed)

    # A synchronisation

    def message(self) -> Gram:
        """Return the sum over the agent's own evaluations."""
        return Gram(len(self._x), self._gram)

    @one_blas_thread
    def gradient(self, theta: FloatArray) -> FloatArray:
        """Return that of the loss of the agent's own evaluations, shape (d,)."""
        if not self._x:
            return np.zeros_like(theta)
        x = np.array(self._x)
        return np.asarray((self._link.mean(x @ theta) - np.array(self._y)) @ x)

    @one_blas_thread
    def receive(self, gram: FloatArray, theta: FloatArray) -> None:
        """Go on from the sum over all agents, and their estimate.

        Parameters
        ----------
        gram : ndarray of shape (d, d)
        theta : ndarray of shape (d,)

        Raises
        ------
        ValueError
            If these are no such numbers. Nothing changes then.
        """
        size = self.dimension + 1
        ok = is_sum(gram, (size, size))
        require(ok, "gram", gram, f"a finite, symmetric array of shape {(size, size)}")
        theta = np.array(theta, dtype=float)
        ok = theta.shape == (size,) and bool(np.isfinite(theta).all())
        require(ok, "theta", theta, f"{size} finite numbers")
        self._believe(gram, theta)

    def _believe(self, gram: FloatArray, theta: FloatArray) -> None:
        matrix = self.settings.matrix(gram)
        self._ellipsoid = Ellipsoid(matrix, matrix @ theta)
        self._synchronised_log_det = self._ellipsoid.log_det
        self.theta = theta

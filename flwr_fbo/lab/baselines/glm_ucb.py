"""Fed-GLB-UCB, agent and server: a generalised linear bandit that all agents share.

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

The mean reward is mu(z), z = <x, theta>. With m' = mu a loss is m(z) - y z, so that its
gradient by theta is (mu(z) - y) x (Filippi, Cappe, Garivier & Szepesvari, 2010).

The server runs accelerated gradient descent on the loss of all agents. A
synchronisation of N agents whose x have d coordinates, with k gradients, takes

    N d^2 (sums of x x', up) + 2 N d k (points, gradients) + N (d^2 + d) (result, down)

scalars. In simulations every agent answers; so what is no answer is an error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from flwr_fbo._common.arrays import FloatArray, first_best, one_blas_thread
from flwr_fbo._common.fields import check_fields, integer, positive
from flwr_fbo._common.validation import (
    is_number,
    require,
    require_int,
)
from flwr_fbo.algorithms.fed_go_ucb.agent import checked_observation
from flwr_fbo.algorithms.fed_go_ucb.settings import AgentReply
from flwr_fbo.algorithms.linear_bandit.settings import DeterminantTrigger
from flwr_fbo.lab.baselines.kernel_ucb import checked_actions
from flwr_fbo.models.ellipsoid import Ellipsoid
from flwr_fbo.study.codec import is_array, is_sum


class AcceleratedDescent:
    """Nesterov's accelerated gradient descent on a smooth, strongly convex function.

    With a constant momentum (Nesterov, Introductory Lectures on Convex Optimization,
    2004, scheme 2.2.11): the gradient at `point` makes the next step.

    Parameters
    ----------
    start : ndarray of shape (d,)
    smoothness : float
        L, no less than any eigenvalue of the function's Hessian.
    strong_convexity : float
        0 < m <= L, no more than any.
    accuracy : float
        By how much the value may exceed the least one. It ends where ||gradient||^2 <=
        2 m accuracy, from which that follows.
    max_iterations : int
        After which it ends in any case.

    Attributes
    ----------
    point : ndarray of shape (d,)
        Where the next gradient is needed; what came out, once `is_done`.
    num_gradients : int
        So far.
    is_done : bool
    """

    def __init__(
        self,
        start: FloatArray,
        smoothness: float,
        strong_convexity: float,
        accuracy: float,
        max_iterations: int,
    ) -> None:
        self.point = start
        self.num_gradients = 0
        self.is_done = False
        self._last = start
        self._step = 1 / smoothness
        root = np.sqrt(strong_convexity / smoothness)
        self._momentum = (1 - root) / (1 + root)
        self._small = 2 * strong_convexity * accuracy
        self._max_iterations = max_iterations

    def advance(self, gradient: FloatArray) -> None:
        """Take the gradient at `point`, shape (d,)."""
        self.num_gradients += 1
        if gradient @ gradient <= self._small:
            self.is_done = True
            return
        end = self.point - self._step * gradient
        self.point = end + self._momentum * (end - self._last)
        self._last = end
        self.is_done = self.num_gradients >= self._max_iterations


def projected(theta: FloatArray, factor: FloatArray, radius: float) -> FloatArray:
    """Return the nearest point of the ball ||t|| <= radius, by ||t - theta||_A.

    Outside of the ball it is (A + nu I)^-1 A theta with the nu > 0 that makes it as
    long as the radius, found in the eigenvectors of A.

    Parameters
    ----------
    theta : ndarray of shape (d,)
    factor : ndarray of shape (d, d)
        L of A = L L'.
    radius : float
        > 0.
    """
    length = float(np.linalg.norm(theta))
    if length <= radius:
        return theta
    from scipy.optimize import brentq

    vectors, singular_values, _ = np.linalg.svd(factor)
    eigenvalues, coordinates = singular_values**2, vectors.T @ theta

    def shrunk(nu: float) -> FloatArray:
        return np.asarray(eigenvalues / (eigenvalues + nu) * coordinates)

    # There every coordinate is shrunk by length / radius, or more.
    largest = eigenvalues[0] * (length / radius - 1) * (1 + 1e-9)
    nu = brentq(lambda nu: np.linalg.norm(shrunk(nu)) - radius, 0.0, largest)
    return np.asarray(vectors @ shrunk(nu))


@dataclass(frozen=True)
class GLMUCBSettings:
    """What all agents of a study have in common.

    Attributes
    ----------
    reward_range : tuple of float, or None
        (low, high), between which mean rewards lie: a logistic link. None: an identity
        link, for rewards of any size.
    ridge : float
        lambda > 0.
    beta : float
        > 0: the squared radius of the ellipsoid.
    threshold : float
        D > 0: the larger, the fewer synchronisations.
    curvature : float
        0 < c_mu <= the largest slope of mu; 1 makes online Newton steps on an identity
        link exact.
    parameter_norm : float
        S > 0.
    accuracy : float
        > 0.
    max_iterations : int
        >= 1: of one descent.
    """

    reward_range: tuple[float, float] | None = None
    ridge: float = field(default=0.1, metadata=positive())
    beta: float = field(default=0.01, metadata=positive())
    threshold: float = field(default=1.0, metadata=positive())
    curvature: float = field(default=1.0, metadata=positive())
    parameter_norm: float = field(default=100.0, metadata=positive())
    accuracy: float = field(default=1.0, metadata=positive())
    max_iterations: int = field(default=1000, metadata=integer(1))

    def __post_init__(self) -> None:
        check_fields(self)
        given = self.reward_range
        is_pair = given is None or (isinstance(given, tuple) and len(given) == 2)
        require(is_pair, "reward_range", given, "two numbers, or None")
        if given is not None:
            numbers = all(is_number(value) and np.isfinite(value) for value in given)
            allowed = "two finite numbers, the lower one first"
            require(numbers and given[0] < given[1], "low, high", given, allowed)
        slope = self.largest_slope
        allowed = f"at most {slope:g}, the largest slope of the link"
        require(self.curvature <= slope, "curvature", self.curvature, allowed)

    @property
    def largest_slope(self) -> float:
        """k_mu, the largest slope of the link."""
        if self.reward_range is None:
            return 1.0
        low, high = self.reward_range
        return (high - low) / 4

    def mean(self, z: FloatArray) -> FloatArray:
        """Return mu(z), element by element: z, or low + (high - low) / (1 + e^-z)."""
        if self.reward_range is None:
            return z
        from scipy.special import expit

        low, high = self.reward_range
        return np.asarray(low + (high - low) * expit(z))

    def matrix(self, gram: FloatArray) -> FloatArray:
        """Return A of a sum of x x'."""
        return gram + self.ridge / self.curvature * np.eye(len(gram))


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
        self._step(x, self.settings.mean(z) - y)

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

    def message(self) -> AgentReply:
        """Return the sum over the agent's own evaluations."""
        return AgentReply(len(self._x), self._gram)

    @one_blas_thread
    def gradient(self, theta: FloatArray) -> FloatArray:
        """Return that of the loss of the agent's own evaluations, shape (d,)."""
        if not self._x:
            return np.zeros_like(theta)
        x = np.array(self._x)
        return np.asarray((self.settings.mean(x @ theta) - np.array(self._y)) @ x)

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


class GLMBanditServer:
    """`receive` what agents send first; then `receive_gradients` until it `is_done`.

    Parameters
    ----------
    settings : GLMUCBSettings
    dimension : int
        D, an action's coordinates.

    Attributes
    ----------
    gram : ndarray of shape (d, d)
        Sum of x x' over all agents, d = D + 1.
    """

    def __init__(self, settings: GLMUCBSettings, dimension: int) -> None:
        self.settings = settings
        self.gram: FloatArray = np.zeros((dimension + 1, dimension + 1))
        self._descent: AcceleratedDescent | None = None

    @property
    def point(self) -> FloatArray:
        """Where gradients are needed; what came out, once it `is_done`: shape (d,)."""
        if self._descent is None:
            return np.zeros(len(self.gram))
        return self._descent.point

    @property
    def is_done(self) -> bool:
        """Whether no more gradients are needed."""
        return self._descent is None or self._descent.is_done

    @one_blas_thread
    def receive(self, messages: Sequence[AgentReply]) -> None:
        """Begin a descent, where the last one ended, from one message an agent.

        The sums bound the eigenvalues of the loss's Hessian, from above with the
        largest slope of the link, from below with c_mu.

        Raises
        ------
        ValueError
            If one is no sum of x x'.
        """
        size, settings = len(self.gram), self.settings
        for message in messages:
            ok = is_sum(message.values, (size, size))
            allowed = f"a finite, symmetric array of shape {(size, size)}"
            require(ok, "message", message.values, allowed)
        self.gram = np.sum([message.values for message in messages], axis=0)
        count = max(sum(message.num_evaluations for message in messages), 1)
        eigenvalues = np.linalg.eigvalsh(self.gram)
        self._descent = AcceleratedDescent(
            self.point,
            smoothness=settings.largest_slope * eigenvalues[-1] + settings.ridge,
            strong_convexity=settings.curvature * max(eigenvalues[0], 0.0)
            + settings.ridge,
            accuracy=settings.accuracy / count,
            max_iterations=settings.max_iterations,
        )

    @one_blas_thread
    def receive_gradients(self, gradients: Sequence[FloatArray]) -> None:
        """Make a step with the agents' gradients at `point`, each of shape (d,).

        Raises
        ------
        ValueError
            If one is not so many finite numbers.
        RuntimeError
            If none are needed.
        """
        if self._descent is None or self._descent.is_done:
            raise RuntimeError("No gradients are needed.")
        size = len(self.gram)
        for gradient in gradients:
            ok = is_array(gradient, (size,))
            require(ok, "gradient", gradient, f"{size} finite numbers")
        total = np.sum(gradients, axis=0) + self.settings.ridge * self.point
        self._descent.advance(total)

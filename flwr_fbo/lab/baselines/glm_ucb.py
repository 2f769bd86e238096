"""Fed-GLB-UCB: a generalised linear bandit that all agents share.

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

scalars. Only simulations play it, where every agent answers: nothing is checked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from flwr_fbo._common.arrays import FloatArray, first_best, one_blas_thread
from flwr_fbo._common.fields import check_fields, integer, positive
from flwr_fbo._common.validation import require
from flwr_fbo.bandits.fed_go_ucb.settings import AgentReply
from flwr_fbo.bandits.linear.settings import DeterminantTrigger
from flwr_fbo.models.ellipsoid import Ellipsoid


def accelerated_descent(
    gradient: Callable[[FloatArray], FloatArray],
    start: FloatArray,
    *,
    smoothness: float,
    strong_convexity: float,
    accuracy: float,
    max_iterations: int,
) -> FloatArray:
    """Return the minimum of a smooth, strongly convex function, shape (d,).

    By Nesterov's method with a constant momentum (Nesterov, Introductory Lectures on
    Convex Optimization, 2004, scheme 2.2.11).

    Parameters
    ----------
    gradient : callable
        Takes a point, shape (d,).
    start : ndarray of shape (d,)
        First point.
    smoothness : float
        L, no less than any eigenvalue of the function's Hessian.
    strong_convexity : float
        0 < m <= L, no more than any.
    accuracy : float
        By how much the value may exceed the least one. It ends where ||gradient||^2 <=
        2 m accuracy, from which that follows.
    max_iterations : int
        Gradients after which it ends in any case.
    """
    root = np.sqrt(strong_convexity / smoothness)
    momentum = (1 - root) / (1 + root)
    point = last = start
    for _ in range(max_iterations):
        slope = gradient(point)
        if slope @ slope <= 2 * strong_convexity * accuracy:
            break
        end = point - 1 / smoothness * slope
        point, last = end + momentum * (end - last), end
    return point


def projected(theta: FloatArray, factor: FloatArray, radius: float) -> FloatArray:
    """Return the nearest point of the ball ||t|| <= radius, by ||t - theta||_A.

    Outside of the ball it is (A + nu I)^-1 A theta with the nu > 0 that makes it as
    long as the radius, found in the eigenvectors of A.

    Parameters
    ----------
    theta : ndarray of shape (d,)
        Point that is projected.
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
    """Settings of all agents of a study.

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
        bounds = self.reward_range
        if bounds is not None:
            ordered = bool(np.isfinite(bounds).all()) and bounds[0] < bounds[1]
            expected = "two finite numbers, the lower one first"
            require(ordered, "low, high", bounds, expected)
        slope = self.largest_slope
        expected = f"at most {slope:g}, the largest slope of the link"
        require(self.curvature <= slope, "curvature", self.curvature, expected)

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

    def agents(self, num_agents: int, dimension: int, seed: int) -> list[GLMUCBAgent]:
        """Return the agents of a study, before their first evaluation.

        They draw nothing at random: ``seed`` plays no part.
        """
        return [GLMUCBAgent(self, dimension) for _ in range(num_agents)]

    @one_blas_thread
    def synchronise(
        self,
        agents: Sequence[GLMUCBAgent],
        send: Callable[[FloatArray], FloatArray] = lambda array: array,
    ) -> None:
        """Let all agents share what they know.

        The descent begins at their last estimate. The sums bound the eigenvalues of the
        loss's Hessian, from above with the largest slope of the link, from below with
        c_mu.

        Parameters
        ----------
        agents : sequence of GLMUCBAgent
            All agents of the study.
        send : callable
            Function that all arrays pass that agents and server send each other.
        """
        messages = [agent.message() for agent in agents]
        gram = np.sum([send(message.values) for message in messages], axis=0)
        count = max(sum(message.num_evaluations for message in messages), 1)
        eigenvalues = np.linalg.eigvalsh(gram)

        def gradient(theta: FloatArray) -> FloatArray:
            parts = [send(agent.gradient(send(theta))) for agent in agents]
            return np.asarray(np.sum(parts, axis=0) + self.ridge * theta)

        least = max(eigenvalues[0], 0.0)
        theta = accelerated_descent(
            gradient,
            agents[0].shared_theta,
            smoothness=self.largest_slope * eigenvalues[-1] + self.ridge,
            strong_convexity=self.curvature * least + self.ridge,
            accuracy=self.accuracy / count,
            max_iterations=self.max_iterations,
        )
        for agent in agents:
            agent.receive(send(gram), send(theta))


class GLMUCBAgent:
    """One agent: `choose` and `tell`; the rest is a synchronisation.

    There all agents send their `message`, then their `gradient` as often as the descent
    asks for it, and `receive` what came out: see `GLMUCBSettings.synchronise`.

    Parameters
    ----------
    settings : GLMUCBSettings
        Settings of all agents.
    dimension : int
        D, an action's coordinates.

    Attributes
    ----------
    theta : ndarray of shape (d,)
        The online estimate, d = D + 1.
    shared_theta : ndarray of shape (d,)
        The estimate of the last synchronisation; zero before the first one.
    """

    theta: FloatArray

    def __init__(self, settings: GLMUCBSettings, dimension: int) -> None:
        self.settings = settings
        self._trigger = DeterminantTrigger(settings.threshold)
        self._x: list[FloatArray] = []
        self._y: list[float] = []
        size = dimension + 1
        self._gram = np.zeros((size, size))
        self.receive(self._gram, np.zeros(size))

    @one_blas_thread
    def choose(self, actions: FloatArray) -> int:
        """Return the index of the action with the largest upper confidence bound.

        Of several that are equal, the lowest.

        Parameters
        ----------
        actions : ndarray of shape (K, D)
            K >= 1.
        """
        return int(first_best(self.upper_bounds(actions)))

    def upper_bounds(self, actions: FloatArray) -> FloatArray:
        """Return that of <x, theta> of each action, shape (K,)."""
        x = np.column_stack([actions, np.ones(len(actions))])
        return self._ellipsoid.upper_bounds(x, math.sqrt(self.settings.beta))

    @one_blas_thread
    def tell(self, action: FloatArray, reward: float) -> None:
        """Record what an action, shape (D,), was rewarded with."""
        x = np.append(action, 1.0)
        self._x.append(x)
        self._y.append(reward)
        self._gram = self._gram + np.outer(x, x)
        z = x @ self.theta
        self._ellipsoid.observe(x, z)
        self._step(x, self.settings.mean(z) - reward)

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
            Sum of the agents' Gram matrices.
        theta : ndarray of shape (d,)
            Estimate of all agents together.
        """
        matrix = self.settings.matrix(gram)
        self._ellipsoid = Ellipsoid(matrix, matrix @ theta)
        self._synchronised_log_det = self._ellipsoid.log_det
        self.theta = self.shared_theta = theta

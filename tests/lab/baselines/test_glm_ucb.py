"""Fed-GLB-UCB: models, agent, server and simulator against what they reduce to."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.bandits.fed_go_ucb.settings import FedGOUCBSettings
from flwr_fbo.lab.baselines.glm_ucb import (
    GLMUCBAgent,
    GLMUCBSettings,
    accelerated_descent,
    projected,
)
from flwr_fbo.lab.simulation.neural_bandits import (
    LinearModel,
    NeuralBanditSimulation,
    TurnSimulation,
)
from flwr_fbo.lab.tasks.nonlinear_bandit import FunctionBanditTask, NonlinearBandit

N, D, T = 3, 6, 8
TASK = FunctionBanditTask(num_actions=12)
LINEAR = GLMUCBSettings(ridge=0.5, beta=0.3, threshold=0.5, accuracy=1e-18)
LOGISTIC = replace(LINEAR, reward_range=(0.0, 3.4), curvature=0.2)
BOTH = pytest.mark.parametrize("settings", [LINEAR, LOGISTIC])


def _points(count: int, seed: int = 0) -> tuple[FloatArray, FloatArray]:
    rng = np.random.default_rng(seed)
    return rng.uniform(size=(count, D)), rng.uniform(0, 3, size=count)


def _with_constant(x: FloatArray) -> FloatArray:
    return np.column_stack([x, np.ones(len(x))])


def _kept(arrays: list[FloatArray]) -> Callable[[FloatArray], FloatArray]:
    """Return what keeps all arrays that are sent."""

    def send(array: FloatArray) -> FloatArray:
        arrays.append(array)
        return array

    return send


def _told(settings: GLMUCBSettings, count: int, seed: int = 0) -> GLMUCBAgent:
    agent = GLMUCBAgent(settings, D)
    for x, y in zip(*_points(count, seed), strict=True):
        agent.tell(x, y)
    return agent


def _ridge(x: FloatArray, y: FloatArray, ridge: float) -> tuple[FloatArray, FloatArray]:
    V = ridge * np.eye(D + 1) + x.T @ x
    return V, np.asarray(np.linalg.solve(V, x.T @ y), dtype=np.float64)


def _glm(settings: GLMUCBSettings, x: FloatArray, y: FloatArray) -> FloatArray:
    """Return the minimiser of the regularised loss, by Newton's method."""
    theta = np.zeros(x.shape[1])
    for _ in range(25):
        z = x @ theta
        slope = (settings.mean(z + 1e-5) - settings.mean(z - 1e-5)) / 2e-5
        gradient = (settings.mean(z) - y) @ x + settings.ridge * theta
        hessian = (x.T * slope) @ x + settings.ridge * np.eye(len(theta))
        theta = theta - np.linalg.solve(hessian, gradient)
    return theta


# Settings and models


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"threshold": np.nan}, "threshold=nan"),
        ({"curvature": 1.1}, "curvature=1.1 is not allowed: at most 1, the largest"),
        ({"reward_range": (0.0, 1.0)}, "curvature=1.0 .* at most 0.25"),
        ({"reward_range": (1.0, 0.0)}, r"low, high=\(1.0, 0.0\)"),
    ],
)
def test_bad_settings_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(LINEAR, **fields)


def test_links() -> None:
    z = np.linspace(-4, 4, 801)
    logistic = GLMUCBSettings((-1.0, 2.0), curvature=0.1)
    for link in (GLMUCBSettings(), logistic):
        slopes = np.diff(link.mean(z)) / np.diff(z)
        assert slopes.min() > 0
        assert slopes.max() == pytest.approx(link.largest_slope, rel=1e-4)
    far = np.array([-1e9, 0.0, 1e9])
    assert logistic.mean(far).tolist() == [-1.0, 0.5, 2.0]


def test_a_descent_ends_at_the_accuracy() -> None:
    eigenvalues = np.array([1.0, 10.0, 1000.0])
    best = np.array([3.0, -2.0, 1.0])
    asked: list[FloatArray] = []

    def gradient(point: FloatArray) -> FloatArray:
        asked.append(point)
        return np.asarray(eigenvalues * (point - best))

    known: dict[str, Any] = {"smoothness": 1000.0, "strong_convexity": 1.0}
    known |= {"accuracy": 1e-10, "max_iterations": 10_000}
    found = accelerated_descent(gradient, np.zeros(3), **known)
    assert 0.5 * eigenvalues @ (found - best) ** 2 <= 1e-10
    # Gradient descent would take a thousand times log(1e14).
    assert len(asked) < 1000
    asked.clear()
    accelerated_descent(gradient, np.zeros(3), **{**known, "max_iterations": 5})
    assert len(asked) == 5


def test_a_projection_is_the_nearest_point_of_the_ball() -> None:
    rng = np.random.default_rng(1)
    root = rng.standard_normal((4, 4))
    A = root @ root.T + 0.1 * np.eye(4)
    factor: FloatArray = np.linalg.cholesky(A).astype(np.float64)
    theta = 3 * rng.standard_normal(4)
    found = projected(theta, factor, 1.5)
    expected = minimize(
        lambda t: (t - theta) @ A @ (t - theta),
        np.zeros(4),
        jac=lambda t: 2 * A @ (t - theta),
        constraints={"type": "ineq", "fun": lambda t: 1.5**2 - t @ t},
        tol=1e-14,
    )
    assert np.linalg.norm(found) == pytest.approx(1.5)
    np.testing.assert_allclose(found, expected.x, atol=1e-5)
    assert projected(theta, factor, 100.0) is theta


# Agent and server


def test_online_steps_on_an_identity_link_are_ridge_regression() -> None:
    agent = GLMUCBAgent(LINEAR, D)
    x, y = _points(15)
    for t in range(15):
        agent.tell(x[t], y[t])
        _, expected = _ridge(_with_constant(x[: t + 1]), y[: t + 1], LINEAR.ridge)
        np.testing.assert_allclose(agent.theta, expected, rtol=0, atol=1e-10)


@BOTH
def test_the_centre_is_that_of_the_predictions(settings: GLMUCBSettings) -> None:
    agent = GLMUCBAgent(settings, D)
    x, y = _points(9)
    features, predictions = _with_constant(x), []
    for t in range(9):
        predictions.append(features[t] @ agent.theta)
        agent.tell(x[t], y[t])
    ridge = settings.ridge / settings.curvature
    V, centre = _ridge(features, np.array(predictions), ridge)
    X = _with_constant(_points(50, 9)[0])
    norms = np.einsum("ij,ji->i", X, np.linalg.solve(V, X.T))
    expected = X @ centre + np.sqrt(settings.beta * norms)
    np.testing.assert_allclose(agent.upper_bounds(X[:, :-1]), expected, rtol=1e-9)


def test_a_step_of_newton_stays_in_the_ball() -> None:
    agent = _told(replace(LOGISTIC, parameter_norm=0.5), 6)
    assert np.linalg.norm(agent.theta) == pytest.approx(0.5)


@BOTH
def test_a_synchronisation_finds_the_estimate_of_all_data(
    settings: GLMUCBSettings,
) -> None:
    agents = [_told(settings, count, seed) for seed, count in enumerate((4, 0, 6))]
    settings.synchronise(agents)
    theta = agents[0].theta
    parts = zip(_points(4, 0), _points(6, 2), strict=True)
    x, y = (np.concatenate(part) for part in parts)
    x = _with_constant(x)
    np.testing.assert_allclose(theta, _glm(settings, x, y), rtol=0, atol=1e-8)
    if settings is LINEAR:
        expected = _ridge(x, y, LINEAR.ridge)[1]
        np.testing.assert_allclose(theta, expected, rtol=0, atol=1e-8)
    X = _points(5, 9)[0]
    bounds = [agent.upper_bounds(X) for agent in agents]
    assert all(np.array_equal(bounds[0], other) for other in bounds)
    assert all(np.array_equal(agent.theta, theta) for agent in agents)
    # And again from there: where nothing is new, one gradient says so.
    sent: list[FloatArray] = []
    settings.synchronise(agents, _kept(sent))
    assert all(np.array_equal(agent.theta, theta) for agent in agents)
    # A sum, a point and a gradient of each; and the two results.
    assert len(sent) == 5 * len(agents)


def test_the_trigger_is_the_determinant_s() -> None:
    agent = GLMUCBAgent(LINEAR, D)
    x, y = _points(30)
    for t in range(5):
        agent.tell(x[t], y[t])
    LINEAR.synchronise([agent])
    fired = False
    for t in range(5, 30):
        assert agent.wants_synchronisation() == fired
        agent.tell(x[t], y[t])
        dets = [
            np.linalg.slogdet(_ridge(_with_constant(x[:n]), y[:n], 0.5)[0])[1]
            for n in (5, t + 1)
        ]
        fired = (t - 4) * (dets[1] - dets[0]) > LINEAR.threshold
    assert fired


# The simulator


def test_with_an_identity_link_and_all_shared_it_is_linucb() -> None:
    run = TurnSimulation(LINEAR, TASK, N, T, "always").run(3)
    settings = FedGOUCBSettings(
        num_exploration=0, ridge=0.5, beta=0.3, exploration="optimism"
    )
    every = NeuralBanditSimulation(settings, TASK, N, T, "always", model=LinearModel(D))
    linear = every.run(3)
    assert np.array_equal(run.actions, linear.actions)
    assert np.array_equal(run.regret, linear.regret)
    assert len(np.unique(run.actions)) > 3
    assert run.num_synchronisations == N * T


@BOTH
def test_with_all_shared_it_is_the_centralised_algorithm(
    settings: GLMUCBSettings,
) -> None:
    run = TurnSimulation(settings, TASK, N, T, "always").run(4)
    bandit = NonlinearBandit(TASK, 4)
    X = _with_constant(bandit.actions)
    chosen: list[int] = []
    rewards: list[float] = []
    for turn in range(N * T):
        x = X[chosen]
        theta = _glm(settings, x, np.array(rewards))
        A = x.T @ x + settings.ridge / settings.curvature * np.eye(D + 1)
        norms = np.einsum("ij,ji->i", X, np.linalg.solve(A, X.T))
        bounds = X @ theta + np.sqrt(settings.beta * norms)
        chosen.append(int(bounds.argmax()))
        rewards.append(bandit.reward(turn % N, turn // N, chosen[-1]))
    assert run.actions.ravel().tolist() == chosen


def test_the_counts_are_those_of_the_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    gradients = []
    usual = GLMUCBAgent.gradient

    def counted(agent: GLMUCBAgent, theta: FloatArray) -> FloatArray:
        gradients.append(agent)
        return usual(agent, theta)

    monkeypatch.setattr(GLMUCBAgent, "gradient", counted)
    settings = replace(LOGISTIC, accuracy=1.0, threshold=20.0)
    run = TurnSimulation(settings, TASK, N, T).run(3)
    d, syncs = D + 1, run.num_synchronisations
    assert 0 < syncs < N * T
    assert len(set(gradients)) == N
    expected = syncs * N * (2 * d**2 + d) + 2 * d * len(gradients)
    assert run.num_scalars[-1] == expected
    alone = TurnSimulation(settings, TASK, N, T, "never").run(3)
    assert alone.num_scalars[-1] == alone.num_synchronisations == 0
    assert alone.regret.shape == (T,)


def test_a_bad_simulation_is_refused() -> None:
    with pytest.raises(ValueError, match="num_rounds=0"):
        TurnSimulation(LINEAR, TASK, N, 0)

"""ApproxDisKernelUCB: models, agent, server and simulator against exact kernel UCB."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.bandits.fed_go_ucb.settings import FedGOUCBSettings
from flwr_fbo.lab.baselines.kernel_ucb import (
    KernelUCBAgent,
    KernelUCBSettings,
    NystromFeatures,
    NystromRegression,
    rbf_kernel,
    sums_of,
)
from flwr_fbo.lab.simulation.neural_bandits import (
    NeuralBanditSimulation,
    TurnSimulation,
)
from flwr_fbo.lab.tasks.nonlinear_bandit import FunctionBanditTask, NonlinearBandit
from flwr_fbo.models.network import Network

N, D, T = 3, 6, 10
TASK = FunctionBanditTask(num_actions=12)
SETTINGS = KernelUCBSettings(
    lengthscale=0.7, ridge=0.05, beta=0.3, threshold=2.0, oversampling=0.2
)
FULL = replace(SETTINGS, oversampling=1e12)


def _points(count: int, seed: int = 0) -> tuple[FloatArray, FloatArray]:
    rng = np.random.default_rng(seed)
    return rng.uniform(size=(count, D)), rng.standard_normal(count)


def _exact(
    x: FloatArray, y: FloatArray, X: FloatArray, settings: KernelUCBSettings
) -> tuple[FloatArray, FloatArray]:
    """Return mean and variance of kernel ridge regression, in the form of n x n."""
    K = rbf_kernel(x, x, settings.lengthscale) + settings.ridge * np.eye(len(x))
    k = rbf_kernel(x, X, settings.lengthscale)
    variance = 1 - np.einsum("ij,ij->j", k, np.linalg.solve(K, k))
    return k.T @ np.linalg.solve(K, y), variance / settings.ridge


def _told(settings: KernelUCBSettings, count: int, slot: int = 0) -> KernelUCBAgent:
    agent = KernelUCBAgent(settings, D, 7, slot)
    for x, y in zip(*_points(count, slot), strict=True):
        agent.tell(x, y)
    return agent


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lengthscale": 0.0}, "lengthscale=0.0"),
        ({"beta": np.inf}, "beta=inf"),
    ],
)
def test_bad_settings_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SETTINGS, **fields)


# Models


def test_features_give_the_kernel_on_the_dictionary() -> None:
    S, X = _points(40)[0], _points(25, 1)[0]
    features = NystromFeatures(S, 0.7)
    np.testing.assert_allclose(features(S) @ features(X).T, rbf_kernel(S, X, 0.7))
    z = features(X)
    assert z.shape == (25, 40)
    assert ((z**2).sum(axis=1) < 1).all()


@pytest.mark.parametrize("lengthscale", [0.2, 2.0])
def test_a_full_dictionary_is_exact(lengthscale: float) -> None:
    settings = replace(SETTINGS, lengthscale=lengthscale)
    x, y = _points(100)
    x[60:] = x[:40]  # what is played twice is in the dictionary once
    features = NystromFeatures(np.unique(x, axis=0), lengthscale)
    sums = sums_of(features, x[:90], y[:90])
    regression = NystromRegression(features, sums, settings.ridge)
    for point, reward in zip(x[90:], y[90:], strict=True):
        regression.observe(point, float(reward))
    X = np.concatenate([x[:20], _points(50, 9)[0]])
    mean, variance = regression.predict(X)
    expected = _exact(x, y, X, settings)
    np.testing.assert_allclose(mean, expected[0], rtol=0, atol=1e-8)
    np.testing.assert_allclose(variance, expected[1], rtol=0, atol=1e-8)


def test_points_that_are_almost_equal_do_no_harm() -> None:
    x, y = _points(30)
    x[15:] = x[:15] + 1e-9
    features = NystromFeatures(x, 0.7)
    regression = NystromRegression(features, sums_of(features, x, y), 0.05)
    for ours, exact in zip(
        regression.predict(x), _exact(x, y, x, SETTINGS), strict=True
    ):
        np.testing.assert_allclose(ours, exact, rtol=0, atol=1e-6)


# Agent and server


def test_after_a_synchronisation_all_believe_in_all_data() -> None:
    agents = [_told(FULL, count, slot) for slot, count in enumerate((4, 0, 6))]
    KernelUCBSettings.synchronise(agents)
    parts = zip(_points(4, 0), _points(6, 2), strict=True)
    x, y = (np.concatenate(part) for part in parts)
    X = _points(20, 9)[0]
    for agent in agents:
        for ours, exact in zip(agent.predict(X), _exact(x, y, X, FULL), strict=True):
            np.testing.assert_allclose(ours, exact, rtol=0, atol=1e-8)


def test_what_an_agent_sees_afterwards_is_its_own() -> None:
    agents = [_told(FULL, 5, slot) for slot in range(2)]
    KernelUCBSettings.synchronise(agents)
    x, y = _points(5, 0)
    before = agents[1].predict(x)
    agents[0].tell(x[2], y[2])
    parts = zip(_points(5, 0), _points(5, 1), (x[2:3], y[2:3]), strict=True)
    seen_x, seen_y = (np.concatenate(part) for part in parts)
    exact = _exact(seen_x, seen_y, x, FULL)
    for ours, expected in zip(agents[0].predict(x), exact, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-8)
    for ours, expected in zip(agents[1].predict(x), before, strict=True):
        assert np.array_equal(ours, expected)


def test_the_trigger_adds_up_variances_of_the_last_synchronisation() -> None:
    agent = _told(FULL, 5)
    KernelUCBSettings.synchronise([agent])
    x, y = _points(5)
    X, Y = _points(30, 4)
    total, fired = 0.0, False
    for t in range(30):
        assert agent.wants_synchronisation() == fired
        agent.tell(X[t], Y[t])
        features = NystromFeatures(np.unique(x, axis=0), FULL.lengthscale)
        last = NystromRegression(features, sums_of(features, x, y), FULL.ridge)
        total += last.predict(X[t : t + 1])[1][0]
        fired = total > FULL.threshold
    assert fired
    KernelUCBSettings.synchronise([agent])
    assert not agent.wants_synchronisation()


def test_points_are_drawn_by_their_variance() -> None:
    settings = replace(SETTINGS, ridge=1.0, oversampling=0.3)
    x = np.concatenate([np.tile(_points(1)[0], (400, 1)), _points(1, 1)[0]])
    # Without a dictionary every variance is 1 / lambda: each point has 0.3.
    drawn = []
    for slot in range(200):
        agent = KernelUCBAgent(settings, D, 7, slot)
        for point in _points(10, 3)[0]:
            agent.tell(point, 0.0)
        drawn.append(len(agent.draw()))
        assert np.array_equal(agent.draw(), agent.draw())
    assert np.mean(drawn) == pytest.approx(3.0, abs=5 * np.sqrt(2.1 / 200))
    # One that was seen 400 times has a variance of a 400th, and is drawn at most once.
    agent = KernelUCBAgent(replace(settings, oversampling=2.0), D, 7, 0)
    for point in x:
        agent.tell(point, 0.0)
    assert len(agent.draw()) == 2
    KernelUCBSettings.synchronise([agent])
    variance = agent.predict(x[[0, -1]])[1]
    assert variance[0] == pytest.approx(1 / 401, rel=0.05)
    assert 0.3 < variance[1] < 0.6


# The simulator


def test_with_all_shared_it_is_exact_kernel_ucb_of_one_agent() -> None:
    run = TurnSimulation(FULL, TASK, N, T, "always").run(4)
    bandit = NonlinearBandit(TASK, 4)
    X = bandit.actions
    # All actions look alike at first: a random one, as in the exploration of others.
    explored = NeuralBanditSimulation(
        FedGOUCBSettings(), TASK, N, 1, model=Network(D)
    ).run(4)
    chosen = [int(explored.actions[0, 0])]
    rewards = [bandit.reward(0, 0, chosen[0])]
    for turn in range(1, N * T):
        mean, variance = _exact(X[chosen], np.array(rewards), X, FULL)
        bounds = mean + np.sqrt(FULL.beta * variance)
        chosen.append(int(bounds.argmax()))
        rewards.append(bandit.reward(turn % N, turn // N, chosen[-1]))
    assert run.actions.ravel().tolist() == chosen
    assert len(set(chosen)) > 5
    assert run.num_synchronisations == N * T


def _spied(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return, later on, how many points were sent and kept in each synchronisation."""
    sizes: list[tuple[int, int]] = []
    usual: Callable[..., None] = KernelUCBSettings.synchronise

    def counted(agents: Any, send: Any) -> None:
        sent = sum(len(agent.draw()) for agent in agents)
        usual(agents, send)
        sizes.append((sent, len(agents[0]._features.dictionary)))

    monkeypatch.setattr(KernelUCBSettings, "synchronise", staticmethod(counted))
    return sizes


def test_the_counts_are_those_of_the_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = _spied(monkeypatch)
    settings = replace(SETTINGS, ridge=1.0, oversampling=1.0)
    run = TurnSimulation(settings, TASK, N, T).run(3)
    assert 0 < run.num_synchronisations == len(sizes) < N * T
    assert len({kept for _, kept in sizes}) > 1
    expected = sum(n * D + N * m * D + 2 * N * (m**2 + m) for n, m in sizes)
    assert run.num_scalars[-1] == expected
    again = TurnSimulation(settings, TASK, N, T).run(3)
    assert np.array_equal(run.actions, again.actions)
    alone = TurnSimulation(SETTINGS, TASK, N, T, "never").run(3)
    assert alone.num_scalars[-1] == alone.num_synchronisations == 0


def test_if_nobody_draws_a_point_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = _spied(monkeypatch)
    settings = replace(SETTINGS, oversampling=1e-12)
    run = TurnSimulation(settings, TASK, N, 3).run(3)
    assert set(sizes) == {(0, 0)}
    assert run.num_scalars[-1] == 0 < run.num_synchronisations
    assert len(set(run.actions.ravel())) > 3


def test_a_bad_simulation_is_refused() -> None:
    with pytest.raises(ValueError, match="num_rounds=0"):
        TurnSimulation(SETTINGS, TASK, N, 0)

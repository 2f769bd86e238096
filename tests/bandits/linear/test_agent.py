"""The ellipsoid, and FedUCB's agent, against formulas with explicit inverses."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.bandits import FeatureEncoder, Number
from flwr_fbo.bandits.linear.agent import LinearUCBAgent
from flwr_fbo.bandits.linear.confidence import Confidence
from flwr_fbo.bandits.linear.settings import (
    DeterminantTrigger,
    LinearUCBSettings,
)
from flwr_fbo.models.ellipsoid import Ellipsoid
from flwr_fbo.privacy.continual import ContinualRelease
from flwr_fbo.privacy.continual_settings import ContinualSettings
from flwr_fbo.privacy.noise import SeededEntropy
from tests.support.confidence import PLAIN, PRIVATE, D, confidence, total_of, width_of

PUBLISHED = replace(PRIVATE, mechanism="tree", calibration="paper")


def action_sets(rng: np.random.Generator, count: int, size: int = 6) -> FloatArray:
    x = rng.standard_normal((count, size, D))
    norms = np.linalg.norm(x, axis=-1, keepdims=True)
    return np.asarray(x / norms * rng.uniform(0.2, 1.0, norms.shape))


def naive_bounds(V: FloatArray, u: FloatArray, X: FloatArray, w: float) -> FloatArray:
    inverse = np.linalg.inv(V)
    norms = [math.sqrt(x @ inverse @ x) for x in X]
    return np.asarray(X @ inverse @ u + w * np.array(norms))


@pytest.mark.parametrize("shape", [(), (5,)])
def test_ellipsoid_is_that_of_explicit_inverses(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((*shape, 7, D))
    V, u = np.swapaxes(x, -1, -2) @ x, rng.standard_normal((*shape, D))
    X, width = rng.standard_normal((*shape, 9, D)), rng.uniform(1, 2, shape)
    model = Ellipsoid(V, u, watched=True)
    inverse = np.linalg.inv(V)
    np.testing.assert_allclose(model.estimate, np.einsum("...ij,...j", inverse, u))
    np.testing.assert_allclose(model.log_det, np.linalg.slogdet(V)[1])
    norms = np.sqrt(np.einsum("...ki,...ij,...kj->...k", X, inverse, X))
    expected = np.einsum("...ki,...ij,...j->...k", X, inverse, u)
    np.testing.assert_allclose(
        model.upper_bounds(X, width), expected + width[..., None] * norms
    )


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, math.inf])
@pytest.mark.parametrize("local_data", ["released", "raw"])
def test_theta_is_in_the_ellipsoid_of_the_observed_width(
    epsilon: float, local_data: Any
) -> None:
    alpha, num_runs, missed = 0.2, 60, 0
    releases = replace(PRIVATE, dimension=2, epsilon=epsilon, num_releases=4)
    chosen = {"alpha": alpha, "width": "observed", "local_data": local_data}
    s = confidence(releases, num_agents=2, noise_scale=1.0, **chosen)
    gained = False
    for seed in range(num_runs):
        rng = np.random.default_rng(seed)
        theta = rng.standard_normal(2)
        theta /= np.linalg.norm(theta)
        agents = [LinearUCBAgent(s) for _ in range(2)]
        mechanisms = [
            ContinualRelease(releases, SeededEntropy(seed, i)) for i in range(2)
        ]
        inside = True
        for t in range(1, 101):
            for agent in agents:
                model = agent._ellipsoid
                width = s.width_at(model.log_det, model.least_eigenvalue)
                error = model.factor.T @ (model.estimate - theta)
                inside &= float(np.linalg.norm(error)) <= float(width)
                exact = replace(s, settings=replace(s.settings, width="exact"))
                least = model.least_eigenvalue
                gained |= bool(width < exact.width_at(model.log_det, least))
                actions = rng.standard_normal((4, 2))
                actions /= np.linalg.norm(actions, axis=1, keepdims=True)
                x = actions[agent.choose(actions)[0]]
                agent.tell(x, 1.0 if rng.random() < (1 + x @ theta) / 2 else -1.0)
            if t % 25 == 0:
                total = np.sum(
                    [
                        m.release(t // 25, a.running_sum)
                        for m, a in zip(mechanisms, agents, strict=True)
                    ],
                    axis=0,
                )
                for agent in agents:
                    agent.receive(total)
        missed += not inside
    assert missed / num_runs <= alpha
    assert gained


def test_the_least_eigenvalue_is_that_after_a_power_of_two_of_observations() -> None:
    rng = np.random.default_rng(13)
    model = Ellipsoid(0.5 * np.eye(D), np.zeros(D), watched=True).repeated(3)
    V = np.repeat(0.5 * np.eye(D)[None], 3, axis=0)
    for t in range(1, 70):
        x = rng.standard_normal((3, D))
        V += x[:, :, None] * x[:, None, :]
        model.observe(x, np.zeros(3))
        if t in (1, 2, 4, 8, 16, 32, 64):
            expected = np.linalg.eigvalsh(V)[:, 0]
        np.testing.assert_allclose(model.least_eigenvalue, expected)


@pytest.mark.parametrize(
    ("releases", "among_peers"), [(PLAIN, False), (PUBLISHED, True)]
)
def test_triggers_are_those_of_the_algorithms(
    releases: ContinualSettings, among_peers: bool
) -> None:
    """Algorithm 1, line 12, and Algorithm 3, line 6, by determinants as printed."""
    M, rng = 3, np.random.default_rng(14)
    s = confidence(releases, num_agents=M, width="paper", local_data="raw")
    bounds = s.bounds
    agent = LinearUCBAgent(s)
    others = action_sets(rng, 400, 1)[:, 0]
    # Long enough to count beside the paper's shift, too.
    total = max(1.0, bounds.rho_max) * total_of(others, np.zeros(400))
    agent.receive(total)
    S = total[:D, :D] + M * bounds.shift * np.eye(D)
    V, slack = S.copy(), M * (bounds.rho_max - bounds.rho_min) * np.eye(D)
    fired = []
    for since, x in enumerate(action_sets(rng, 60, 1)[:, 0], 1):
        agent.tell(x, 0.5)
        left = math.log(np.linalg.det(V + np.outer(x, x) + slack) / np.linalg.det(S))
        V += np.outer(x, x)
        for threshold in (0.02, 0.5, 2.0, 10.0, 40.0):
            trigger, right = DeterminantTrigger(threshold), threshold / since
            if among_peers:
                right = threshold / ((since + 1) * (1 + 1.0**2))
            fired.append(left > right)
            assert agent.wants_synchronisation(trigger, among_peers) == fired[-1]
    assert any(fired)
    assert not all(fired)


def test_one_agent_without_noise_is_ridge_linear_ucb() -> None:
    rng = np.random.default_rng(3)
    theta = np.array([0.5, -0.2, 0.3, 0.1])
    s = confidence(num_agents=1, ridge=0.5, alpha=0.05, local_data="raw")
    agent = LinearUCBAgent(s)
    V, u, explored = 0.5 * np.eye(D), np.zeros(D), set()
    for t, actions in enumerate(action_sets(rng, 200)):
        ratio = np.linalg.det(V) / 0.5**D
        width = 0.5 * math.sqrt(2 * math.log(2 / 0.05) + math.log(ratio))
        ucb = naive_bounds(V, u, actions, width + math.sqrt(0.5))
        index = agent.choose(actions)[0]
        assert index == np.argmax(ucb)
        explored.add(index)
        x = actions[index]
        y = float(np.clip(x @ theta + 0.1 * rng.standard_normal(), -1, 1))
        V, u = V + np.outer(x, x), u + x * y
        agent.tell(x, y)
        if t % 60 == 59:  # what it gets back is its own sum: nothing changes
            agent.receive(agent.running_sum)
    assert len(explored) == 6
    np.testing.assert_allclose(agent.estimate, np.linalg.inv(V) @ u, rtol=1e-9)


@pytest.mark.parametrize("local_data", ["released", "raw"])
def test_between_synchronisations(local_data: Any) -> None:
    rng = np.random.default_rng(4)
    agent = LinearUCBAgent(confidence(local_data=local_data))
    others_x, others_y = action_sets(rng, 50, 1)[:, 0], rng.uniform(-1, 1, 50)
    own_x, own_y = action_sets(rng, 20, 1)[:, 0], rng.uniform(-1, 1, 20)
    for x, y in zip(own_x[:10], own_y[:10], strict=True):
        agent.tell(x, y)
    total = total_of(others_x, others_y) + agent.running_sum
    agent.receive(total)
    # Own trials before the synchronisation are in the total, and nowhere else.
    V, u = total[:D, :D] + np.eye(D), total[:D, D]
    np.testing.assert_allclose(agent.estimate, np.linalg.inv(V) @ u)
    for x, y in zip(own_x[10:], own_y[10:], strict=True):
        agent.tell(x, y)
    if local_data == "raw":
        V, u = V + own_x[10:].T @ own_x[10:], u + own_x[10:].T @ own_y[10:]
    np.testing.assert_allclose(agent.estimate, np.linalg.inv(V) @ u)
    # What it hands out are all of its trials, either way.
    np.testing.assert_allclose(agent.running_sum, total_of(own_x, own_y), atol=1e-12)


def test_private_statistics_and_choice() -> None:
    rng = np.random.default_rng(5)
    s = confidence(PRIVATE)
    agents = [LinearUCBAgent(s) for _ in range(3)]
    for agent in agents:
        for x in action_sets(rng, 200, 1)[:, 0]:
            agent.tell(x, float(rng.uniform(-1, 1)))
    releases = [ContinualRelease(PRIVATE, SeededEntropy(6, i)) for i in range(3)]
    total = np.sum(
        [r.release(1, a.running_sum) for r, a in zip(releases, agents, strict=True)],
        axis=0,
    )
    V, u = total[:D, :D] + s.bounds.shift * np.eye(D), total[:D, D]
    width = width_of(s, V)
    for agent in agents:
        agent.receive(total)
        np.testing.assert_allclose(agent.estimate, np.linalg.inv(V) @ u)
        for actions in action_sets(rng, 30):
            best = np.argmax(naive_bounds(V, u, actions, width))
            assert agent.choose(actions)[0] == best


def test_of_equal_actions_one_is_drawn() -> None:
    agent, rng = LinearUCBAgent(confidence()), np.random.default_rng(1)
    x = np.full(D, 0.5)
    chosen = [agent.choose([0.5 * x, x, x, x], rng) for _ in range(300)]
    counts = np.bincount([index for index, _ in chosen], minlength=4)
    assert counts[0] == 0
    assert counts[1:].min() > 70
    assert {propensity for _, propensity in chosen} == {1 / 3}
    assert agent.choose([0.5 * x, x], rng) == (1, 1.0)


def test_before_anything_is_known_patients_get_all_arms_of_blocks() -> None:
    arms = ("ward", "home", "clinic")
    encoder = FeatureEncoder({"age": Number(0, 110)}, blocks=arms)
    releases = ContinualSettings(5, encoder.dimension, epsilon=1.0, delta=1e-5)
    settings = LinearUCBSettings(releases, local_data="released", encoder=encoder)
    agent, rng = LinearUCBAgent(Confidence.of(settings, 3)), np.random.default_rng(2)
    offered: list[tuple[str, dict[str, Any]]] = [(arm, {}) for arm in arms]
    rows = [encoder.encode({"age": age % 110}, offered) for age in range(300)]
    chosen = [agent.choose(features, rng) for features, _ in rows]
    assert np.bincount([index for index, _ in chosen]).min() > 70
    assert {propensity for _, propensity in chosen} == {1 / 3}


@pytest.mark.parametrize("width", ["exact", "paper"])
def test_noise_beyond_its_bounds_is_shifted_away(width: Any) -> None:
    s = confidence(PRIVATE, width=width, local_data="raw")
    least = s.bounds.rho_min * (3 if width == "paper" else 1)
    total = np.diag([-1e5, 1.0, 2.0, 3.0, 4.0])
    agent = LinearUCBAgent(s)
    agent.receive(total)
    model = s.ellipsoid(total)
    smallest = np.linalg.eigvalsh(model.factor @ model.factor.T)[0]
    assert smallest == pytest.approx(least)
    (actions,) = action_sets(np.random.default_rng(7), 1)
    agent.tell(actions[agent.choose(actions)[0]], 1.0)
    assert np.all(np.isfinite(agent.estimate))


@pytest.mark.parametrize("local_data", ["released", "raw"])
def test_only_raw_trials_make_an_agent_want_to_synchronise(local_data: Any) -> None:
    rng = np.random.default_rng(8)
    agent = LinearUCBAgent(confidence(local_data=local_data))
    for x, y in zip(action_sets(rng, 30, 1)[:, 0], rng.uniform(-1, 1, 30), strict=True):
        agent.tell(x, y)
    triggers = [DeterminantTrigger(x) for x in np.geomspace(0.1, 1e6, 50)]
    wanted = [agent.wants_synchronisation(trigger) for trigger in triggers]
    assert any(wanted) == (local_data == "raw")
    assert not all(wanted)


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (np.zeros((0, D)), rf"actions=\(0, {D}\) is not allowed: .* K >= 1"),
        ([[0.0] * D, [0.9] * D], r"actions\[1\]=\[0.9, .* norm up to 1.0"),
        ([[math.nan] * D], r"actions\[0\]=\[nan"),
    ],
)
def test_bad_decision_sets(actions: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LinearUCBAgent(confidence()).choose(actions)


@pytest.mark.parametrize(
    ("action", "reward", "message"),
    [
        ([0.9] * D, 0.5, r"actions\[0\]=.* norm up to 1.0"),
        ([0.1] * D, 1.01, r"rewards\[0\]=1.01 is not allowed: .* -1.0 to 1.0"),
        ([0.1] * D, math.nan, r"rewards\[0\]=nan"),
    ],
)
def test_a_bad_trial_leaves_no_trace(action: Any, reward: float, message: str) -> None:
    agent = LinearUCBAgent(confidence(local_data="raw"))
    agent.tell([0.5] * D, 0.5)
    before = agent.running_sum.copy(), agent.estimate, agent.confidence_width
    with pytest.raises(ValueError, match=message):
        agent.tell(action, reward)
    after = agent.running_sum, agent.estimate, agent.confidence_width
    for known, now in zip(before, after, strict=True):
        np.testing.assert_array_equal(known, now)


@pytest.mark.parametrize(
    "total", [np.triu(np.ones((D + 1, D + 1))), np.full((D + 1,) * 2, np.inf)]
)
def test_bad_totals(total: FloatArray) -> None:
    with pytest.raises(ValueError, match="total="):
        LinearUCBAgent(confidence()).receive(total)

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
from flwr_fbo.privacy.spectrum import agent_bounds, paper_bounds, sum_bounds

D = 4
PRIVATE = ContinualSettings(num_releases=5, dimension=D, epsilon=1.0, delta=0.1)
PLAIN = replace(PRIVATE, epsilon=math.inf)
PUBLISHED = replace(PRIVATE, mechanism="tree", calibration="paper")


def width_of(s: Confidence, V: FloatArray) -> float:
    log_det = np.linalg.slogdet(V)[1]
    return float(s.width_at(log_det, np.linalg.eigvalsh(V)[0]))


def confidence(
    releases: ContinualSettings = PLAIN, num_agents: int = 3, **more: Any
) -> Confidence:
    usual = {"local_data": "released", "width": "exact"}
    settings = LinearUCBSettings(releases, **{**usual, **more})
    return Confidence.of(settings, num_agents)


def looking(exact: Confidence) -> Confidence:
    return replace(exact, settings=replace(exact.settings, width="observed"))


def action_sets(rng: np.random.Generator, count: int, size: int = 6) -> FloatArray:
    x = rng.standard_normal((count, size, D))
    norms = np.linalg.norm(x, axis=-1, keepdims=True)
    return np.asarray(x / norms * rng.uniform(0.2, 1.0, norms.shape))


def total_of(actions: FloatArray, rewards: FloatArray) -> FloatArray:
    z = np.column_stack([actions, rewards])
    return np.asarray(z.T @ z)


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


def test_exact_width() -> None:
    s = confidence(
        PRIVATE, num_agents=7, noise_scale=0.3, parameter_norm=2.0, alpha=0.1
    )
    bounds = sum_bounds(PRIVATE, 0.05, 7)
    assert s.bounds == bounds
    V = np.diag([1e3, 2e3, 3e3, 4e3])
    log_ratio = math.log(np.linalg.det(V)) - 4 * math.log(bounds.rho_min)
    expected = 0.3 * math.sqrt(2 * math.log(2 * 7 / 0.1) + log_ratio)
    expected += 2.0 * math.sqrt(bounds.rho_max) + bounds.kappa
    assert width_of(s, V) == pytest.approx(expected)


def test_observed_width() -> None:
    values: dict[str, Any] = {"parameter_norm": 2.0, "alpha": 0.1}
    exact = confidence(PRIVATE, num_agents=7, **values)
    observed = looking(exact)
    bounds = observed.bounds
    assert bounds == exact.bounds == sum_bounds(PRIVATE, 0.05, 7)
    assert bounds.kappa == pytest.approx(bounds.cross_norm / math.sqrt(bounds.rho_min))
    most = 2.0 * bounds.rho_max + bounds.cross_norm
    prior = 2.0 * math.sqrt(bounds.rho_max) + bounds.kappa
    for least in (1.0, 0.99 * (most / prior) ** 2):  # nothing is gained yet
        V = np.diag([least, 1e9, 1e9, 1e9])
        assert width_of(observed, V) == width_of(exact, V)
    V = np.diag([1e6, 1e9, 1e9, 1e9])
    expected = width_of(exact, V) - prior + most / 1e3
    assert width_of(observed, V) == pytest.approx(expected)


def test_observed_width_is_never_above_the_exact_one() -> None:
    rng = np.random.default_rng(12)
    exact = confidence(PRIVATE)
    observed = looking(exact)
    for scale in np.geomspace(1e-3, 1e6, 50):
        x = scale * rng.standard_normal((6, D))
        model = exact.ellipsoid(total_of(x, rng.uniform(-1, 1, 6)))
        widths = [
            float(s.width_at(model.log_det, model.least_eigenvalue))
            for s in (observed, exact)
        ]
        assert widths[0] <= widths[1]
    assert widths[0] < 0.9 * widths[1]


def test_noise_and_shift_do_to_theta_what_the_observed_width_allows() -> None:
    """Where it is nearly an equality: least data in the direction of theta."""
    releases = replace(PRIVATE, dimension=2)
    s = confidence(releases, num_agents=3, alpha=0.2, width="observed")
    bounds, theta = s.bounds, np.array([1.0, 0.0])
    allowed = bounds.rho_max + bounds.cross_norm
    shares = []
    for seed in range(100):
        mechanisms = [
            ContinualRelease(releases, SeededEntropy(seed, i)) for i in range(3)
        ]
        for k in range(1, 6):
            noise = np.sum([m.release(k, np.zeros((3, 3))) for m in mechanisms], axis=0)
            R, h = noise[:2, :2] + bounds.shift * np.eye(2), noise[:2, 2]
            V = np.diag([40.0, 1e6]) * bounds.rho_max + R
            error = h - R @ theta
            length = math.sqrt(error @ np.linalg.inv(V) @ error)
            shares.append(length * math.sqrt(np.linalg.eigvalsh(V)[0]) / allowed)
    runs = np.array(shares).reshape(100, 5).max(axis=1)
    assert np.mean(runs > 1) <= 0.1  # half of alpha
    assert runs.max() > 0.75


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


@pytest.mark.parametrize("releases", [PRIVATE, PUBLISHED], ids=["exact", "paper"])
def test_paper_width(releases: ContinualSettings) -> None:
    s = confidence(releases, num_agents=7, width="paper", alpha=0.1)
    of_agent = paper_bounds if releases is PUBLISHED else agent_bounds
    bounds = of_agent(releases, 0.1, 7)
    assert s.bounds == bounds
    V = 7 * bounds.rho_max * np.diag([1.0, 2.0, 3.0, 4.0])
    log_ratio = math.log(np.linalg.det(V)) - 4 * math.log(7 * bounds.rho_min)
    expected = 0.5 * math.sqrt(2 * math.log(2 / 0.1) + log_ratio)
    expected += 7 * math.sqrt(bounds.rho_max) + 7 * bounds.kappa
    assert width_of(s, V) == pytest.approx(expected)
    # Algorithm 1 begins with M rho_min I (line 1); each release brings its own shift.
    for total, least in (
        (np.zeros((D + 1, D + 1)), 7 * bounds.rho_min),
        (np.eye(D + 1), 1 + 7 * bounds.shift),
    ):
        factor = s.ellipsoid(total).factor
        np.testing.assert_allclose(factor @ factor.T, least * np.eye(D))


def test_the_authors_width_is_a_hundredth_of_the_papers() -> None:
    V = 1e6 * np.diag([1.0, 2.0, 3.0, 4.0])
    paper, authors = (confidence(PUBLISHED, width=w) for w in ("paper", "authors"))
    assert width_of(authors, V) == pytest.approx(0.01 * width_of(paper, V))
    assert authors.bounds == paper.bounds
    shifted, also = (s.ellipsoid(np.zeros((D + 1, D + 1))) for s in (paper, authors))
    assert np.array_equal(shifted.factor, also.factor)


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


def test_without_noise_the_ridge_takes_its_place() -> None:
    s = confidence(ridge=0.25)
    V = np.diag([1.0, 2.0, 3.0, 4.0])
    volume = math.log(np.linalg.det(V) / 0.25**D)
    expected = 0.5 * math.sqrt(2 * math.log(2 * 3 / 0.01) + volume) + math.sqrt(0.25)
    assert width_of(s, V) == pytest.approx(expected)


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


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_agents", 0),
        ("alpha", math.nan),
        ("width", "wide"),
    ],
)
def test_bad_settings(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{field}={value!r} is not allowed"):
        confidence(**{field: value})

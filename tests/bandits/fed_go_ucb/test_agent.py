"""Fed-GO-UCB: agent, server and simulator against formulas with explicit inverses."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.random import Purpose, generator
from flwr_fbo.bandits.fed_go_ucb.agent import FedGOUCBAgent
from flwr_fbo.bandits.fed_go_ucb.server import FedGOUCBServer
from flwr_fbo.bandits.fed_go_ucb.settings import AgentReply, FedGOUCBSettings
from flwr_fbo.lab.simulation.neural_bandits import (
    LinearModel,
    NeuralBanditSimulation,
    Sharing,
)
from flwr_fbo.lab.tasks.nonlinear_bandit import FunctionBanditTask
from flwr_fbo.models.network import Network
from tests.support.neural_agents import MODEL, SETTINGS, STEPS, T0, N, _agent, points
from tests.support.servers import server_of

TASK = FunctionBanditTask(num_actions=12)


def _started(slot: int = 0, count: int = 0, **fields: Any) -> FedGOUCBAgent:
    agent = _agent(slot, replace(SETTINGS, **fields))
    agent.start(SETTINGS.regression.initial(MODEL, 7))
    for x, y in zip(*points(count, slot), strict=True):
        agent.tell(x, y)
    return agent


# Settings


# Phase I


def test_a_server_says_which_gradients_are_too_long(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = server_of(SETTINGS, MODEL, 7)
    server.receive_gradients({4: np.full(MODEL.num_parameters, 1e20)})
    assert "agent 4: its gradient is" in caplog.text
    assert "step=0.1 is too large" in caplog.text
    assert np.linalg.norm(server.regression.w) < 1e4


def test_an_agent_without_data_has_no_gradient() -> None:
    with pytest.raises(RuntimeError, match="phase I only, and with data"):
        _agent().regression_message(SETTINGS.regression.initial(MODEL, 7))
    with pytest.raises(RuntimeError, match="phase I only"):
        _started(count=2).regression_message(SETTINGS.regression.initial(MODEL, 7))


def test_an_agent_that_misses_the_end_of_phase_one_comes_in_later() -> None:
    agents, server = [_started(0, 4), _agent(1)], server_of(SETTINGS, MODEL, 7)
    _synchronise(server, agents)
    assert not agents[1].wants_synchronisation()
    agents[1].tell(*(a[0] for a in points(1)))  # explores, still
    agents[1].start(SETTINGS.regression.initial(MODEL, 7))
    X = points(50, 9)[0]
    first, second = (agent._upper_bounds(X) for agent in agents)
    assert np.array_equal(first, second)


def test_a_bad_start_is_refused() -> None:
    agent = _agent()
    for w0 in (np.zeros(3), np.full(MODEL.num_parameters, np.nan)):
        with pytest.raises(ValueError, match="w0="):
            agent.start(w0)
    agent.start(np.zeros(MODEL.num_parameters))
    with pytest.raises(RuntimeError, match="begun already"):
        agent.start(np.zeros(MODEL.num_parameters))


# Phase II


def _statistics(
    w0: FloatArray, x: FloatArray, y: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return Sigma and b as the paper has them, with the parentheses."""
    values, G = MODEL.values_and_gradients(w0, x)
    Sigma = SETTINGS.ridge * np.eye(len(w0)) + G.T @ G
    return Sigma, SETTINGS.ridge * w0 + G.T @ (G @ w0 + y - values)


def _linear_bounds(w0: FloatArray, x: FloatArray, y: FloatArray, X: FloatArray) -> Any:
    Sigma, b = _statistics(w0, x, y)
    values, G = MODEL.values_and_gradients(w0, X)
    estimate, norms = np.linalg.solve(Sigma, b), np.linalg.solve(Sigma, G.T)
    width = np.sqrt(SETTINGS.beta * np.einsum("ij,ji->i", G, norms))
    return values + G @ (estimate - w0) + width


def test_the_choice_is_that_of_explicit_inverses() -> None:
    agent = _started(count=9)
    assert agent.w0 is not None
    X = points(50, 9)[0]
    expected = _linear_bounds(agent.w0, *points(9), X)
    np.testing.assert_allclose(agent._upper_bounds(X), expected, rtol=1e-9)
    assert agent.choose(X) == expected.argmax()


def test_line_3_in_closed_form_is_a_point_of_least_squares_ball() -> None:
    """The largest reward in the ball of eq. 4, around the least squares of eq. 5."""
    agent, X, (x, y) = _started(count=9), points(50, 9)[0], points(9)
    w0 = agent.w0
    assert w0 is not None
    values, G = MODEL.values_and_gradients(w0, x)
    # min lambda |w - w0|^2 + sum (g'(w - w0) + f(x; w0) - y)^2, by no normal equations.
    rows = np.vstack([np.sqrt(SETTINGS.ridge) * np.eye(len(w0)), G])
    right = np.append(np.zeros(len(w0)), y - values)
    w_hat = w0 + np.linalg.lstsq(rows, right, rcond=None)[0]
    estimate = w0 + agent._ellipsoid()[0].estimate
    np.testing.assert_allclose(estimate, w_hat, rtol=0, atol=1e-10)
    bounds = agent._upper_bounds(X)
    values, gradients = MODEL.values_and_gradients(w0, X)
    root = np.linalg.qr(rows)[1]  # Sigma = R'R
    for value, g, bound in zip(values, gradients, bounds, strict=True):
        # The best w of the ball, and its reward by the network linearised at w0.
        step = np.linalg.solve(root.T, g)
        step *= np.sqrt(SETTINGS.beta) / np.linalg.norm(step)
        w = w_hat + np.linalg.solve(root, step)
        assert np.linalg.norm(root @ (w - w_hat)) ** 2 <= SETTINGS.beta * (1 + 1e-9)
        assert value + g @ (w - w0) == pytest.approx(bound, rel=1e-9, abs=1e-10)
    rng = np.random.default_rng(0)
    others = rng.standard_normal((2000, len(w0)))
    others *= np.sqrt(SETTINGS.beta) / np.linalg.norm(others, axis=1)[:, None]
    w = w_hat + np.linalg.solve(root, others.T).T
    assert (values + (w - w0) @ gradients.T <= bounds + 1e-10).all()


def test_agents_that_believe_the_same_draw_parameters_of_their_own() -> None:
    agents = [
        _started(slot, count, exploration="sampling")
        for slot, count in ((0, 9), (0, 9), (1, 0))
    ]
    X, (x, y) = points(50, 9)[0], points(9)
    agents[2].receive(agents[0].message().values)  # what the first one has seen
    first, again, other = (agent._upper_bounds(X) for agent in agents)
    assert np.array_equal(first, again)
    w0 = agents[0].w0
    assert w0 is not None
    Sigma, b = _statistics(w0, x, y)
    values, G = MODEL.values_and_gradients(w0, X)
    draws = []
    for agent in agents[1:]:
        key = (agent._slot, agent.num_in_sums, Purpose.SURROGATE_SAMPLE)
        z = generator(7, *key).standard_normal(len(w0))
        spread = np.linalg.solve(np.linalg.cholesky(Sigma).T, z)
        w = np.linalg.solve(Sigma, b) + np.sqrt(SETTINGS.beta) * spread
        draws.append(values + G @ (w - w0))
    np.testing.assert_allclose([first, other], draws, rtol=1e-9)
    assert agents[0].choose(X) == draws[0].argmax()
    agents[0].tell(X[0], 0.0)  # after each trial another draw
    assert not np.allclose(agents[0]._upper_bounds(X), first)


def test_refined_bounds_are_values_within_the_ball_and_no_lower() -> None:
    X = points(50, 9)[0]
    first, many = (_started(count=9, num_refinements=k) for k in (1, 8))
    assert (many._upper_bounds(X) >= first._upper_bounds(X)).all()
    # In a ball so small the network is linear.
    small = [_started(num_refinements=k, beta=1e-12) for k in (0, 3)]
    linear, refined = (agent._upper_bounds(X) for agent in small)
    np.testing.assert_allclose(refined, linear, rtol=0, atol=1e-10)
    assert small[0].w0 is not None
    assert (linear - MODEL.values(small[0].w0, X) > 1e-6).all()


def test_after_a_synchronisation_all_believe_in_all_data() -> None:
    agents = [_started(slot, count) for slot, count in enumerate((4, 0, 6))]
    server = server_of(SETTINGS, MODEL, 7)
    _synchronise(server, agents)
    x, y = (np.concatenate(a) for a in zip(points(4, 0), points(6, 2), strict=True))
    X = points(50, 9)[0]
    for agent in agents:
        assert agent.w0 is not None
        assert agent.num_since == 0
        expected = _linear_bounds(agent.w0, x, y, X)
        np.testing.assert_allclose(agent._upper_bounds(X), expected, rtol=1e-9)


def _synchronise(
    server: FedGOUCBServer,
    agents: list[FedGOUCBAgent],
    present: Callable[[int], bool] = lambda slot: True,
) -> None:
    slots = [slot for slot in range(len(agents)) if present(slot)]
    server.receive_sums({slot: agents[slot].message() for slot in slots})
    for slot in slots:
        agents[slot].receive(server.total, server.num_included(slot))


def test_a_lost_download_spoils_nothing() -> None:
    agents = [_started(slot, 3) for slot in range(N)]
    server = server_of(SETTINGS, MODEL, 7)
    late = agents[0].message()
    server.receive_sums({0: late})  # and the answer is lost
    agents[0].tell(*(a[0] for a in points(1, 5)))
    _synchronise(server, agents, lambda slot: slot != 1)
    server.receive_sums({0: late})  # comes again
    _synchronise(server, agents)
    expected = sum(agent.message().values for agent in agents)
    np.testing.assert_allclose(server.total, expected)


def test_what_was_told_since_a_message_is_not_lost() -> None:
    agent, server = _started(count=3), server_of(SETTINGS, MODEL, 7)
    server.receive_sums({0: agent.message()})
    x, y = points(2, 5)
    for point, reward in zip(x, y, strict=True):
        agent.tell(point, reward)
    agent.receive(server.total, server.num_included(0))
    assert agent.num_since == 2
    expected = _started(count=3)
    for point, reward in zip(x, y, strict=True):
        expected.tell(point, reward)
    X = points(50, 9)[0]
    np.testing.assert_allclose(agent._upper_bounds(X), expected._upper_bounds(X))


@pytest.mark.parametrize("message", [None, AgentReply(1, np.zeros((3, 2)))])
def test_what_is_no_sum_is_left_out(
    message: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server, agent = server_of(SETTINGS, MODEL, 7), _started(count=2)
    server.receive_sums({0: agent.message()})
    server.receive_sums({0: message, 1: message})
    assert np.array_equal(server.total, agent.message().values)
    assert "agent 1: its message is not a valid sum" in caplog.text


def test_a_broken_total_is_refused() -> None:
    agent = _started(count=2)
    total = agent.message().values
    for bad in (
        np.full_like(total, np.nan),
        total[:-1],
        total + np.triu(total[:-1])[0],
    ):
        with pytest.raises(ValueError, match="total="):
            agent.receive(bad, 0)
    with pytest.raises(ValueError, match="num_included=3 is not allowed: from 0 to 2"):
        agent.receive(total, 3)


def test_the_trigger_is_the_paper_s() -> None:
    agent, server = _started(count=4), server_of(SETTINGS, MODEL, 7)
    _synchronise(server, [agent])
    fired = False
    x, y = points(40, 4)
    for t in range(40):
        assert agent.wants_synchronisation() == fired
        agent.tell(x[t], y[t])
        assert agent.w0 is not None
        old = np.concatenate([points(4)[0], x[: t + 1]])
        dets = [
            np.linalg.slogdet(_statistics(agent.w0, old[:n], np.zeros(n))[0])[1]
            for n in (4, len(old))
        ]
        fired = (t + 1) * (dets[1] - dets[0]) > SETTINGS.threshold
    assert fired


def test_a_reward_that_is_not_finite_is_refused() -> None:
    for agent, bad in ((_agent(), np.nan), (_started(), np.inf)):
        with pytest.raises(ValueError, match="reward="):
            agent.tell(np.zeros(6), bad)
        with pytest.raises(ValueError, match="action="):
            agent.tell(np.full(6, bad), 0.0)
        assert agent.num_evaluations == 0


@dataclass(frozen=True)
class _Broken(Network):
    """A network that is not finite where the first coordinate is above a half."""

    def values_and_gradients(
        self, w: FloatArray, x: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        values, gradients = super().values_and_gradients(w, x)
        gradients[x[:, 0] > 0.5] = np.nan
        return values, gradients


def test_actions_where_the_model_is_not_finite_are_not_chosen() -> None:
    settings = replace(SETTINGS, num_exploration=0, num_refinements=2)
    agent = FedGOUCBAgent(settings, _Broken(6, 5), 7, 0)
    X = points(20)[0]
    assert X[agent.choose(X), 0] <= 0.5
    with pytest.raises(FloatingPointError, match="not finite at any"):
        agent.choose(X[X[:, 0] > 0.5])
    with pytest.raises(FloatingPointError, match="not finite at action="):
        agent.tell(np.ones(6), 0.0)
    assert agent.num_evaluations == 0


@pytest.mark.parametrize("phase", ["I", "II"])
def test_an_agent_goes_on_from_its_state(phase: str) -> None:
    def make() -> FedGOUCBAgent:
        return _agent(1) if phase == "I" else _started(1)

    first, second = make(), make()
    x, y = points(8, 3)
    for t in range(5):
        first.tell(x[t], y[t])
        if phase == "II" and t == 2:
            first.receive(first.message().values, 3)
    restored = _agent(1)
    restored.load_state_dict(first.state_dict())
    second.load_state_dict(first.state_dict())
    for t in range(5, 8):
        for agent in (first, second, restored):
            agent.tell(x[t], y[t])
    for other in (second, restored):
        assert other.choose(x) == first.choose(x)
        for name, array in first.state_dict().items():
            assert np.array_equal(array, other.state_dict()[name]), name
    if phase == "II":
        assert np.array_equal(first._upper_bounds(x), restored._upper_bounds(x))


def test_a_server_goes_on_from_its_state() -> None:
    first, second = (server_of(SETTINGS, MODEL, 7) for _ in range(2))
    gradient = np.ones(MODEL.num_parameters)
    first.receive_gradients({0: gradient})
    first.receive_sums({1: _started(1, 3).message()})
    second.load_state_dict(first.state_dict())
    for server in (first, second):
        server.receive_gradients({0: gradient})
    assert np.array_equal(first.regression.w, second.regression.w)
    assert np.array_equal(first.total, second.total)
    assert second.num_included(1) == 3


# The simulator


def _simulation(sharing: Sharing = "triggered", **fields: Any) -> Any:
    settings = replace(SETTINGS, **fields)
    return NeuralBanditSimulation(settings, TASK, N, 8, sharing, model=MODEL)


@pytest.mark.parametrize(
    ("keep", "sharing"), [("last", "triggered"), ("best", "always")]
)
def test_the_counts_are_those_of_the_formulas(keep: Any, sharing: Sharing) -> None:
    regression = replace(SETTINGS.regression, keep=keep)
    run = _simulation(sharing, regression=regression).run(3)
    size = MODEL.num_parameters
    phase_one = 2 * STEPS * N * size + N * size + (keep == "best") * STEPS * N
    assert run.num_scalars[: T0 - 1].tolist() == [0] * (T0 - 1)
    assert run.num_scalars[T0 - 1] == phase_one
    once = 2 * N * (size**2 + size)
    assert run.num_scalars[-1] == phase_one + run.num_synchronisations * once
    assert run.num_synchronisations > 0
    if sharing == "always":
        assert run.num_synchronisations == N * (8 - T0)


def test_a_linear_model_needs_no_phase_one() -> None:
    simulation = _simulation().with_linear_model()
    assert simulation.model == LinearModel(6)
    assert simulation.settings.threshold == pytest.approx(8 * np.log(24) / (7 * N))
    run = replace(simulation, settings=replace(simulation.settings, threshold=1)).run(3)
    assert run.num_scalars[-1] == run.num_synchronisations * 2 * N * (49 + 7)
    assert run.num_synchronisations > 0


def test_who_shares_nothing_sends_nothing() -> None:
    run = _simulation("never").run(3)
    assert run.num_scalars[-1] == run.num_synchronisations == 0
    assert (run.regret >= 0).all()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_rounds": 1}, "num_rounds=1 is not allowed: at least num_exploration"),
        ({"model": Network(5)}, r"model\.dimension=5 is not allowed: 6"),
        ({"sharing": "sometimes"}, "sharing='sometimes'"),
    ],
)
def test_a_bad_simulation_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(_simulation(), **fields)


@pytest.mark.slow
@pytest.mark.no_cover  # faster; others run the same lines
def test_on_hartmann_it_is_far_ahead_of_a_linear_model() -> None:
    task, settings = FunctionBanditTask(), FedGOUCBSettings()
    ours = NeuralBanditSimulation(settings, task, 20, 100, model=Network(6))
    linear = ours.with_linear_model()
    linear = replace(linear, settings=replace(linear.settings, ridge=0.1, beta=0.01))
    run, other = ours.run(0), linear.run(0)
    assert run.regret.sum() < 0.25 * other.regret.sum()
    once = 2 * 20 * (201**2 + 201)
    assert run.num_scalars[-1] < 0.1 * 20 * 99 * once  # of One-GO-UCB

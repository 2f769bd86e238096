"""Regression by many: steps of the pooled data, noise, and when it stops."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flwr_fbo.bandits.fed_go_ucb.agent import FedGOUCBAgent
from flwr_fbo.models.langevin_regression import LangevinDynamics, LangevinSettings
from tests.support.neural_agents import MODEL, SETTINGS, T0, N, _agent, points
from tests.support.servers import server_of


@pytest.mark.parametrize(
    "fields",
    [
        {"num_iterations": 0},
        {"keep": "w"},
        {"start": "one"},
    ],
)
def test_bad_regressions_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(fields))}="):
        LangevinSettings(**fields)


def _explored(count: int = T0) -> list[FedGOUCBAgent]:
    agents = [_agent(slot) for slot in range(N)]
    for agent in agents:
        for x, y in zip(*points(count, agent.num_evaluations), strict=True):
            agent.tell(x, y)
    return agents


def test_the_regression_s_message_is_the_gradient_of_the_loss() -> None:
    settings = replace(SETTINGS, regression=LangevinSettings(1, keep="best"))
    agent = _agent(settings=settings)
    for x, y in zip(*points(3), strict=True):
        agent.tell(x, y)
    w = SETTINGS.regression.initial(MODEL, 7)
    message = agent.regression_message(w)
    for j in range(len(w)):
        shift = np.zeros(len(w))
        shift[j] = 1e-6
        up, down = (agent.regression_message(w + s)[-1] for s in (shift, -shift))
        assert message[j] == pytest.approx((up - down) / 2e-6, abs=1e-6)


def test_a_step_is_that_of_the_pooled_data() -> None:
    agents, server = _explored(), server_of(SETTINGS, MODEL, 7)
    pooled = _agent()
    for _ in range(N):
        for x, y in zip(*points(T0), strict=True):
            pooled.tell(x, y)
    alone = LangevinDynamics(SETTINGS.regression, server.regression.w, 7)
    while not server.regression.is_done:
        w = server.regression.w
        server.receive_gradients(
            {slot: agent.regression_message(w) for slot, agent in enumerate(agents)}
        )
        alone.advance(pooled.regression_message(alone.w))
    np.testing.assert_allclose(server.w0, alone.result, rtol=1e-12)


def test_noise_has_the_temperature_s_size() -> None:
    settings = LangevinSettings(1, step=0.2, inverse_temperature=10.0)
    dynamics = LangevinDynamics(settings, np.zeros(20_000), 0)
    dynamics.advance(np.ones(20_000))
    assert dynamics.w.mean() == pytest.approx(-0.2, abs=0.01)
    assert dynamics.w.std() == pytest.approx(np.sqrt(2 * 0.2 / 10), rel=0.02)


@pytest.mark.parametrize(("keep", "expected"), [("last", 4), ("best", 1)])
def test_a_regression_stops_once_the_loss_no_longer_falls(
    keep: Any, expected: int
) -> None:
    settings = LangevinSettings(9, keep=keep, patience=2)
    dynamics = LangevinDynamics(settings, np.zeros(2), 0)
    iterates = []
    for loss in (3.0, 1.0, 2.0, 1.0, 0.0):
        if dynamics.is_done:
            break
        iterates.append(dynamics.w)
        dynamics.advance(np.ones(2), loss)
    assert len(iterates) == 4  # of iterates 2 and 3 neither was better than 1
    iterates.append(dynamics.w)
    assert np.array_equal(dynamics.result, iterates[expected])
    again = LangevinDynamics(settings, np.zeros(2), 0)
    again.load_state_dict(dynamics.state_dict())
    assert again.is_done


def test_dead_agents_and_broken_gradients_are_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agents = _explored()
    server, other = (server_of(SETTINGS, MODEL, 7) for _ in range(2))
    good = agents[1].regression_message(server.regression.w)
    broken = good.copy()
    broken[3] = np.nan
    server.receive_gradients({0: broken, 1: good, 2: good[:-1]})
    other.receive_gradients({1: good})
    assert np.array_equal(server.regression.w, other.regression.w)
    assert "agent 0: no gradient in step 1" in caplog.text
    assert "agent 2: no gradient in step 1" in caplog.text


def test_without_a_gradient_nothing_is_lost() -> None:
    server = server_of(SETTINGS, MODEL, 7)
    before = server.regression.w
    for messages in ({}, {0: np.full(MODEL.num_parameters, np.inf)}, {1: None}):
        with pytest.raises(FloatingPointError, match="Step 1 of phase I: none of"):
            server.receive_gradients(messages)
    assert server.regression.num_steps == 0
    assert np.array_equal(server.regression.w, before)


def test_a_regression_that_diverges_says_so() -> None:
    before = np.zeros(3)
    regression = LangevinDynamics(LangevinSettings(3, step=9.0), before, 7)
    with pytest.raises(FloatingPointError, match=r"step=9\.0 is too large"):
        regression.advance(np.full(3, 1e308))
    assert np.array_equal(regression.w, before)
    assert regression.num_steps == 0

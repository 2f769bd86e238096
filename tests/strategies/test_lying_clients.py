"""Clients that lie: nothing that they answer stops the others."""

import logging
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flwr_fbo import FedGOUCB, FedUCB, InProcessGrid
from flwr_fbo._compat import to_array_record
from flwr_fbo.bandits.fed_go_ucb.agent import FedGOUCBAgent
from flwr_fbo.bandits.fed_go_ucb.settings import FedGOUCBSettings
from flwr_fbo.lab.simulation.neural_bandits import LinearModel
from flwr_fbo.models.network import Network
from flwr_fbo.study.codec import is_raw_sum, is_release
from tests.adversaries import lying_clients
from tests.support import fed_go_ucb as neural
from tests.support.bandit_sites import (
    ACTIONS,
    NOISE_SEED,
    NOT_PRIVATE,
    RELEASES,
    SETTINGS,
    M,
    Sites,
    fed_ucb,
)
from tests.support.servers import server_of

_LIAR = 2


# Of the others' refusals a test of their own is fast: below, and beside the strategies.
FAST = {
    "DPFTSDE",
    "FedVote, open",
    "FedWarmStart",
    "FedUCB, open",
    "DecentralizedFedUCB, open",
    "FedGOUCB",
    "FedGOUCB, open",
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in FAST else pytest.mark.slow)
        for name in lying_clients.CASES
    ],
)
def test_others_play_on_and_refused_replies_change_nothing(name: str) -> None:
    """A study a kind; the command of `lying_clients` has 5,000 replies per strategy."""
    seed = list(lying_clients.CASES).index(name)  # other lies for each
    done, wrong = lying_clients.fuzz(name, seed, 1)
    assert done >= 1
    assert wrong == []


def test_the_fuzzer_sees_a_lie_that_is_taken() -> None:
    """Else it would find nothing, whatever happens."""
    case = lying_clients.CASES["FedUCB, open"]
    rng, lies = np.random.default_rng(0), lying_clients.WELL_FORMED
    silent = lying_clients.play(case, 0, (_LIAR,), None)
    for name in ("zeros", "ten times"):
        told = lying_clients.play(case, 0, (_LIAR,), lambda c: lies[name](rng, c))  # noqa: B023
        assert told.num_lies
        assert (told.digest.digest() == silent.digest.digest()) == (name == "zeros")


def test_the_fuzzer_sees_a_message_that_is_released() -> None:
    """A pioneer's that is turned round is; one that is a little too long is not."""
    case = lying_clients.CASES["FedWarmStart"]
    rng = np.random.default_rng(0)
    silent = lying_clients.play(case, 0, (_LIAR,), None).digest.digest()
    lies = {**lying_clients.WELL_FORMED, **lying_clients.LONG}
    taken = set()
    for name in ("negated", "ten times", "norm 1.0000001"):
        told = lying_clients.play(case, 0, (_LIAR,), lambda c: lies[name](rng, c))  # noqa: B023
        assert told.num_lies
        if told.digest.digest() != silent:
            taken.add(name)
    assert taken == {"negated"}


class Liars(InProcessGrid):
    """Nodes of which one answers what it is told to, in place of any arrays."""

    lies: Iterator[Any]

    def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
        replies = list(super().send_and_receive(messages, timeout=timeout))
        for reply in replies:
            assert not reply.has_error(), reply.error.reason
            arrays = reply.content.array_records.get("arrays")
            if arrays and reply.metadata.src_node_id == list(self.contexts)[_LIAR]:
                reply.content["arrays"] = to_array_record([next(self.lies)])
        return replies


class LyingSites(Liars, Sites):
    """The same with journals."""


def _linear(tmp_path: Path, releases: Any, lies: Any) -> tuple[FedUCB, LyingSites]:
    sites = LyingSites(tmp_path)
    sites.lies = iter(lies)
    settings = replace(SETTINGS, releases=releases, local_data="raw")
    strategy = fed_ucb(settings, interval=0.0, noise_seed=NOISE_SEED)
    result = strategy.start(sites)  # which needs an estimate of its own
    assert [r.answered for r in result.rounds] == [M] * 7
    ticket = sites.policy(0).choose(ACTIONS).ticket
    sites.policy(0).reward(ticket, 1.0)
    assert sites.policy(0).choose(ACTIONS).ticket == ticket + 1
    return strategy, sites


@pytest.mark.parametrize(
    ("epsilon", "highest", "sign"),
    [(math.inf, 1e6, 1.0), (math.inf, 1.0, -1.0), (30.0, 1e6, -1.0)],
)
def test_the_largest_sums_stop_nobody(
    tmp_path: Path,
    epsilon: float,
    highest: float,
    sign: float,
    caplog: pytest.LogCaptureFixture,
) -> None:
    releases = replace(RELEASES, epsilon=epsilon, reward_range=(-highest, highest))
    largest = releases.largest_entries
    lies = [sign * 2 * largest, sign * largest, sign * largest]
    strategy, _ = _linear(tmp_path, releases, lies)
    # Without noise nothing negative is a sum.
    taken = 0 if epsilon == math.inf and sign < 0 else 2
    assert strategy.server.num_releases == [3, 3, taken, 3]
    assert len([m for m in caplog.messages if f"agent {_LIAR}" in m]) >= 3 - taken


def test_a_total_of_no_use_is_left_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where actions may be long, what may be a sum may hide all others in rounding."""
    releases = replace(NOT_PRIVATE, max_action_norm=1e6, reward_range=(-1e6, 1e6))
    v = np.random.default_rng(1).uniform(-1, 1, 4)
    lie = releases.largest_entries * np.outer(v, v)
    caplog.set_level(logging.WARNING, "flwr.fbo")
    strategy, sites = _linear(tmp_path, releases, [np.zeros((4, 4)), lie, lie])
    assert strategy.server.num_releases == [3, 3, 3, 3]
    assert "The agents' total is ignored" in caplog.text
    good = strategy.server.ledger[0].vectors
    with sites.policy(0)._held() as bandit:
        np.testing.assert_array_equal(bandit._state["total"], good)


def test_what_may_be_a_release() -> None:
    rng = np.random.default_rng(0)
    z = rng.uniform(-0.5, 0.5, (1000, 4))
    honest = z.T @ z
    for releases in (NOT_PRIVATE, RELEASES):
        for sum_ in (honest, np.zeros((4, 4)), np.outer(z[0], z[0])):
            assert is_release(sum_, releases)
        assert not is_release(2 * releases.largest_entries, releases)
        assert not is_release(np.triu(honest), releases)
    assert is_release(-honest, RELEASES)  # noise could have made it
    assert not is_release(-honest, NOT_PRIVATE)
    for large in (150.0, 1000.0):  # with a trace above zero, and below
        assert not is_release(honest - np.diag([0, large, 0, 0]), NOT_PRIVATE)


@pytest.mark.parametrize("num_seen", [3, 10_000])
def test_rounding_does_not_refuse_an_honest_sum(num_seen: int) -> None:
    """Of gradients that are alike, added one after another."""
    rng, size = np.random.default_rng(1), 40
    common, total = rng.standard_normal(size), np.zeros((size + 1, size))
    for _ in range(num_seen):
        g = 1e3 * (common + 1e-9 * rng.standard_normal(size))
        total = total + np.outer(np.append(g, rng.standard_normal()), g)
    assert is_raw_sum(total, total.shape)


def _neural(settings: FedGOUCBSettings, lies: Any) -> tuple[FedGOUCB, Any]:
    grid = Liars(neural.APP, neural.N)
    grid.lies = iter(lies)
    strategy = neural.strategy_of(settings)
    return strategy, strategy.start(grid)


def test_a_negative_sum_is_refused() -> None:
    settings = replace(neural.SETTINGS, num_exploration=0)
    size = neural.D_W
    lie = np.vstack([np.zeros((size, size)), np.ones(size)])
    lie[0, 0] = -1000.0
    strategy, result = _neural(settings, [lie] * 50)
    assert result.num_synchronisations > 0
    assert strategy.server.heard[_LIAR] == 0
    assert all(heard > 0 for heard in strategy.server.heard[:_LIAR])


@pytest.mark.parametrize("size", [1e29, 1e300])
def test_a_long_gradient_ends_no_study(
    size: float, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "flwr.fbo")
    lies = [np.full(neural.D_W, size)] * neural.STEPS
    lies += [np.zeros((neural.D_W + 1, neural.D_W))] * 50
    _, result = _neural(neural.SETTINGS, lies)
    assert [r.answered for r in result.rounds] == [neural.N] * len(result.rounds)
    assert np.isfinite(result.estimate).all()
    said = "no gradient in step" if size > 1e100 else "long, and counts as"
    assert said in caplog.text


def test_honest_gradients_are_as_long_as_they_are() -> None:
    server = server_of(neural.SETTINGS, neural.MODEL, neural.SEED)
    start, gradient = server.regression.w.copy(), np.full(neural.D_W, 3.0)
    server.receive_gradients({0: gradient})
    other = server_of(neural.SETTINGS, neural.MODEL, neural.SEED)
    other.receive_gradients({0: 0 * gradient})
    step = neural.REGRESSION.step
    moved = server.regression.w - other.regression.w
    np.testing.assert_allclose(moved, -step * gradient, rtol=1e-9)
    assert len(start) == neural.D_W


def test_a_loss_is_never_negative() -> None:
    settings = replace(
        neural.SETTINGS, regression=replace(neural.REGRESSION, keep="best")
    )
    server = server_of(settings, neural.MODEL, neural.SEED)
    good, lie = np.ones(neural.D_W + 1), np.ones(neural.D_W + 1)
    lie[-1] = -1.0
    assert server.receive_gradients({0: good, 1: lie}) == [0]


def test_an_agent_leaves_aside_an_estimate_out_of_bounds() -> None:
    """As good as any other sum to look at, but the network is finite nowhere there."""
    model = Network(2, width=3)
    settings = FedGOUCBSettings(
        num_exploration=0, exploration="optimism", num_refinements=2
    )
    agent, size = FedGOUCBAgent(settings, model, 0, 0), model.num_parameters
    actions = np.eye(2)
    agent.tell(actions[0], 1.0)
    before = agent.choose(actions)
    total = np.vstack([np.eye(size), np.full(size, 1e99)])
    with pytest.raises(np.linalg.LinAlgError, match="out of bounds"):
        agent.receive(total, 1)
    assert agent.choose(actions) == before
    with pytest.raises(np.linalg.LinAlgError):
        agent.receive(np.vstack([-np.eye(size), np.zeros(size)]), 1)
    assert agent.choose(actions) == before


def test_a_linear_model_is_estimated_however_large_rewards_are() -> None:
    """The bound on estimates is far from what honest agents need."""
    settings = FedGOUCBSettings(num_exploration=0, ridge=1e-6, beta=1e-9)
    agent = FedGOUCBAgent(settings, LinearModel(2), 0, 0)
    size = LinearModel(2).num_parameters
    agent.receive(np.vstack([np.eye(size), np.full(size, 5e5)]), 0)
    assert agent.choose(np.eye(2)) == 0

"""Fed-GO-UCB as published, by brute force: phase I, acquisition, One-GO-UCB."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.random import Purpose, generator
from flwr_fbo.bandits.fed_go_ucb.agent import FedGOUCBAgent
from flwr_fbo.bandits.fed_go_ucb.settings import (
    FedGOUCBSettings,
    NeuralExploration,
    NeuralPrivacy,
)
from flwr_fbo.lab.simulation.neural_bandits import NeuralBanditSimulation, Sharing
from flwr_fbo.lab.tasks.nonlinear_bandit import FunctionBanditTask, NonlinearBandit
from flwr_fbo.models.langevin_regression import LangevinSettings
from flwr_fbo.models.network import Network
from tests.support.servers import server_of

# T0 is no multiple of N: two agents make a third evaluation in phase I.
N, T, T0, SEED = 3, 5, 8, 4
TASK = FunctionBanditTask(num_actions=12, noise_std=0.3)
MODEL = Network(6, 5)
REGRESSION = LangevinSettings(4, 0.3, 10.0, start="zero")
SETTINGS = FedGOUCBSettings(
    regression=REGRESSION, ridge=0.1, threshold=2.0, exploration="optimism"
)
SIZE = MODEL.num_parameters


def _simulation(sharing: Sharing = "triggered", **fields: Any) -> Any:
    options = {"model": MODEL, "total_exploration": T0, **fields}
    return NeuralBanditSimulation(SETTINGS, TASK, N, T, sharing, **options)


def _explored() -> tuple[list[int], FloatArray]:
    """Return the actions of phase I in turn, and their rewards."""
    bandit = NonlinearBandit(TASK, SEED)
    actions, rewards = [], []
    for i in range(T0):
        agent, count = i % N, i // N
        rng = generator(SEED, agent, count, Purpose.INITIAL_POINTS)
        actions.append(int(rng.integers(len(bandit.actions))))
        rewards.append(bandit.reward(agent, T + count, actions[-1]))
    return actions, np.array(rewards)


def test_phase_one_has_t0_actions_of_all_agents_together_outside_of_t(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trials: list[tuple[int, int]] = []
    reward = NonlinearBandit.reward

    def noted(self: NonlinearBandit, agent: int, t: int, chosen: int) -> float:
        trials.append((agent, t))
        return reward(self, agent, t, chosen)

    monkeypatch.setattr(NonlinearBandit, "reward", noted)
    run = _simulation("always").run(SEED)
    assert len(trials) == len(set(trials)) == T0 + N * T
    in_turn = [i % N for i in range(T0)] + [*range(N)] * T
    assert [agent for agent, _ in trials] == in_turn
    assert run.actions.shape == (T, N)
    assert run.num_synchronisations == N * T
    bandit, (actions, _) = NonlinearBandit(TASK, SEED), _explored()
    gaps = bandit.means.max() - bandit.means
    assert run.regret_before == pytest.approx(gaps[actions].sum())
    assert run.regret.sum() == pytest.approx(gaps[run.actions].sum())


def test_langevin_dynamics_start_at_zero_and_descend_the_pooled_loss() -> None:
    """Equation 2 is the mean over all T0 evaluations, not over the agents."""
    actions, rewards = _explored()
    x = NonlinearBandit(TASK, SEED).actions[actions]
    w = np.zeros(SIZE)
    for k in range(4):
        slope = np.empty(SIZE)
        for i in range(SIZE):
            ahead, behind = w.copy(), w.copy()
            ahead[i] += 1e-6
            behind[i] -= 1e-6
            losses = [
                ((MODEL.values(v, x) - rewards) ** 2).mean() / 2
                for v in (ahead, behind)
            ]
            slope[i] = (losses[0] - losses[1]) / 2e-6
        noise = generator(SEED, k + 1, Purpose.LANGEVIN).standard_normal(SIZE)
        w = w - 0.3 * slope + np.sqrt(2 * 0.3 / 10.0) * noise
    federation = _simulation().federation(SEED)
    assert not federation.server.regression.w.any()
    federation.before_rounds()
    for agent in federation.agents:
        np.testing.assert_allclose(agent.w0, w, atol=1e-8)


def test_at_zero_only_noise_tells_hidden_units_apart() -> None:
    """So the gradients of cold dynamics from zero are those of a linear model."""
    cold = LangevinSettings(50, 0.3, 1e30, start="zero")
    agent = FedGOUCBAgent(FedGOUCBSettings(regression=cold), MODEL, SEED, 0)
    server = server_of(agent.settings, MODEL, SEED)
    bandit = NonlinearBandit(TASK, SEED)
    for i in range(6):
        agent.tell(bandit.actions[i], bandit.means[i])
    while not server.regression.is_done:
        message = agent.regression_message(server.regression.w)
        server.receive_gradients({0: message})
    hidden = server.w0[: 5 * 6].reshape(5, 6)
    np.testing.assert_allclose(hidden, np.broadcast_to(hidden[0], (5, 6)), atol=1e-9)


@pytest.mark.parametrize("total", [T0, None])
def test_one_go_ucb_is_what_agents_are_that_exchange_everything(
    total: int | None,
) -> None:
    """Its one agent stands for N that receive the total after each evaluation."""
    run = _simulation("always", total_exploration=total).run(SEED)
    federation = _simulation("never", total_exploration=total).federation(SEED)
    # Phase I of agents that share it, and then every evaluation to all.
    shared = _simulation("triggered", total_exploration=total).federation(SEED)
    shared.before_rounds()
    rounds = range(T)
    if total is None:
        for slot in range(N):
            shared.play(slot, 0)
        shared.end_round(0)
        rounds = range(1, T)
    bandit, agents = federation.bandit, shared.agents
    server = server_of(SETTINGS, MODEL, SEED)
    before = shared.channel.num_scalars
    for t in rounds:
        for slot, agent in enumerate(agents):
            chosen = agent.choose(bandit.actions)
            assert chosen == run.actions[t, slot]
            agent.tell(bandit.actions[chosen], bandit.reward(slot, t, chosen))
            server.receive_sums({k: one.message() for k, one in enumerate(agents)})
            for k, one in enumerate(agents):
                one.receive(server.total, server.num_included(k))
    once = 2 * N * (SIZE**2 + SIZE)
    assert run.num_synchronisations == N * len(rounds)
    assert run.num_scalars[-1] == before + once * N * len(rounds)


@pytest.mark.parametrize("exploration", ["sampling", "optimism"])
def test_agents_that_play_at_once_choose_before_any_of_them_is_rewarded(
    exploration: NeuralExploration,
) -> None:
    settings = replace(SETTINGS, exploration=exploration, threshold=1e-9)
    simulation = NeuralBanditSimulation(settings, TASK, N, 8, model=MODEL, at_once=True)
    run, federation = simulation.run(SEED), simulation.federation(SEED)
    actions, bandit = [], federation.bandit
    for t in range(8):
        agents = federation.agents
        actions.append([agent.choose(bandit.actions) for agent in agents])
        for slot, (agent, chosen) in enumerate(zip(agents, actions[-1], strict=True)):
            agent.tell(bandit.actions[chosen], bandit.reward(slot, t, chosen))
        if agents[0].wants_synchronisation():
            federation.synchronise()
        federation.end_round(t)
    assert np.array_equal(run.actions, actions)
    # Optimists that have just synchronised are of one mind.
    same = [len(set(chosen)) == 1 for chosen in actions[1:]]
    assert all(same) == (exploration == "optimism")
    with pytest.raises(ValueError, match="sharing='always' is not allowed"):
        replace(simulation, sharing="always")


def test_agents_that_never_share_play_at_once_as_they_do_in_turn() -> None:
    settings = replace(SETTINGS, exploration="sampling", threshold=1e-9)
    alone = NeuralBanditSimulation(settings, TASK, N, 8, "never", model=MODEL)
    in_turn, at_once = alone.run(SEED), replace(alone, at_once=True).run(SEED)
    assert at_once.num_synchronisations == 0
    assert np.array_equal(at_once.actions, in_turn.actions)


def test_the_refined_bound_is_the_largest_value_on_a_grid_of_the_ball() -> None:
    """Algorithm 1, line 3, with four parameters and a grid of the whole ball."""
    model = Network(1, 1)
    linear = FedGOUCBSettings(ridge=0.5, beta=1.5, exploration="optimism")
    settings = replace(linear, num_refinements=100)
    agents = [FedGOUCBAgent(s, model, SEED, 0) for s in (settings, linear)]
    data = [(np.array([0.3]), 0.2), (np.array([0.8]), 1.1), (np.array([-0.5]), -0.4)]
    w0 = np.array([1.0, -0.4, 1.5, 0.1])
    for agent in agents:
        agent.start(w0)
        for point, reward in data:
            agent.tell(point, reward)
    x, y = (np.array(column) for column in zip(*data, strict=True))
    values, G = model.values_and_gradients(w0, x)
    Sigma = 0.5 * np.eye(4) + G.T @ G
    centre = w0 + np.linalg.solve(Sigma, G.T @ (y - values))
    axis = np.linspace(-1, 1, 31)
    s = np.stack(np.meshgrid(*[axis] * 4), axis=-1).reshape(-1, 4)
    lengths = np.linalg.norm(s, axis=1)
    s = s[(lengths > 0) & (lengths <= 1)]
    s = np.concatenate([s, s / np.linalg.norm(s, axis=1)[:, None]])  # and the sphere
    w = centre + np.sqrt(1.5) * np.linalg.solve(np.linalg.cholesky(Sigma).T, s.T).T
    points = np.linspace(-1, 1, 5)[:, None]
    grid = [model.values(w, np.repeat(p[None], len(w), axis=0)).max() for p in points]
    refined, linearised = (agent._upper_bounds(points) for agent in agents)
    np.testing.assert_allclose(refined, grid, atol=2e-3)
    assert np.abs(linearised - grid).max() > 0.05
    # The figures make do with fewer.
    few = FedGOUCBAgent(replace(settings, num_refinements=3), model, SEED, 0)
    few.load_state_dict(agents[0].state_dict())
    assert (np.abs(few._upper_bounds(points) / grid - 1) < 0.03).all()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"total_exploration": 2},
            "total_exploration=2 is not allowed: an integer >= 3",
        ),
        (
            {"settings": FedGOUCBSettings(num_exploration=0)},
            "num_exploration=0 is not allowed: at least 1, with total_exploration",
        ),
        (
            {
                "settings": FedGOUCBSettings(
                    privacy=NeuralPrivacy(
                        epsilon=8.0, delta=1e-3, num_synchronisations=2
                    )
                )
            },
            "num_exploration=0 is not allowed: at least 1, with total_exploration",
        ),
    ],
)
def test_a_phase_one_that_cannot_be_is_refused(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        replace(_simulation(), **fields)

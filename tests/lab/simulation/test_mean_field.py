"""The mean-field limit of linear bandits, against the simulator of single trials."""

import math
from dataclasses import replace

import numpy as np
import pytest

from flwr_fbo.bandits.linear.exploration import EllipsoidSampling
from flwr_fbo.bandits.linear.peer_graph import PeerGraph
from flwr_fbo.bandits.linear.settings import (
    LinearUCBSettings,
    geometric_schedule,
)
from flwr_fbo.lab.simulation.linear_bandits import BanditSimulation, play_together
from flwr_fbo.lab.simulation.mean_field import _AverageAgent, mean_field_regret
from flwr_fbo.lab.tasks.linear_bandit import LinearBandits, LinearBanditTask
from flwr_fbo.privacy.continual_settings import ContinualSettings
from flwr_fbo.privacy.factorisation import Mechanism

T = 10_000
TASK = LinearBanditTask(dimension=4, num_actions=10, concentration=1.0)
SCHEDULE = geometric_schedule(T, 8, 20)
OURS = ContinualSettings(num_releases=8, dimension=4, epsilon=2.0, delta=0.1)
# So little privacy that the sums are more than noise, even with so few trials.
PAPER = replace(OURS, epsilon=200.0, mechanism="tree", calibration="paper")
SIMULATION = BanditSimulation(
    LinearUCBSettings(OURS, local_data="released"), 10, TASK, T, SCHEDULE
)
PUBLISHED = replace(
    SIMULATION, settings=LinearUCBSettings(PAPER, width="paper", local_data="raw")
)


@pytest.mark.slow
def test_regret_is_that_of_the_simulator_at_ten_thousand_trials() -> None:
    """Within a tenth; what differs most is the luck of one average agent."""
    simulations = [
        SIMULATION,
        SIMULATION.baseline("independent"),
        PUBLISHED,
    ]
    steps = np.array([1000, T])
    for one, run in zip(simulations, play_together(simulations, 0, 1), strict=True):
        exact = np.cumsum(run.regret)[steps - 1] / one.num_agents
        regret = mean_field_regret(one, 0, 1, steps)
        np.testing.assert_allclose(regret, exact, rtol=0.1)


def test_a_step_is_what_many_agents_do_on_average() -> None:
    """Gram matrices and rewards of trials before anything is released."""
    num_agents, num_trials = 3000, 4
    settings = LinearUCBSettings(replace(OURS, epsilon=math.inf), local_data="released")
    simulation = BanditSimulation(settings, num_agents, TASK, num_trials, ())
    (run,) = play_together([simulation], 3, 4)
    theta = LinearBandits(TASK, 3, []).theta
    grams, crosses = run.running_sums[:, :4, :4], run.running_sums[:, :4, 4]
    lucks = crosses - grams @ theta

    agents = [_AverageAgent(simulation, theta, seed) for seed in range(300)]
    bandits = LinearBandits(TASK, 3, range(128))
    for agent in agents:
        for i in range(25):
            agent.play(bandits, i, num_trials)
    gram = agents[0]._gram / 25
    np.testing.assert_allclose(gram, grams.mean(axis=0), atol=0.06)
    assert np.abs(gram).max() > 1.0  # of four trials: it could be told from nothing
    own = np.array([agent._own_luck for agent in agents]) / 5  # the root of 25
    assert np.abs(lucks.mean(axis=0)).max() < 5 * lucks.std() / math.sqrt(num_agents)
    np.testing.assert_allclose(np.cov(own.T), np.cov(lucks.T), atol=0.06)
    everybody = np.array([agent._luck for agent in agents]) / 5
    expected = num_agents * np.cov(lucks.T)
    np.testing.assert_allclose(np.cov(everybody.T), expected, atol=0.06 * num_agents)


@pytest.mark.parametrize("mechanism", ["tree", "tree-honaker", "toeplitz"])
def test_noise_has_the_law_of_the_mechanism(mechanism: Mechanism) -> None:
    """Of releases 5 and 6, which have draws in common; entries off the diagonal."""
    releases = replace(OURS, mechanism=mechanism)
    simulation = replace(
        SIMULATION, settings=LinearUCBSettings(releases, local_data="released")
    )
    agents = [_AverageAgent(simulation, np.eye(4)[0], seed) for seed in range(400)]
    noise = np.array([[agent._noise(k) for k in (5, 6)] for agent in agents])
    assert np.array_equal(noise, np.swapaxes(noise, -1, -2))
    rows = [np.append(releases.factorisation.row(k), [0] * (6 - k)) for k in (5, 6)]
    covariance = 10 * releases.noise_std**2 * np.array(rows) @ np.array(rows).T
    by_release = np.moveaxis(noise, 1, -1)
    on_diagonal = by_release[:, range(5), range(5)].reshape(-1, 2)
    beside = by_release[:, range(4), range(1, 5)].reshape(-1, 2)
    np.testing.assert_allclose(np.cov(on_diagonal.T), covariance, rtol=0.15)
    np.testing.assert_allclose(np.cov(beside.T), covariance / 2, rtol=0.15)


def test_private_and_noise_only_have_the_same_noise() -> None:
    private, control = (
        _AverageAgent(replace(SIMULATION, control=c), np.eye(4)[0], 7)
        for c in (None, "noise-only")
    )
    for k in (1, 5):
        assert np.array_equal(private._noise(k), control._noise(k))
    assert not np.array_equal(private._noise(1), private._noise(5))


def test_runs_repeat_and_depend_on_both_seeds() -> None:
    short = replace(SIMULATION, num_trials=500, schedule=geometric_schedule(500, 8, 20))
    steps = np.array([50, 500])
    regret = mean_field_regret(short, 1, 2, steps)
    assert np.array_equal(regret, mean_field_regret(short, 1, 2, steps))
    assert not np.array_equal(regret, mean_field_regret(short, 1, 3, steps))
    assert not np.array_equal(regret, mean_field_regret(short, 3, 2, steps))


def test_many_trials_with_a_synchronisation_after_each() -> None:
    """More are worse than a few: their tree has more levels of noise."""
    trials = 10**5
    steps = np.array([trials])

    def regret_with(num_releases: int, schedule: range | list[int]) -> float:
        releases = replace(PAPER, epsilon=1.0, num_releases=num_releases)
        simulation = replace(
            PUBLISHED,
            settings=replace(PUBLISHED.settings, releases=releases),
            num_trials=trials,
            schedule=schedule,
        )
        return float(mean_field_regret(simulation, 1, 2, steps)[0])

    often = regret_with(trials - 20, range(20, trials))
    seldom = regret_with(8, geometric_schedule(trials, 8, 20))
    random = replace(PUBLISHED, num_trials=trials, control="random")
    assert seldom < often < mean_field_regret(random, 1, 2, steps)[0]


def test_peers_are_refused() -> None:
    ring = SIMULATION.among_peers(PeerGraph.named("ring", 10))
    with pytest.raises(ValueError, match=r"graph=.* is not allowed: None"):
        mean_field_regret(ring, 1, 2, np.array([T]))


def test_other_exploration_than_optimism_is_refused() -> None:
    settings = replace(SIMULATION.settings, exploration=EllipsoidSampling())
    with pytest.raises(ValueError, match=r"exploration=.* is not allowed: Optimism"):
        mean_field_regret(replace(SIMULATION, settings=settings), 0, 1, np.array([T]))

"""A neural study that a site takes for one with regard to rewards has it."""

from typing import Any

import numpy as np
import pytest

from flwr_fbo.bandits import FedGOUCBSettings, Network, NeuralPrivacy
from flwr_fbo.bandits.fed_go_ucb.agent import FedGOUCBAgent
from flwr_fbo.bandits.fed_go_ucb.regard_to_rewards import has_regard
from flwr_fbo.bandits.fed_go_ucb.study import FedGOUCBStudy
from flwr_fbo.bandits.linear.regard_to_rewards import FEW_TRIALS

MODEL = Network(4)
PRIVACY = NeuralPrivacy(1.0, 1e-3, num_synchronisations=2, num_features=8)


def share_of_best(settings: FedGOUCBSettings, seed: int) -> float:
    """Return in how many trials a lone site plays the arm that pays 90 %."""
    rng, best = np.random.default_rng(seed), seed % 4
    agent, played = FedGOUCBAgent(settings, MODEL, seed, 0), 0
    for _ in range(FEW_TRIALS):
        chosen = agent.choose(np.eye(4))
        played += chosen == best
        pays = rng.random() < (0.9 if chosen == best else 0.1)
        agent.tell(np.eye(4)[chosen], float(pays))
    return played / FEW_TRIALS


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"beta": 2.0}, True),
        ({"beta": 10.0, "exploration": "optimism"}, True),
        ({"ridge": 1e-15}, True),
        ({"ridge": 0.01}, True),
        ({"beta": 100.0}, False),
        ({"beta": 1e15}, False),
        ({"beta": 1e-15}, False),
        ({"beta": 1e6, "exploration": "optimism"}, False),
        ({"ridge": 1e3}, False),
        ({"ridge": 1e15}, False),
    ],
)
def test_what_has_regard_plays_the_best_arm(
    changes: dict[str, Any], expected: bool
) -> None:
    settings = FedGOUCBSettings(num_exploration=0, **changes)
    assert {has_regard(settings, MODEL, seed, 2) for seed in range(4)} == {expected}
    shares = [share_of_best(settings, seed) for seed in range(4)]
    assert min(shares) > 0.6 if expected else min(shares) < 0.5


@pytest.mark.parametrize(
    ("epsilon", "beta", "expected"),
    [(1.0, 0.1, True), (8.0, 1.0, True), (1e-3, 0.1, False), (1.0, 1e6, False)],
)
def test_with_privacy_noise_and_draws_count(
    epsilon: float, beta: float, expected: bool
) -> None:
    for num_features in (2, 20, 64, 1000):
        privacy = NeuralPrivacy(epsilon, 1e-3, num_features=num_features)
        settings = FedGOUCBSettings(beta=beta, privacy=privacy)
        assert has_regard(settings, MODEL, 0, num_agents=2) == expected


def test_the_share_of_a_study() -> None:
    def share(**changes: Any) -> float:
        settings = FedGOUCBSettings(**changes)
        about = MODEL.num_parameters, MODEL, 1
        return FedGOUCBStudy(settings, 2, *about).largest_uniform_share

    assert share(num_exploration=0) == 0
    assert share(num_exploration=1) == share() == 1
    assert share(num_exploration=0, beta=1e6) == 1
    assert share(privacy=PRIVACY) == 0
    own_model = FedGOUCBStudy(FedGOUCBSettings(num_exploration=0), 2, 13, None, 1)
    assert own_model.largest_uniform_share == 0


def test_a_network_that_tells_no_actions_apart_has_none() -> None:
    settings = FedGOUCBSettings(num_exploration=0)
    hard = Network(2, width=1, spread=1e9)
    assert not all(has_regard(settings, hard, seed, 2) for seed in range(10))
    assert not has_regard(settings, Network(1, width=1, spread=1e-9), 0, 2)

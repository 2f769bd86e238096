"""Settings of Fed-GO-UCB: its schedule, its number of features, and what is refused."""

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from flwr_fbo import FedGOUCB
from flwr_fbo.bandits import FedGOUCBSettings, NeuralPrivacy
from flwr_fbo.lab.simulation.neural_bandits import NeuralBanditSimulation
from tests.support.grouped import hosted
from tests.support.neural_agents import SETTINGS as WITHOUT_PRIVACY
from tests.support.private_agent import MODEL, PRIVACY, SEED, SETTINGS, TASK, N, T


def strategy_of(settings: FedGOUCBSettings = SETTINGS, **options: Any) -> FedGOUCB:
    defaults = {"num_evaluations": T, "seed": SEED, "patience": 0.0, "model": MODEL}
    options = {**defaults, "noise_seed": SEED, **options}
    return hosted(FedGOUCB, settings, num_agents=N, **options)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"epsilon": 0.0}, "epsilon=0.0"),
        ({"num_features": 1001}, "dimension=1001"),
        ({"reward_range": (1.0, 1.0)}, r"reward_range=\(1.0, 1.0\)"),
        ({"mechanism": "sum"}, "mechanism='sum'"),
    ],
)
def test_bad_privacy_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(PRIVACY, **fields)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: replace(SETTINGS, num_refinements=2), "num_refinements=2"),
        (lambda: replace(SETTINGS, exploration="optimism"), "exploration='optimism'"),
        (lambda: replace(SETTINGS, num_exploration=1), "gradients are not released"),
        (lambda: strategy_of(num_evaluations=2), "num_synchronisations=2"),
        (lambda: strategy_of(noise_seed=-1), "noise_seed=-1"),
        (
            lambda: NeuralBanditSimulation(SETTINGS, TASK, N, T, "always", model=MODEL),
            "sharing='always'",
        ),
    ],
)
def test_what_does_not_go_with_privacy(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_the_schedule_is_even_and_leaves_time_to_act() -> None:
    privacy = replace(PRIVACY, num_synchronisations=4)
    assert privacy.schedule(100) == (20, 40, 60, 80)
    assert privacy.schedule(5) == (1, 2, 3, 4)
    with pytest.raises(ValueError, match="num_synchronisations=4"):
        privacy.schedule(4)


@pytest.mark.parametrize(
    ("epsilon", "num_agents", "num_evaluations", "few"),
    [(8.0, 20, 100, False), (8.0, 100, 100, False), (0.5, 20, 100, True)],
)
def test_as_many_features_as_the_noise_allows(
    epsilon: float,
    num_agents: int,
    num_evaluations: int,
    few: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "flwr.fbo")
    privacy = NeuralPrivacy(epsilon, 1e-4)
    studied = privacy.for_study(num_agents, num_evaluations)
    trials = num_agents * privacy.schedule(num_evaluations)[-1]
    noise = math.sqrt(num_agents) * studied.releases.release_std()[-1]

    def told_apart(k: int) -> bool:
        return bool(trials / k >= 2 * noise * math.sqrt(2 * k))

    k = studied.releases.dimension
    assert not told_apart(k + 1)
    assert told_apart(k) or k == 2
    assert (k < 10) == few == ("hardly do better than random" in caplog.text)


def test_the_number_of_features_has_a_limit_and_a_given_one_stays() -> None:
    assert NeuralPrivacy(math.inf, 1e-4).for_study(2, 20).num_features == 64
    assert replace(PRIVACY, num_features=3).for_study(9, 99).num_features == 3
    with pytest.raises(ValueError, match="num_features=None is not allowed"):
        _ = NeuralPrivacy(1.0, 1e-4).releases


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_exploration": -1}, "num_exploration=-1"),
        ({"ridge": 0.0}, "ridge=0.0"),
    ],
)
def test_bad_settings_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(WITHOUT_PRIVACY, **fields)

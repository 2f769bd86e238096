"""What a study is expected to be worth, from its settings."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flwr_fbo.bandits import ContinualSettings
from flwr_fbo.bandits.linear.sharing_plan import (
    LEAST_SAVING,
    SharingPlan,
    suggested_schedule,
)

RELEASES = ContinualSettings(
    10, 22, epsilon=4.0, delta=1e-5, reward_range=(0, 1), max_action_norm=1.0
)
PLAN = SharingPlan(RELEASES, num_agents=50, num_trials=500)


def test_it_is_the_formula() -> None:
    times = PLAN.times
    left = alone = 0.0
    for t in range(1, 501):
        made = [k for k, time in enumerate(times) if time < t]
        worth = 0.0
        if made:
            tau, s = times[made[-1]], RELEASES.std_by(len(made))
            worth = 49 * tau / (1 + 8 * s**2 * 22 / (0.3 * tau))
        left += max(t + worth, 22) ** -0.5
        alone += max(t, 22) ** -0.5
    assert PLAN.worth == pytest.approx(worth)
    assert PLAN.promised_saving == pytest.approx((1 - left / alone) / 4)


def test_more_epsilon_sites_and_trials_save_more() -> None:
    for change in (
        {"releases": replace(RELEASES, epsilon=8.0)},
        {"num_agents": 100},
        {"num_trials": 1000},
    ):
        assert replace(PLAN, **change).promised_saving > PLAN.promised_saving


def test_rewards_and_actions_of_another_scale_save_as_much() -> None:
    larger = replace(RELEASES, max_action_norm=10.0, reward_range=(-5.0, 5.0))
    plan = replace(PLAN, releases=larger)
    assert plan.promised_saving == pytest.approx(PLAN.promised_saving)


def test_alone_is_said_where_it_does_not_pay() -> None:
    plan = replace(PLAN, releases=replace(RELEASES, epsilon=0.5))
    assert not plan.pays
    _, line = plan.lines()
    assert "Let each site play alone; it takes epsilon 2 or 500 sites" in line
    assert replace(plan, releases=replace(RELEASES, epsilon=2.0)).pays
    assert replace(plan, num_agents=500).pays
    assert not replace(plan, num_agents=200).pays
    assert plan.promised_saving < LEAST_SAVING
    _, line = PLAN.lines()
    assert line == "At least 7 % less regret than alone"


def test_one_site_saves_nothing_and_no_noise_everything_that_is_promised() -> None:
    nobody = replace(PLAN, num_agents=1)
    assert nobody.promised_saving == 0
    assert nobody.needed_epsilon is None
    free = replace(PLAN, releases=replace(RELEASES, epsilon=math.inf))
    assert free.worth == pytest.approx(49 * PLAN.times[-1])


def test_the_suggested_schedule_is_early() -> None:
    assert suggested_schedule(500, 10, 8)[0] == 16
    assert suggested_schedule(500, 10, 100)[0] == 50
    assert suggested_schedule(3, 2, 8) == [1, 2]
    assert np.all(np.diff(suggested_schedule(40, 30, 8)) >= 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"releases": replace(RELEASES, num_releases=None)}, "num_releases=None"),
        ({"num_agents": 0}, "num_agents=0"),
        ({"num_trials": 10}, "num_trials=10"),
    ],
)
def test_bad_plans_are_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(PLAN, **change)

"""What a study is expected to be worth, from its settings."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flwr_fbo.bandits import ContinualSettings
from flwr_fbo.bandits.linear.sharing_plan import (
    LEAST_GAIN,
    SharingPlan,
    suggested_schedule,
)

RELEASES = ContinualSettings(
    10, 22, epsilon=4.0, delta=1e-5, reward_range=(0, 1), max_action_norm=1.0
)
BLOCKS = replace(RELEASES, mechanism="blocks")
PLAN = SharingPlan(RELEASES, num_agents=50, num_trials=500)
SUMMED = SharingPlan(BLOCKS, 50, 500, "released")
LOCAL = SharingPlan(RELEASES, 50, 500, "released")


def lost(known: float) -> float:
    return 6 * math.sqrt(22 / max(known, 22))


def worth(sites: int, trials: int, variance: float) -> float:
    """Return what a total of sites with so many trials is worth."""
    signal = sites * trials * 0.3 / 22
    return sites * trials / (1 + 8 * variance / signal)


def test_on_own_data_it_is_the_formula() -> None:
    times, alone, shared, of_total = PLAN.times, 0.0, 0.0, 0.0
    for t in range(1, 501):
        made = [k for k, time in enumerate(times) if time < t]
        if made:
            s = RELEASES.std_by(len(made))
            of_total = worth(49, times[made[-1]], 49 * s**2)
        alone += lost(t) / 500
        shared += lost(t + of_total) / 500
    assert PLAN.worth == pytest.approx(of_total)
    assert PLAN.regret_alone == pytest.approx(alone)
    assert PLAN.gain == pytest.approx(0.75 * (alone - shared) - 0.1)


@pytest.mark.parametrize("epsilon", [0.5, 4.0])
def test_of_one_noise_it_is_the_formula(epsilon: float) -> None:
    """A site acts on totals only; it leaves where they know less than it does."""
    releases = replace(BLOCKS, epsilon=epsilon)
    plan = replace(SUMMED, releases=releases)
    times, gained, has_left = plan.times, 0.0, False
    assert times[0] == 8
    for t in range(1, 501):
        made = sum(time < t for time in times)
        of_total = 0.0
        if made:
            variance = made * releases.noise_std**2 / 0.8 * 50 / 33
            of_total = worth(50, times[made - 1], variance)
            has_left = has_left or of_total < times[made - 1]
        gained += (lost(t) - lost(t * has_left + of_total)) / 500
    assert has_left == (epsilon == 0.5)
    assert plan.gain == pytest.approx(gained - 250 / 500)


def test_with_the_noise_of_each_site_there_is_nothing_but_the_totals() -> None:
    times, gained, of_total = LOCAL.times, 0.0, 0.0
    for t in range(1, 501):
        made = sum(time < t for time in times)
        if made:
            variance = 50 * RELEASES.std_by(made) ** 2
            of_total = worth(50, times[made - 1], variance)
        gained += (lost(t) - lost(0.03 * of_total)) / 500
    assert LOCAL.gain == pytest.approx(gained)
    assert LOCAL.gain < 0 < PLAN.gain < SUMMED.gain


@pytest.mark.parametrize("plan", [PLAN, SUMMED, LOCAL])
def test_more_epsilon_sites_and_trials_gain_more(plan: SharingPlan) -> None:
    for change in (
        {"releases": replace(plan.releases, epsilon=8.0)},
        {"num_agents": 100},
    ):
        assert replace(plan, **change).gain > plan.gain


def test_rewards_and_actions_of_another_scale_gain_as_many_points() -> None:
    for plan in (PLAN, SUMMED, LOCAL):
        larger = replace(plan.releases, max_action_norm=10.0, reward_range=(-5.0, 5.0))
        assert replace(plan, releases=larger).gain == pytest.approx(plan.gain)


def test_alone_is_said_where_it_does_not_pay() -> None:
    plan = replace(PLAN, releases=replace(RELEASES, epsilon=0.5))
    assert not plan.pays
    _, line = plan.lines()
    assert line.startswith("It does not pay: sites lose about 0.1 points; alone they")
    needed = f"epsilon {plan.needed_epsilon:g} per example (replaced by another, "
    assert f"it takes {needed}" in line
    assert replace(
        plan, releases=replace(RELEASES, epsilon=plan.needed_epsilon or 0)
    ).pays
    assert replace(plan, num_agents=plan.needed_agents or 0).pays
    assert plan.gain < LEAST_GAIN <= PLAN.gain
    _, line = PLAN.lines()
    assert line == "It pays: sites gain about 0.4 points; alone they lose 2.2"


def test_one_site_gains_nothing_and_no_noise_all_that_there_is() -> None:
    nobody = replace(PLAN, num_agents=1)
    assert nobody.worth == 0
    assert not nobody.pays
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
        ({"local_data": "raw"}, "local_data='raw'"),
    ],
)
def test_bad_plans_are_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(PLAN, **change)


def test_blocks_of_own_data_are_planned_as_own_data_are() -> None:
    plan = SharingPlan(BLOCKS, 50, 500, "own", PLAN.times)
    assert plan.regret_alone == PLAN.regret_alone

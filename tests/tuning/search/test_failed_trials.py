"""What agents do where trials fail: every method, with none, some and all failing."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from optuna.distributions import FloatDistribution

from flwr_fbo.lab.baselines.random_search import RandomSearchSettings
from flwr_fbo.lab.baselines.transfer import RGPESettings, TAFSettings
from flwr_fbo.tuning import (
    DPFTSDESettings,
    FedVoteSettings,
    FedWarmStartSettings,
    FTSSettings,
    SearchSpace,
)
from flwr_fbo.tuning.search.agent import Agent, play_round
from flwr_fbo.tuning.search.study import TuningStudy, create_agent

SPACE = SearchSpace({"x": FloatDistribution(0, 1), "y": FloatDistribution(0, 1)})
FEW: dict[str, Any] = {"num_candidates": 50, "num_starts": 2, "num_initial": 4}
SETTINGS: list[Any] = [
    DPFTSDESettings(**FEW, num_features=20, num_sub_regions=2),
    FTSSettings(**FEW, num_features=20),
    RGPESettings(**FEW, num_features=20),
    TAFSettings(**FEW, num_features=20),
    FedVoteSettings(),
    FedWarmStartSettings(),
    RandomSearchSettings(num_initial=4),
]
BY_NAME = [type(one).__name__ for one in SETTINGS]


def agent(settings: Any, direction: Any = "maximize") -> Agent:
    study = TuningStudy(SPACE, direction, settings, study_seed=1, feature_seed=2)
    return create_agent(study, 0, 3)


def played(who: Agent, objective: Any, num_rounds: int) -> Agent:
    for iteration in range(num_rounds):
        message = play_round(who, objective, iteration, None, send_message=True)
        assert message is not None
        assert np.all(np.isfinite(message) | (message == -np.inf))  # TAF's incumbent
    return who


@pytest.mark.parametrize("settings", SETTINGS, ids=BY_NAME)
def test_where_all_trials_fail_each_is_somewhere_else(settings: Any) -> None:
    who = played(agent(settings), lambda trial: math.nan, 4)
    assert who.best_value is None
    # Its initial points, five more at once, and one in each of three rounds.
    assert len(who.points) == who.num_first + 5 + 3
    assert len(np.unique(who.points, axis=0)) == len(who.points)


@pytest.mark.parametrize("settings", SETTINGS, ids=BY_NAME)
def test_a_start_that_fails_is_followed_by_another_at_once(settings: Any) -> None:
    who = agent(settings)

    def objective(trial: Any) -> float:
        if trial.number < who.num_first:
            raise MemoryError
        return float(trial["x"])

    played(who, objective, 1)
    assert len(who.values) == who.num_first + 1
    assert who.iterations == [0] * len(who.values)


@pytest.mark.parametrize("settings", SETTINGS, ids=BY_NAME)
def test_what_others_are_told_is_as_if_failures_had_not_been(settings: Any) -> None:
    """A message is of the successful trials alone, whatever failed beside them."""
    quiet, loud = agent(settings), agent(settings)
    rng = np.random.default_rng(5)
    for t in range(6):
        x = rng.random(2)
        quiet.tell(t, x, float(x[0]))
        loud.tell(t, x, float(x[0]))
        loud.tell(t, rng.random(2), math.nan)
    np.testing.assert_array_equal(quiet.message(5), loud.message(5))


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
@pytest.mark.parametrize("settings", [FedVoteSettings(), FedWarmStartSettings()])
@pytest.mark.parametrize("bad", [math.nan, -1e12])
def test_few_trials_are_spent_where_trials_fail(
    settings: Any, direction: Any, bad: float
) -> None:
    sign = 1.0 if direction == "maximize" else -1.0

    def objective(trial: Any) -> float:
        if trial["x"] + trial["y"] > 1.2:
            return sign * bad
        return sign * -float((trial["x"] - 0.6) ** 2 + (trial["y"] - 0.5) ** 2)

    who = played(agent(settings, direction), objective, 20)
    assert np.sum(who.points.sum(axis=1) > 1.2) <= 6
    assert who.best_value is not None
    assert abs(who.best_value) < 0.01


def test_a_penalty_stays_as_it_is_in_the_record() -> None:
    who = agent(FedVoteSettings())
    for t, value in enumerate([0.1, 0.2, 0.4, -1e12, 0.3]):
        who.tell(t, np.full(2, 0.1 * t), value)
    assert who.values[3] == -1e12
    _, y = who._observations(4)
    assert y.min() > -10.0


def test_initial_points_leave_the_part_that_failed() -> None:
    """Uniform ones would fail in half of the cases; four in a row in one of sixteen."""
    failed = 0
    for seed in range(40):
        study = TuningStudy(SPACE, "maximize", SETTINGS[0], 1, 2)
        who = create_agent(study, 0, seed)

        def objective(trial: Any) -> float:
            if trial["y"] > 0.5:
                raise ValueError
            return float(trial["x"])

        play_round(who, objective, 0, None, send_message=False)
        failed += int(np.isnan(who.values[:4]).sum())
    assert failed < 60  # of 160; 80 by uniform draws


def test_an_agent_whose_own_part_fails_leaves_it() -> None:
    """Its initial points are to lie in the one of two boxes where all trials fail."""
    settings = replace(SETTINGS[0], num_initial=10)
    study = TuningStudy(SPACE, "maximize", settings, 1, 2)
    for slot in (0, 1):
        own = create_agent(study, slot, 3)
        lower, upper = own._initial_box()

        def objective(trial: Any, lower: Any = lower, upper: Any = upper) -> float:
            x = np.array([trial["x"], trial["y"]])
            if np.all((lower <= x) & (x <= upper)):
                raise ValueError
            return float(x.sum())

        play_round(own, objective, 0, None, send_message=False)
        assert np.isnan(own.values[:3]).all()
        assert own.best_value is not None
        assert np.isnan(own.values).sum() <= 6


@pytest.mark.parametrize("bad", [math.nan, -1e12])
def test_initial_points_go_on_where_every_draw_is_near_a_failure(bad: float) -> None:
    who = agent(SETTINGS[0])

    def objective(trial: Any) -> float:
        return float(trial["x"]) if trial.number < 3 else bad

    play_round(who, objective, 0, None, send_message=False)
    who.values = [0.1, 0.2, 0.3] + [bad] * (len(who.values) - 3)
    who.points[:3] = [[9.0, 9.0], [9.1, 9.0], [9.2, 9.0]]  # farther than all draws
    x = who._away_from_failures(1, len(who.values))
    assert np.all((x >= 0) & (x <= 1))


def test_enqueued_settings_are_evaluated_whatever_failed() -> None:
    known = [{"x": 0.8, "y": 0.8}, {"x": 0.81, "y": 0.8}]
    who = agent(FedVoteSettings())
    who.enqueue(known)
    play_round(who, lambda trial: math.nan, 0, None, send_message=False)
    assert [SPACE.from_unit(x) for x in who.points[:2]] == known

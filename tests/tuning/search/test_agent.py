"""Agents without Flower: asking, telling, failing, stopping and going on."""

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from optuna.distributions import (
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from flwr_fbo._common.errors import AppFailedError
from flwr_fbo.lab.baselines.random_search import RandomSearchSettings
from flwr_fbo.space.search_space import SearchSpace
from flwr_fbo.tuning.dp_fts_de.agent import DPFTSDEAgent
from flwr_fbo.tuning.dp_fts_de.settings import DPFTSDESettings
from flwr_fbo.tuning.fed_vote.settings import FedVoteSettings
from flwr_fbo.tuning.fed_warm_start.settings import FedWarmStartSettings
from flwr_fbo.tuning.search.agent import Agent, evaluate, play_round
from flwr_fbo.tuning.search.settings import SearchSettings
from flwr_fbo.tuning.search.study import (
    TuningInstruction,
    TuningStudy,
    create_agent,
)
from flwr_fbo.tuning.search.trial import Trial
from tests.support.federation import AGENT, SPACE, assert_same, objective_of


def study(**changes: Any) -> TuningStudy:
    fields: dict[str, Any] = {
        "space": SearchSpace(SPACE),
        "direction": "maximize",
        "agent": AGENT,
        "study_seed": 5,
        "feature_seed": 6,
    }
    return TuningStudy(**{**fields, **changes})


def play(agent: Agent, num_iterations: int, objective: Any = None) -> None:
    vectors = np.random.default_rng(0).standard_normal((4, 30))
    for iteration in range(num_iterations + 1):
        message = play_round(
            agent,
            objective or objective_of(0),
            iteration,
            vectors if iteration else None,
            send_message=True,
        )
        assert message is not None


def test_initial_points_lie_in_the_agents_sub_region() -> None:
    regions = SearchSpace(SPACE).sub_regions(4)
    for slot in range(8):
        agent = create_agent(study(), slot, 5)
        points = agent.ask(0)
        assert points.shape == (4, 3)
        # `depth` takes its bin's middle; the two continuous axes are cut.
        np.testing.assert_array_equal(regions.index(points), slot % 4)


def test_initial_points_may_lie_anywhere() -> None:
    """Whole-domain initialisation with P = 4: the points of P = 1, vectors of P = 4."""
    whole = study(agent=replace(AGENT, initial_region="whole"))
    one = study(agent=replace(AGENT, num_sub_regions=1))
    regions = SearchSpace(SPACE).sub_regions(4)
    visited = set()
    for slot in range(8):
        agent = create_agent(whole, slot, 5)
        points = agent.ask(0)
        np.testing.assert_array_equal(points, create_agent(one, slot, 5).ask(0))
        visited |= {(slot, int(box)) for box in regions.index(points)}
        agent.receive(np.zeros((4, 30)))
    assert len(visited) > 16


def test_the_first_query_follows_the_vectors() -> None:
    """1 - p_1 = 1: the query is the maximiser of what the server sent."""
    agent = create_agent(study(), 0, 5)
    assert isinstance(agent, DPFTSDEAgent)
    play(agent, 0)
    x = np.array([[0.93, 0.07, 0.5]])
    target = agent._shared(x)[0]
    vectors = np.zeros((4, 30))
    region = agent.space.sub_regions(4).index(x)[0]
    vectors[region] = 100 * target
    agent.receive(vectors)
    asked = agent.ask(1)
    reached = agent._shared.function(asked, target)[0]
    assert agent.space.sub_regions(4).index(asked)[0] == region
    assert reached > 0.5  # its own features' norm is 1, a random point reaches 0


def test_follow_probability() -> None:
    expected: dict[Any, list[float]] = {
        "inverse": [1.0, 0.5, 0.25],
        "inverse-sqrt": [1.0, 0.5**0.5, 0.5],
        "never": [0.0, 0.0, 0.0],
    }
    for follow, probabilities in expected.items():
        settings = DPFTSDESettings(follow=follow)
        given = [settings.follow_probability(t) for t in (1, 2, 4)]
        assert given == pytest.approx(probabilities)


def test_thompson_sampling_finds_the_optimum() -> None:
    never = replace(AGENT, follow="never", num_initial=5)
    agent = create_agent(study(agent=never), 0, 5)
    play(agent, 15)
    assert agent.best_value is not None
    assert agent.best_value > -0.05
    random = create_agent(study(agent=RandomSearchSettings(num_initial=5)), 0, 5)
    for t in range(16):
        play_round(random, objective_of(0), t, None, send_message=False)
    np.testing.assert_array_equal(random.points[:5], agent.points[:5])
    assert random.message(0).size == 0
    random.receive(np.ones((4, 30)))
    assert random.best_value is not None
    assert agent.best_value > random.best_value


def test_no_setting_is_evaluated_twice() -> None:
    """A slope draws every query into the same corner of the box."""
    plane = SearchSpace({name: FloatDistribution(0.0, 1.0) for name in "xy"})
    slope = study(space=plane, agent=replace(AGENT, follow="never"))
    agent = create_agent(slope, 0, 5)
    play(agent, 15, lambda params: params["x"] + params["y"])
    points = np.array(agent.points)
    assert len(np.unique(points, axis=0)) == len(points)
    assert agent.best_value == 2.0
    inside = np.all((points[4:] > 0) & (points[4:] < 1), axis=1)
    assert inside.sum() >= 5  # uniform points in the place of repeated ones


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("settings", [AGENT, FedVoteSettings(), FedWarmStartSettings()])
def test_each_of_few_settings_is_tried_once_before_one_is_again(
    settings: SearchSettings, seed: int
) -> None:
    few = SearchSpace(
        {"a": CategoricalDistribution(["x", "y", "z"]), "b": IntDistribution(1, 4)}
    )
    agent = create_agent(study(space=few, agent=settings), 0, seed)
    for iteration in range(12):
        play_round(
            agent, lambda x: (x["a"] == "y") + 0.1 * x["b"], iteration, None, False
        )
    assert len(np.unique(agent.points[:12], axis=0)) == 12


def test_what_failed_is_not_tried_again() -> None:
    """Nothing is learnt from a failed trial: the same query would come back."""
    plane = SearchSpace({name: FloatDistribution(0.0, 1.0) for name in "xy"})
    slope = study(space=plane, agent=replace(AGENT, follow="never"))
    agent = create_agent(slope, 0, 5)

    def objective(params: dict[str, Any]) -> float:
        total = float(params["x"] + params["y"])
        return math.nan if total == 2.0 else total

    play(agent, 15, objective)
    assert np.isnan(agent.values).sum() == 1


def test_minimizing_is_maximizing_the_negative() -> None:
    def negative(params: dict[str, Any]) -> float:
        return -objective_of(0)(params)

    up, down = (
        create_agent(study(), 0, 5),
        create_agent(study(direction="minimize"), 0, 5),
    )
    play(up, 6)
    play(down, 6, negative)
    np.testing.assert_array_equal(up.points, down.points)
    np.testing.assert_array_equal(up.best_so_far, -down.best_so_far)
    assert down.best_value == min(down.values)


def test_the_best_counts_every_evaluation_in_its_order() -> None:
    agent = create_agent(study(), 0, 5)
    for iteration, value in ((4, math.nan), (4, 1.0), (5, 0.5), (9, 3.0), (10, 2.0)):
        agent.tell(iteration, np.zeros(3), value)
    np.testing.assert_array_equal(agent.best_so_far, [math.nan, 1.0, 1.0, 3.0, 3.0])
    low = create_agent(study(direction="minimize"), 0, 5)
    for value in (2.0, math.nan, 1.0, 3.0):
        low.tell(0, np.zeros(3), value)
    np.testing.assert_array_equal(low.best_so_far, [2.0, 2.0, 1.0, 1.0])


def test_an_agent_goes_on_from_its_state() -> None:
    whole, first = create_agent(study(), 2, 5), create_agent(study(), 2, 5)
    play(whole, 7)
    vectors = np.random.default_rng(0).standard_normal((4, 30))
    for iteration in range(8):
        again = create_agent(study(), 2, 5)
        if iteration:
            again.load_state_dict(first.state_dict())
        first = again
        play_round(
            first, objective_of(0), iteration, vectors if iteration else None, True
        )
    assert_same([whole], [first])


def test_an_interrupted_iteration_goes_on_where_it_stopped() -> None:
    whole, stopped = create_agent(study(), 1, 5), create_agent(study(), 1, 5)
    play(whole, 2)
    for x in stopped.ask(0)[:2]:
        stopped.tell(0, x, objective_of(0)(stopped.space.from_unit(x)))
    assert len(stopped.ask(0)) == 2
    play(stopped, 2)
    assert_same([whole], [stopped])
    assert stopped.ask(2).shape == (0, 3)  # what was told is not asked again


def test_an_agent_that_joins_late_explores_first() -> None:
    on_time, late = create_agent(study(), 1, 5), create_agent(study(), 1, 5)
    play_round(on_time, objective_of(1), 0, None, send_message=True)
    play_round(late, objective_of(1), 3, np.ones((4, 30)), send_message=True)
    np.testing.assert_array_equal(late.points, on_time.points)
    assert late.iterations == [3] * 4
    np.testing.assert_array_equal(late.best_so_far, on_time.best_so_far)
    assert len(late.ask(4)) == 1


def test_an_agent_knows_where_its_points_come_from() -> None:
    vectors = np.random.default_rng(0).standard_normal((4, 30))
    agent = create_agent(study(), 1, 5)
    agent.enqueue([{"x": 0.5, "C": 1.0, "depth": 2}])
    assert len(agent.ask(0)) == len(agent.sources) == 5
    assert agent.sources == ["enqueued", "start", "start", "start", "start"]
    play(agent, 0)
    agent.receive(vectors)
    agent.ask(1)  # 1 - p_1 = 1
    assert agent.sources == ["federation"]
    play(agent, 1)
    assert len(agent.ask(1)) == len(agent.sources) == 0
    alone = create_agent(study(agent=replace(AGENT, num_initial=1)), 1, 5)
    play_round(alone, objective_of(0), 0, None, True)
    alone.ask(1)
    assert alone.sources == ["own search"]
    random = create_agent(study(agent=RandomSearchSettings(num_initial=2)), 0, 5)
    assert len(random.ask(0)) == 2
    assert random.sources == ["start", "start"]
    play(random, 0)
    random.ask(1)
    assert random.sources == ["own search"]


def test_an_agent_whose_trials_all_fail_goes_on_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(params: dict[str, Any]) -> float:
        raise ValueError("always")

    agent = create_agent(study(), 0, 5)
    play(agent, 5, broken)
    assert "agent 0: all of its 9 trials so far failed" in caplog.text
    assert len(agent.values) == 4 + 5 + 5  # five more starts, then one a round
    assert agent.best_value is None
    assert np.isnan(agent.best_so_far).all()


@pytest.mark.parametrize(
    "objective",
    [
        lambda params: math.nan,
        lambda params: 1.1e100,
        lambda params: -(10**400),  # no float holds it
        lambda params: dict(params)["no such name"],
    ],
)
def test_what_raises_or_is_not_finite_is_a_failed_trial(
    objective: Callable[[dict[str, Any]], Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "flwr.fbo"):
        value = evaluate(objective, Trial({"x": 1}, {}), "agent 3")
    agent = create_agent(study(), 0, 5)
    agent.tell(0, np.zeros(3), value)
    assert math.isnan(agent.values[0])
    assert "agent 3: trial {'x': 1} failed" in caplog.text


@pytest.mark.parametrize(
    "returned", [None, "0.9", (0.9, 1), np.ones(2), 1j, np.complex128(1)]
)
def test_an_objective_that_returns_no_number_is_a_fault_of_the_app(
    returned: Any,
) -> None:
    kind = type(returned).__name__
    with pytest.raises(AppFailedError, match=f"returned a {kind}, not a number"):
        evaluate(lambda params: returned, Trial({"x": 1}, {}), "agent 3")


@pytest.mark.parametrize(
    ("scale", "offset", "warns"),
    [(1.0, 0.0, False), (0.0, 0.21, False), (1.0, 1e4, True)],
)
def test_values_that_look_like_noise_are_warned_of(
    scale: float, offset: float, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    agent = create_agent(study(agent=replace(AGENT, follow="never")), 0, 5)
    play(agent, 1, lambda params: offset + scale * params["x"])
    assert ("look like noise" in caplog.text) is warns


@pytest.mark.parametrize("vectors", [np.ones((4, 29)), np.full((4, 30), np.nan)])
def test_vectors_that_do_not_fit_are_refused(vectors: np.ndarray) -> None:
    with pytest.raises(ValueError, match="The server sent vectors"):
        create_agent(study(), 0, 5).receive(vectors)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lengthscale": 0.0}, "lengthscale=0.0"),
        ({"follow": "always"}, "follow='always'"),
        ({"refit_every": 2.5}, "refit_every=2.5"),
        ({"random_starts": 20}, "random_starts=20"),
    ],
)
def test_bad_agent_settings_are_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match="is not allowed") as error:
        DPFTSDESettings(**change)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"direction": "up"}, "direction='up'"),
        ({"study_seed": -1}, "study_seed=-1"),
    ],
)
def test_bad_studies_are_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match="is not allowed") as error:
        study(**change)
    assert words in str(error.value)


@pytest.mark.parametrize(
    "agent", [AGENT, RandomSearchSettings(num_sub_regions=2, num_initial=3)]
)
def test_studies_and_instructions_travel(agent: Any) -> None:
    sent = TuningInstruction("round", study(agent=agent), 3, 7, 1, 40, True, release=2)
    config = sent.to_config()
    assert all(type(v) in (int, str, bool) for v in config.values())
    assert TuningInstruction.from_config(config) == sent
    enrol = TuningInstruction("enrol", study())
    assert TuningInstruction.from_config(enrol.to_config()) == enrol


def test_another_protocol_is_refused() -> None:
    config = {**TuningInstruction("enrol", study()).to_config(), "fbo-protocol": 0}
    with pytest.raises(ValueError, match="same version of flwr_fbo"):
        TuningInstruction.from_config(config)
    with pytest.raises(ValueError, match="not a flwr_fbo strategy"):
        TuningInstruction.from_config({"lr": 0.1})

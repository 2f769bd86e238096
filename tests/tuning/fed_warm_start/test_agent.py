"""FedWarmStart: what an agent sends once, and how it starts from what others know."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from optuna.distributions import (
    FloatDistribution,
    IntDistribution,
)

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.tuning import SearchSpace
from flwr_fbo.tuning.fed_warm_start.agent import FedWarmStartAgent
from flwr_fbo.tuning.fed_warm_start.head_start import head_start
from flwr_fbo.tuning.fed_warm_start.settings import (
    Cohorts,
    FedWarmStartSettings,
    WarmStartFacts,
)
from flwr_fbo.tuning.search.agent import play_round

SPACE = SearchSpace(
    {
        "x": FloatDistribution(0.0, 1.0),
        "y": FloatDistribution(0.0, 1.0),
        "depth": IntDistribution(1, 9),
    }
)
COHORTS = Cohorts(16, (6,), 0.48)
SETTINGS = FedWarmStartSettings()


def agent(
    slot: int, cohorts: Cohorts | None = COHORTS, **more: Any
) -> FedWarmStartAgent:
    settings = FedWarmStartSettings(**more) if more else SETTINGS
    facts = WarmStartFacts(cohorts)
    return FedWarmStartAgent(SPACE, "maximize", settings, slot, 1, 5, facts=facts)


def objective(site: int, unlike: bool = False) -> Callable[[dict[str, Any]], float]:
    """Return a bump near (0.8, 0.2), or anywhere; sites differ in scale."""
    rng = np.random.default_rng(site)
    centre = rng.random(2) if unlike else [0.8, 0.2] + 0.03 * rng.standard_normal(2)

    def value(params: dict[str, Any]) -> float:
        away = (params["x"] - centre[0]) ** 2 + (params["y"] - centre[1]) ** 2
        return float(10.0 ** (site % 3) * np.exp(-4 * away - params["depth"] / 50))

    return value


def played(one: FedWarmStartAgent, num: int, first: int = 0) -> FedWarmStartAgent:
    for iteration in range(first, first + num):
        play_round(one, objective(one.slot), iteration, None, False)
    return one


@pytest.fixture(scope="module")
def vectors() -> FloatArray:
    """What six pioneers release, as the server scales it."""
    sent = [played(agent(n), 10).message(9) for n in range(6)]
    noise = 0.48 * np.random.default_rng(3).standard_normal(64)
    return np.asarray((np.sum(sent, axis=0) + noise)[None] / 16)


def noise_only() -> FloatArray:
    return 0.48 * np.random.default_rng(4).standard_normal((1, 64)) / 16


def test_it_starts_at_the_centre_unless_a_setting_is_enqueued() -> None:
    (first,) = agent(0).ask(0)
    assert SPACE.from_unit(first) == {"x": 0.5, "y": 0.5, "depth": 5}
    one, setting = agent(0), {"x": 0.25, "y": 0.75, "depth": 2}
    one.enqueue([setting])
    (first,) = one.ask(0)
    assert SPACE.from_unit(first) == setting


def test_a_message_is_of_norm_1_and_can_be_made_again() -> None:
    one = played(agent(2), 10)
    sent = one.message(9)
    assert np.linalg.norm(sent) == pytest.approx(1.0, abs=1e-12)
    assert sent.shape == (64,)
    np.testing.assert_array_equal(played(one, 3, first=10).message(9), sent)
    pool = SETTINGS.pool(SPACE, 5)
    best = SPACE.to_unit({"x": 0.8, "y": 0.2, "depth": 1})[:2]
    top = pool[np.argsort(-sent)[:8], :2]
    assert np.linalg.norm(top.mean(axis=0) - best) < 0.3


def test_without_anything_to_say_it_sends_zeros() -> None:
    flat, failed = agent(0), agent(1)
    for iteration in range(4):
        play_round(flat, lambda params: 3.0, iteration, None, False)
        play_round(failed, lambda params: float("nan"), iteration, None, False)
    assert not flat.message(3).any()
    assert not failed.message(3).any()
    assert played(agent(0), 3).message(3).any()


def test_followers_start_well(vectors: FloatArray) -> None:
    gains = []
    for slot in range(6, 11):
        led, alone = agent(slot), played(agent(slot), 6)
        led.receive(vectors)
        played(led, 6, first=10)
        scale = 10.0 ** (slot % 3)
        gains.append(np.mean(led.best_so_far[:6] - alone.best_so_far[:6]) / scale)
    assert np.mean(gains) > 0.05
    assert np.mean(np.array(gains) > 0) >= 0.8


def test_a_closed_gate_equals_alone_array_for_array(vectors: FloatArray) -> None:
    start = head_start(SETTINGS, COHORTS, SPACE, 5, noise_only().tobytes())
    assert not start.is_followed
    one = agent(9)
    one.receive(noise_only())
    played(one, 9, first=10)
    alone = played(agent(9, cohorts=None), 9)
    np.testing.assert_array_equal(one.points, alone.points)
    # And the open one does not.
    led = agent(9)
    led.receive(vectors)
    assert not np.array_equal(played(led, 9).points, alone.points)


FAR, NEAR = {"x": 0.1, "y": 0.9, "depth": 8}, {"x": 0.98, "y": 0.22, "depth": 7}


@pytest.mark.parametrize("give", ["list_first", "enqueue"])
def test_a_given_setting_is_displaced_only_by_what_is_clearly_better(
    vectors: FloatArray, give: str
) -> None:
    def given(params: dict[str, Any], cohorts: Cohorts | None) -> FedWarmStartAgent:
        one = agent(9, cohorts)
        getattr(one, give)([params])
        if cohorts is not None:
            one.receive(vectors)
        return played(one, 8)

    start = head_start(SETTINGS, COHORTS, SPACE, 5, vectors.tobytes())
    points = np.array([SPACE.to_unit(FAR), SPACE.to_unit(NEAR)])
    assert start.is_above(points[:0])
    assert [start.is_above(x[None]) for x in points] == [True, False]
    assert not start.is_above(points)
    for params, same in ((NEAR, True), (FAR, False)):
        led, alone = given(params, COHORTS), given(params, None)
        assert np.array_equal(led.points, alone.points) == same
        np.testing.assert_array_equal(led.points[0], SPACE.to_unit(params))


def test_led_points_are_of_the_federation(vectors: FloatArray) -> None:
    led = agent(9, num_led=3)
    led.receive(vectors)
    sources = []
    for iteration in range(5):
        led.ask(iteration)
        sources += led.sources
        played(led, 1, first=iteration)
    assert sources == ["federation"] * 3 + ["own search"] * 2
    closed = agent(9)
    closed.receive(noise_only())
    closed.ask(0)
    assert closed.sources == ["start"]
    enqueued = agent(9)
    enqueued.receive(vectors)
    enqueued.enqueue([FAR])
    enqueued.ask(0)
    assert enqueued.sources == ["enqueued"]
    played(enqueued, 1)
    enqueued.ask(1)
    assert enqueued.sources == ["federation"]


def test_it_is_led_where_the_best_of_others_fails(vectors: FloatArray) -> None:
    """Not away from all that they know, as a site does that is alone."""

    def fails(params: dict[str, Any]) -> float:
        return float("nan") if params["x"] > 0.65 else objective(9)(params)

    one = agent(9)
    one.receive(vectors)
    start = one._head_start()
    assert start is not None
    for iteration in range(4):
        play_round(one, fails, iteration, None, False)
    assert np.isnan(one.values[0])
    better = start(one.points) > np.median(start(SETTINGS.pool(SPACE, 5)))
    assert better.all()
    assert np.nanmax(one.values) > 0.7 * objective(9)({"x": 0.65, "y": 0.2, "depth": 1})


def test_it_tries_all_of_a_small_space_where_all_fail(vectors: FloatArray) -> None:
    space = SearchSpace({name: IntDistribution(0, 1) for name in "xy"})
    facts = WarmStartFacts(COHORTS)
    one = FedWarmStartAgent(space, "maximize", SETTINGS, 9, 1, 5, facts=facts)
    one.receive(vectors)
    assert one._head_start() is not None
    for iteration in range(4):
        play_round(one, lambda params: float("nan"), iteration, None, False)
    assert len({tuple(point) for point in one.points[:4].tolist()}) == 4


def test_what_comes_after_the_first_trial_changes_nothing(vectors: FloatArray) -> None:
    one = played(agent(9), 1)
    one.receive(vectors)
    played(one, 5, first=1)
    np.testing.assert_array_equal(one.points, played(agent(9), 6).points)


def test_it_is_led_by_the_first_evaluations_only(vectors: FloatArray) -> None:
    led = agent(9, num_led=2)
    led.receive(vectors)
    played(led, 2)
    other = agent(9, cohorts=None)
    for x, value in zip(led.points, led.values, strict=True):
        other.tell(len(other.values), x, value)
    np.testing.assert_array_equal(led.suggest(2), other.suggest(2))


def test_it_goes_on_from_its_state(vectors: FloatArray) -> None:
    one, other = agent(9), agent(9)
    one.receive(vectors)
    played(one, 3)
    other.load_state_dict(one.state_dict())
    np.testing.assert_array_equal(other.suggest(3), one.suggest(3))
    np.testing.assert_array_equal(played(other, 6, 3).points, played(one, 6, 3).points)


@pytest.mark.parametrize(
    "wrong",
    [np.zeros((2, 64)), np.full((1, 64), np.nan)],
)
def test_vectors_that_no_server_sends_are_refused(wrong: FloatArray) -> None:
    with pytest.raises(ValueError, match="with K from 1 to 1"):
        agent(9).receive(wrong)

"""How sure a recommendation is, and when there is none."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from flwr.app import Context
from optuna.distributions import FloatDistribution

from flwr_fbo import (
    DPFTSDE,
    FedVote,
    FedWarmStart,
    InProcessGrid,
    Privacy,
    Seeds,
    tuning_app,
)
from flwr_fbo._common.random import Purpose, generator
from flwr_fbo.models.features import RandomFeatures
from flwr_fbo.tuning import TuningResult
from flwr_fbo.tuning.search.recommendation import NOTHING, Recommendation
from flwr_fbo.tuning.search.trial import Objective

SPACE = {"x": FloatDistribution(0, 1), "y": FloatDistribution(0, 1)}
BEST = {"x": 0.3, "y": 0.7}


def hill(params: Any) -> float:
    """Return 1 at the best setting, and 0 far from it."""
    return math.exp(-sum((params[n] - BEST[n]) ** 2 for n in BEST) / 0.1)


def same_everywhere(context: Context) -> Objective:
    return hill


def run(strategy_type: Any, num_agents: int, num_rounds: int, **more: Any) -> Any:
    app = tuning_app(same_everywhere)
    strategy = strategy_type(SPACE, "maximize", num_agents, delta=1e-3, **more)
    result = strategy.start(InProcessGrid(app, num_agents), num_rounds=num_rounds)
    assert isinstance(result, TuningResult)
    return result


SEEDS = pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))]
)


@SEEDS
def test_votes_that_agree_give_a_setting_near_the_maximum(seed: int) -> None:
    seeds = Seeds(study=seed, features=seed, noise=seed)
    result = run(FedVote, 6, 21, epsilon=16, seeds=seeds)
    found = result.recommendation
    assert hill(result.recommended) > 0.98
    assert found.score > found.threshold
    assert found.probability < 1e-4
    assert found.reason == ""


@pytest.mark.slow
@pytest.mark.parametrize("strategy_type", [FedVote, FedWarmStart, DPFTSDE])
def test_noise_alone_recommends_nothing(strategy_type: Any) -> None:
    """At most 5 % of studies may: of 8 more than 2 with probability .006."""
    given = 0
    for seed in range(8):
        seeds = Seeds(study=seed, features=seed, noise=seed)
        more: Any = {"epsilon": 2} if strategy_type is not DPFTSDE else {}
        privacy = Privacy(noise_only=True)
        result = run(strategy_type, 9, 21, privacy=privacy, seeds=seeds, **more)
        found = result.recommendation
        given += found.params is not None
        if found.params is None:
            assert found.reason
    assert given <= 2


@SEEDS
def test_votes_that_agree_are_not_enough_under_too_much_noise(seed: int) -> None:
    """Three sites at epsilon 1: noise is more than there are votes."""
    result = run(FedVote, 3, 21, epsilon=1, seeds=Seeds(seed, seed, seed))
    assert result.recommended is None
    assert "none: " in str(result)
    assert "chance and noise reach" in str(result)


def test_votes_after_a_few_evaluations_recommend_nothing() -> None:
    """However many there are: agents agree on a local optimum then."""
    found = run(FedVote, 6, 20, epsilon=16).recommendation
    assert found.score > found.threshold
    assert found.params is None
    assert found.reason.startswith("the sites voted last after 10 evaluations")


@pytest.mark.parametrize(
    ("after", "narrower"),
    [pytest.param((6, 19), 1, marks=pytest.mark.slow), ((6, 20), 3)],
)
def test_a_recommendation_is_the_most_voted_place(
    after: tuple[int, ...], narrower: int
) -> None:
    """As a search of a fine grid finds it, with a kernel that the test makes."""
    strategy = FedVote(
        SPACE,
        "maximize",
        4,
        epsilon=24,
        delta=1e-3,
        privacy=Privacy(release_after=after),
        seeds=Seeds(1, 1, 1),
    )
    grid = InProcessGrid(tuning_app(same_everywhere), 4)
    found = strategy.start(grid, num_rounds=21).recommendation
    row = strategy.server.ledger[-1]
    assert row.made_after + 1 == after[-1]
    length = 1 / 4 / math.sqrt(math.pi) / narrower  # of 16 cells in a square
    rng = generator(1, Purpose.SHARED_FEATURES)
    features = RandomFeatures.spread(rng, 512, 2, length)
    axis = np.linspace(0, 1, 121)
    places = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    even = features(np.random.default_rng(0).random((4000, 2))).mean(axis=0)
    votes = 4 * features(places) @ (row.vectors[0] - even)
    assert found.score == pytest.approx(votes.max(), abs=0.1)
    if narrower == 1:
        assert found.reason.startswith("the sites voted last after 19 evaluations")
        return
    assert found.params is not None
    x, y = places[int(np.argmax(votes))]
    assert math.hypot(found.params["x"] - x, found.params["y"] - y) < 0.01


def test_a_warm_start_is_no_recommendation() -> None:
    result = run(FedWarmStart, 8, 12, epsilon=30, seeds=Seeds(2, 2, 2))
    assert result.recommended is None
    assert hill(result.warm_start) > 0.5
    assert str(result).startswith(f"Start for new sites: {result.warm_start}")
    unheard = run(FedWarmStart, 3, 12, epsilon=1)
    assert unheard.warm_start is None
    assert str(unheard).startswith("Start for new sites: none: nothing was released")


def test_without_a_release_it_says_so() -> None:
    result = run(FedVote, 3, 2, privacy=Privacy(release_after=(), noise_multiplier=1))
    assert repr(result.recommendation) == repr(Recommendation())  # its score is NaN
    assert result.recommendation.reason == NOTHING
    assert str(result).startswith("Recommended for all sites: none: nothing was")


def test_the_log_says_how_sure_it_is(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "flwr.fbo"):
        result = run(FedVote, 3, 12, epsilon=16)
    said = [m for m in caplog.messages if m.startswith("Recommended for all sites")]
    assert said == [str(result.recommendation)]
    assert np.isfinite(result.recommendation.score)

"""How many votes are a crowd, and how many come together by chance."""

import numpy as np
import pytest
from optuna.distributions import (
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from scipy.stats import norm

from flwr_fbo.tuning import FedVoteSettings, SearchSpace
from flwr_fbo.tuning.fed_vote.settings import VoteCount
from flwr_fbo.tuning.fed_vote.votes_by_chance import votes_by_chance
from tests.support.votes import NARROWER, PLANE, agent, late_features, strategy


def test_late_votes_have_more_cells_to_meet_in_by_chance() -> None:
    settings, count = FedVoteSettings(), VoteCount(30, noise_std=2.0)
    by_chance = votes_by_chance(settings.after(19, 2), count, PLANE, 7)
    cells = 16 * NARROWER**2
    assert by_chance.num_cells == cells
    deviation = by_chance.threshold / float(norm.isf(0.05 / cells))
    features, rng = late_features(2), np.random.default_rng(0)
    center = features(np.full((1, 2), 0.5))[0]
    drawn = [
        features(rng.random((30, 2))).sum(axis=0) + 2.0 * rng.standard_normal(512)
        for _ in range(1000)
    ]
    counts = np.array(drawn) @ center
    # A little less there than at the place where a sample of the plane is densest.
    assert 0.85 * deviation < counts.std() < 1.05 * deviation
    expected = 30 * float(by_chance.mean @ center)
    assert counts.mean() == pytest.approx(expected, abs=4 * deviation / 1000**0.5)


def test_votes_of_a_sample_count_more_and_vary_more() -> None:
    """Each counts 1/q times, with probability q."""
    q, settings = 0.25, FedVoteSettings()
    by_chance = votes_by_chance(settings, VoteCount(200, 2.0, q), PLANE, 7)
    deviation = by_chance.threshold / float(norm.isf(0.05 / by_chance.num_cells))
    features, rng = agent()._shared, np.random.default_rng(0)
    center = features(np.full((1, 2), 0.5))[0]
    drawn = [
        (rng.random(200) < q) @ features(rng.random((200, 2))) / q
        + 2.0 * rng.standard_normal(512)
        for _ in range(500)
    ]
    spread = float((np.array(drawn) @ center).std())
    assert 0.8 * deviation < spread < 1.1 * deviation


def test_votes_by_chance_on_discrete_axes_are_no_crowd() -> None:
    num_agents = 1000
    space = SearchSpace(
        {
            "a": FloatDistribution(0, 1),
            "b": CategoricalDistribution(["x", "y"]),
            "c": IntDistribution(1, 3),
        }
    )
    rng = np.random.default_rng(2)
    moved = 0
    for trial in range(40):
        who = agent(trial, space=space, num_agents=num_agents, noise_std=2.0)
        places = space.snap_discrete(rng.random((num_agents, 3)))
        released = who._shared(places).sum(axis=0) + 2.0 * rng.standard_normal(512)
        moved += who._follow(released[None] / num_agents, 1) is not None
    assert moved <= 10


def test_how_many_must_agree_is_said(caplog: pytest.LogCaptureFixture) -> None:
    few, many = (strategy(num_agents=n, feature_seed=1) for n in (6, 30))
    for study in (few, many):
        study.plan(40)
        with caplog.at_level("INFO", logger="flwr.fbo"):
            study.summary()
    told = many.study
    assert isinstance(told.facts, VoteCount)
    by_chance = votes_by_chance(
        FedVoteSettings(), told.facts, told.space, told.feature_seed
    )
    crowd = by_chance.smallest_crowd
    assert 6 < crowd <= 10  # 9 or 10: it depends on the features
    assert f"if {crowd} agents vote for one setting, the others try it" in caplog.text
    assert "would have to agree before their votes stand out, and there are 6" in (
        caplog.text
    )


@pytest.mark.parametrize(("dim", "num_agents"), [(1, 30), (2, 1000)])
def test_a_smallest_crowd_is_followed_and_half_of_it_is_not(
    dim: int, num_agents: int
) -> None:
    space = SearchSpace({str(i): FloatDistribution(0, 1) for i in range(dim)})
    count = VoteCount(num_agents, noise_std=2.0)
    crowd = votes_by_chance(FedVoteSettings(), count, space, 7).smallest_crowd
    assert crowd < num_agents
    rng = np.random.default_rng(5)
    followed = {crowd + 1: 0, crowd // 2: 0}
    for size in followed:
        for trial in range(12):
            who = agent(trial, space=space, num_agents=num_agents, noise_std=2.0)
            places = rng.random((num_agents, dim))
            places[:size] = 0.5
            released = who._shared(places).mean(axis=0, keepdims=True)
            followed[size] += who._follow(released, 1) is not None  # without noise
    assert followed[crowd + 1] >= 8
    assert followed[crowd // 2] <= 4

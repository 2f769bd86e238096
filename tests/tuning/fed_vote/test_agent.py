"""FedVote: agents vote, and try what the votes point at."""

import json
import math
from typing import Any

import numpy as np
import pytest
from optuna.distributions import (
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from scipy.optimize import least_squares
from scipy.stats import norm

from flwr_fbo import DPFTSDE, FedVote
from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.random import Purpose, generator
from flwr_fbo.lab.simulation.loop import run_loop
from flwr_fbo.models.features import RandomFeatures
from flwr_fbo.privacy.noise import SeededEntropy
from flwr_fbo.privacy.release import Release, ReleaseSettings
from flwr_fbo.tuning import DPFTSDESettings, FedVoteSettings, SearchSpace
from flwr_fbo.tuning.fed_vote.agent import FedVoteAgent
from flwr_fbo.tuning.fed_vote.even_votes import even_votes
from flwr_fbo.tuning.fed_vote.settings import VoteCount
from flwr_fbo.tuning.search.study import TuningStudy, create_agent
from tests.support.federation import NUM_AGENTS, numpy_app, run
from tests.support.grouped import grouped, hosted

NARROWER = 3  # the kernel of late votes, as the documents say
PLANE = SearchSpace({"a": FloatDistribution(0, 1), "b": FloatDistribution(0, 1)})


def agent(
    slot: int = 0, space: SearchSpace = PLANE, direction: Any = "maximize", **more: Any
) -> FedVoteAgent:
    """Return one of 30 agents."""
    count = VoteCount(more.pop("num_agents", 30), more.pop("noise_std", 0.0))
    settings = FedVoteSettings(**more)
    return FedVoteAgent(space, direction, settings, slot, slot, 7, facts=count)


def vectors(*places: tuple[float, float]) -> FloatArray:
    """Return what is released if the best settings of all 30 agents are there."""
    voters = []
    for place in places:
        voter = agent()
        voter.tell(0, np.array(place), 1.0)
        voters.append(voter.message(0))
    return np.asarray(np.mean(voters, axis=0, keepdims=True))


def tell_initial(who: FedVoteAgent) -> None:
    """Tell it ten values, the same everywhere."""
    for x in who.ask(0):
        who.tell(0, x, 0.5)


# Votes


def test_a_vote_is_for_the_best_setting_and_has_norm_one() -> None:
    for direction, best in (("maximize", 1), ("minimize", 0)):
        who = agent(direction=direction)
        for value, x in enumerate(np.array([[0.2, 0.9], [0.7, 0.1]])):
            who.tell(0, x, float(value))
        who.tell(0, np.array([0.5, 0.5]), math.nan)
        expected = who._shared(np.array([[0.2, 0.9], [0.7, 0.1]]))[best]
        np.testing.assert_allclose(who.message(0), expected, atol=1e-12)
        assert np.linalg.norm(who.message(0)) == pytest.approx(1.0)


def test_a_vote_shows_the_exact_best_setting() -> None:
    """To the server, which knows the features: the documents say so."""
    best = np.array([0.31415926535, 0.2718281828])
    voter = agent()
    voter.tell(0, best, 1.0)
    vote = voter.message(0)

    def error(x: FloatArray) -> FloatArray:
        return np.asarray(voter._shared(x[None])[0] - vote)

    places = np.random.default_rng(0).random((2000, 2))
    nearest = places[int(np.argmax(voter._shared(places) @ vote))]
    read = least_squares(error, nearest, xtol=1e-15, ftol=1e-15, gtol=1e-15).x
    np.testing.assert_allclose(read, best, atol=1e-9)


def test_a_vote_can_be_sent_again_after_more_was_learnt() -> None:
    who = agent()
    who.tell(0, np.array([0.2, 0.9]), 1.0)
    first = who.message(0)
    who.tell(1, np.array([0.7, 0.1]), 2.0)
    np.testing.assert_array_equal(who.message(0), first)
    assert not np.array_equal(who.message(1), first)


def test_without_a_success_there_is_no_vote() -> None:
    who = agent()
    who.tell(0, np.array([0.2, 0.9]), math.nan)
    np.testing.assert_array_equal(who.message(0), np.zeros(512))


def test_the_kernel_is_as_wide_as_a_cell() -> None:
    for dim in (1, 2, 6):
        length = FedVoteSettings(num_cells=16).shared_lengthscale(dim)
        # The integral of exp(-r^2 / l^2) over R^D.
        assert (math.sqrt(math.pi) * length) ** dim == pytest.approx(1 / 16)


# Late votes, of 30 agents that have evaluated 20 settings


def late_features(dim: int) -> RandomFeatures:
    """Return those of a kernel a third as wide, which 3^D times as many cells have."""
    length = (16 * NARROWER**dim) ** (-1 / dim) / math.sqrt(math.pi)
    rng = generator(7, Purpose.SHARED_FEATURES)
    return RandomFeatures.spread(rng, 512, dim, length)


@pytest.mark.parametrize("dim", [1, 6])
def test_late_votes_have_a_narrower_kernel(dim: int) -> None:
    space = SearchSpace({str(i): FloatDistribution(0, 1) for i in range(dim)})
    voter, best = agent(space=space, num_initial=3), np.full(dim, 0.7)
    voter.tell(0, best, 1.0)
    early, late = voter.message(16), voter.message(17)  # 19 and 20 evaluations
    np.testing.assert_array_equal(early, voter._shared(best[None])[0])
    np.testing.assert_array_equal(late, late_features(dim)(best[None])[0])
    wide, narrow = (
        voter.settings.after(t, dim).shared_lengthscale(dim) for t in (16, 17)
    )
    assert narrow == pytest.approx(wide / NARROWER)


def test_late_votes_have_more_cells_to_meet_in_by_chance() -> None:
    settings, count = FedVoteSettings(), VoteCount(30, noise_std=2.0)
    even = even_votes(settings.after(19, 2), count, PLANE, 7)
    cells = 16 * NARROWER**2
    assert even.num_cells == cells
    deviation = even.threshold / float(norm.isf(0.05 / cells))
    features, rng = late_features(2), np.random.default_rng(0)
    center = features(np.full((1, 2), 0.5))[0]
    drawn = [
        features(rng.random((30, 2))).sum(axis=0) + 2.0 * rng.standard_normal(512)
        for _ in range(1000)
    ]
    counts = np.array(drawn) @ center
    # A little less there than at the place where a sample of the plane is densest.
    assert 0.85 * deviation < counts.std() < 1.05 * deviation
    expected = 30 * float(even.mean @ center)
    assert counts.mean() == pytest.approx(expected, abs=4 * deviation / 1000**0.5)


def test_a_late_vote_is_read_as_it_was_made() -> None:
    """Also by an agent that goes on elsewhere; read as an early one it says nothing."""
    crowd = np.array([[0.62, 0.37]])
    released = late_features(2)(crowd)
    for made_after, is_read in ((19, True), (18, False)):
        who = agent(noise_std=2.0)
        tell_initial(who)
        who.receive(released, made_after)
        again = agent(noise_std=2.0)
        again.load_state_dict(who.state_dict())
        for each in (who, again):
            x = each.suggest(20)
            assert (each.sources == ["federation"]) is is_read
            assert bool(np.linalg.norm(x - crowd) < 0.05) is is_read


# What an agent does with them


def test_it_goes_where_the_crowd_is_and_then_does_not_come_back() -> None:
    who = agent(noise_std=2.0)
    tell_initial(who)
    crowd = np.array([0.62, 0.37])
    who.receive(vectors(tuple(crowd)))
    (x,) = who.ask(1)
    assert np.linalg.norm(x - crowd) < 0.1
    assert who.sources == ["federation"]
    for iteration in range(1, 26):
        who.tell(iteration, who.suggest(iteration), 0.1)
    steps = np.linalg.norm(np.diff(who.points[10:], axis=0), axis=1)
    assert steps.min() > 0.05  # it looks around, and at no place twice
    alone = agent()
    state = who.state_dict()
    del state["vectors"]
    alone.load_state_dict(state)
    np.testing.assert_array_equal(who.ask(26), alone.ask(26))
    assert who.sources == alone.sources == ["own search"]


def test_it_goes_to_the_greater_of_two_crowds_first() -> None:
    who = agent()
    tell_initial(who)
    who.receive(vectors((0.1, 0.5), (0.9, 0.5), (0.9, 0.5)))
    assert abs(who.suggest(1)[0] - 0.9) < 0.1
    for iteration in range(1, 12):
        who.tell(iteration, who.suggest(iteration), 0.1)
    first = np.array(who.points[who.num_first :])[:, 0]
    assert first[0] > 0.8
    assert np.any(first < 0.2)


def test_discrete_axes_get_allowed_values() -> None:
    space = SearchSpace({"a": FloatDistribution(0, 1), "n": IntDistribution(1, 3)})
    who = agent(space=space)
    for x in who.ask(0):
        who.tell(0, x, 0.5)
    who.receive(vectors((0.6, 0.9)))
    x = who.suggest(1)
    assert space.from_unit(x)["n"] == 3
    np.testing.assert_array_equal(space.snap(x), x)


@pytest.mark.parametrize("noise_std", [0.0, 10.0])
def test_noise_alone_moves_an_agent_rarely(noise_std: float) -> None:
    rng = np.random.default_rng(0)
    moved = 0
    for trial in range(60):
        who = agent(trial, noise_std=noise_std)
        places = rng.random((30, 2))
        even = who._shared(places).sum(axis=0)
        who.receive((even + noise_std * rng.standard_normal(512))[None] / 30)
        assert who._vectors is not None
        moved += who._follow(who._vectors, 1) is not None
    # 0.05 for each of K independent cells together; candidates see more than K places.
    assert moved <= 18


def test_even_votes_on_discrete_axes_are_no_crowd() -> None:
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


@pytest.mark.parametrize("dim", [2, 6])
def test_a_wrong_crowd_costs_ten_evaluations(dim: int) -> None:
    space = SearchSpace({str(i): FloatDistribution(0, 1) for i in range(dim)})
    who, voter = agent(space=space), agent(1, space=space)
    tell_initial(who)
    voter.tell(0, np.full(dim, 0.7), 1.0)
    who.receive(voter.message(0)[None])  # all 30 agree
    followed = 0
    for iteration in range(1, 20):
        assert who._vectors is not None
        followed += who._follow(who._vectors, iteration) is not None
        who.tell(iteration, who.suggest(iteration), 0.1)
    assert 2 <= followed <= 10


def test_a_liar_has_one_vote() -> None:
    """What an agent sends, however long, moves the count at any place by 1 at most."""
    settings = ReleaseSettings(
        num_agents=30, clip_norm=1.0, noise_multiplier=0.0, sampling_probability=1.0
    )
    release = Release(settings, SeededEntropy(0))
    places = np.random.default_rng(1).random((500, 2))
    features = agent()._shared(places)
    released = release.release(1, {3: 1e6 * features[0]}, 512)
    counts = 30 * features @ released[0]
    assert counts[0] == pytest.approx(1.0)
    assert np.abs(counts).max() <= 1.0


# The strategy

CONTINUOUS = {"x": FloatDistribution(-1.0, 1.0)}


def strategy(**options: Any) -> FedVote:
    defaults = {"epsilon": 2.0, "delta": 1e-3, "noise_seed": 1, "num_agents": 30}
    return hosted(FedVote, CONTINUOUS, "maximize", **grouped({**defaults, **options}))


def test_it_is_the_default_and_keeps_to_its_budget() -> None:
    study = strategy()
    study.plan(40)
    assert study.server.iterations == (5, 9, 39)
    told = study.study.facts
    assert isinstance(told, VoteCount)
    z = study.server.release.settings.noise_multiplier
    assert told.num_agents == 30
    # A sensitivity of one vote, and all of them counted.
    assert told.noise_std == pytest.approx(z)
    assert z == pytest.approx(1.445 * math.sqrt(3), rel=0.01)  # three Gaussian releases
    for iteration in (0, 5, 9, 39):
        study.server.receive(
            study.server.step(iteration), {n: np.ones(512) for n in range(30)}
        )
    assert len(study.server.ledger) == 3
    assert 1.9 < study.privacy_spent.epsilon <= 2.0


def test_when_agents_vote() -> None:
    for num_rounds, after in (
        *((2, (0,)), (3, (0, 1)), (11, (4, 9)), (12, (5, 9))),
        *((20, (5, 9)), (21, (5, 9, 19))),
    ):
        study = strategy()
        study.plan(num_rounds - 1)
        assert study.server.iterations == after
    for num_rounds, after in ((8, (5,)), (60, (5, 9))):
        told = strategy(release_after=(6, 10))
        told.plan(num_rounds - 1)
        assert told.server.iterations == after


def test_how_many_must_agree_is_said(caplog: pytest.LogCaptureFixture) -> None:
    few, many = (strategy(num_agents=n, feature_seed=1) for n in (6, 30))
    for study in (few, many):
        study.plan(40)
        with caplog.at_level("INFO", logger="flwr.fbo"):
            study.summary()
    told = many.study
    assert isinstance(told.facts, VoteCount)
    even = even_votes(FedVoteSettings(), told.facts, told.space, told.feature_seed)
    crowd = even.smallest_crowd
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
    crowd = even_votes(FedVoteSettings(), count, space, 7).smallest_crowd
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


def test_a_study_without_a_release_says_so(caplog: pytest.LogCaptureFixture) -> None:
    for options in ({"release_after": ()}, {"release_after": (50,)}):
        caplog.clear()
        study = strategy(**options)
        study.plan(40 if options else 1)
        study.summary()
        assert "No release fits into these rounds" in caplog.text


def test_what_voters_cannot_use_is_refused() -> None:
    for name, value in (("clip_norm", 0.5), ("min_follow_probability", 0.05)):
        with pytest.raises(ValueError, match=f"{name}={value} is not allowed"):
            strategy(**{name: value})


def test_sampled_votes_are_counted_for_more_and_noisier() -> None:
    study = strategy(sampling_probability=0.5, noise_multiplier=3.0, epsilon=None)
    study.plan(40)
    told = study.study.facts
    assert isinstance(told, VoteCount)
    assert told.noise_std == pytest.approx(6.0)
    assert told.sampling_probability == 0.5


def test_the_study_travels_as_json() -> None:
    study = strategy()
    study.plan(40)
    again = TuningStudy.from_dict(json.loads(json.dumps(study.study.to_dict())))
    assert again == study.study
    assert isinstance(create_agent(again, 0, 1), FedVoteAgent)


def test_a_strategy_has_agents_of_its_kind() -> None:
    with pytest.raises(ValueError, match=r"agent=.*: a DPFTSDESettings"):
        DPFTSDE(CONTINUOUS, "maximize", 9, agent=FedVoteSettings())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"agent=.*: a FedVoteSettings"):
        strategy(agent=DPFTSDESettings())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_cells", 1),
        ("max_similarity", 0.0),
        ("num_sub_regions", 4),
        ("num_features", 99),
    ],
)
def test_bad_settings_are_named(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name}={value!r} is not allowed"):
        FedVoteSettings(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("noise_std", -1.0),
        ("noise_std", math.inf),
        ("sampling_probability", 1.5),
    ],
)
def test_bad_counts_are_named(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name}={value!r} is not allowed"):
        VoteCount(**{"num_agents": 3, name: value})


def test_agents_that_agree_find_the_optimum_sooner() -> None:
    """One peak for all, beside a hill: a few see it, and the votes tell the others."""

    def peak(params: dict[str, Any]) -> float:
        hill = 0.6 * math.exp(-(((params["x"] - 0.2) / 0.3) ** 2))
        return hill + math.exp(-(((params["x"] - 0.83) / 0.04) ** 2))

    def best(num_agents: int, noise_multiplier: float, noise_only: bool) -> float:
        study = strategy(
            num_agents=num_agents,
            epsilon=None,
            noise_multiplier=noise_multiplier,
            noise_only=noise_only,
            study_seed=3,
            feature_seed=4,
        )
        study.plan(14)
        agents = [create_agent(study.study, n, 3) for n in range(num_agents)]
        run_loop(study.server, agents, [peak] * num_agents, 14)
        return float(np.mean([a.best_value for a in agents]))

    together = best(30, 1.0, noise_only=False)
    assert together > best(30, 1.0, noise_only=True) + 0.05
    assert together > 0.9


def test_it_runs_through_flower() -> None:
    study, agents = run(
        numpy_app(),
        agent=FedVoteSettings(num_initial=4),
        release_after=(2,),
    )
    assert len(study.server.ledger) == 1
    assert all(len(a.values) == 4 + 5 for a in agents)
    assert len(agents) == NUM_AGENTS
    assert study.recommendation.score > 0

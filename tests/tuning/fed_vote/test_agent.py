"""FedVote: agents vote, and try what the votes point at."""

import math

import numpy as np
import pytest
from optuna.distributions import (
    FloatDistribution,
    IntDistribution,
)
from scipy.optimize import least_squares

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.privacy.noise import SeededEntropy
from flwr_fbo.privacy.release import Release, ReleaseSettings
from flwr_fbo.tuning import FedVoteSettings, SearchSpace
from flwr_fbo.tuning.fed_vote.agent import FedVoteAgent
from tests.support.votes import (
    NARROWER,
    agent,
    late_features,
)


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

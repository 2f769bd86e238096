"""What sites believe by released blocks alone, and when they are better off without."""

import math
from dataclasses import replace

import numpy as np
import pytest

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.bandits import (
    Category,
    ContinualSettings,
    FeatureEncoder,
    LinearUCBSettings,
    Number,
    Prior,
)
from flwr_fbo.bandits.linear.blocks_belief import BlocksBelief
from flwr_fbo.bandits.linear.confidence import Confidence
from flwr_fbo.bandits.linear.leaving_the_sums import Misfit

D = 4
RELEASES = ContinualSettings(5, D, epsilon=4.0, delta=1e-5, reward_range=(0.0, 1.0))
SETTINGS = LinearUCBSettings(RELEASES, local_data="released", width=0.1)
THETA = np.array([0.3, -0.2, 0.1, 0.0])


def total_of(theta: FloatArray, count: int, seed: int, std: float = 0.3) -> FloatArray:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, len(theta)))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    z = np.column_stack([x, x @ theta + std * rng.normal(size=count)])
    return np.asarray(z.T @ z)


def noise_of(size: int, std: float, seed: int) -> FloatArray:
    normal = np.random.default_rng(seed).normal(size=(size, size))
    return np.asarray(std * (np.triu(normal, 1) + np.triu(normal, 1).T) / math.sqrt(2))


def believed(
    totals: FloatArray,
    std: float,
    num_sites: int = 50,
    settings: LinearUCBSettings = SETTINGS,
) -> BlocksBelief:
    stds = np.full(len(totals), std)
    return BlocksBelief(Confidence.of(settings, 50), totals, stds, num_sites)


def test_without_noise_it_is_the_ridge_regression_on_all_blocks() -> None:
    blocks = np.array([total_of(THETA, 3000, seed) for seed in range(3)])
    total = blocks.sum(axis=0)
    gram, cross = total[:D, :D], total[:D, D]
    belief = believed(blocks, 0.0).belief
    # The grid's ridges are all small beside 9,000 trials.
    regression = np.linalg.solve(gram, cross)
    assert belief.ellipsoid.estimate == pytest.approx(regression, rel=0.02, abs=1e-3)
    action = np.eye(D)[:1]
    length = math.sqrt(np.linalg.inv(gram)[0, 0])
    bound = belief.upper_bounds(action)[0] - belief.ellipsoid.estimate[0]
    assert bound == pytest.approx(0.1 * length, rel=0.02)


def test_noise_makes_it_wider_and_shorter() -> None:
    total = total_of(THETA, 400, 1)
    sizes, widths = [], []
    for std in (0.0, 20.0, 200.0):
        found = believed(np.array([total]), std).belief
        sizes.append(float(np.linalg.norm(found.ellipsoid.estimate)))
        widths.append(float(found.coordinate_widths.max()))
    assert sizes[0] > sizes[1] > sizes[2]
    assert widths[0] < widths[1] < widths[2]


def test_nothing_is_believed_before_the_first_block() -> None:
    empty = np.zeros((0, D + 1, D + 1))
    found = BlocksBelief(Confidence.of(SETTINGS, 50), empty, np.zeros(0), 50)
    assert not found.belief.ellipsoid.estimate.any()
    assert found.worth == 0
    assert found.pays


def test_what_totals_say_of_two_arms_together_is_left_out() -> None:
    encoder = FeatureEncoder(context={"a": Category(["x", "y"])}, blocks=("l", "r"))
    d = encoder.dimension
    releases = replace(RELEASES, dimension=d)
    settings = replace(SETTINGS, releases=releases, encoder=encoder)
    theta = np.linspace(-0.2, 0.2, d // 2)
    total = np.zeros((d + 1, d + 1))
    for arm in range(2):
        places = np.r_[arm * d // 2 : (arm + 1) * d // 2, d]
        total[np.ix_(places, places)] += total_of(theta, 500, arm)
    other = total.copy()
    other[: d // 2, d // 2 : d] += 50.0
    other[d // 2 : d, : d // 2] += 50.0
    first, second = (
        believed(np.array([each]), 5.0, settings=settings) for each in (total, other)
    )
    estimates = first.belief.ellipsoid.estimate, second.belief.ellipsoid.estimate
    assert np.array_equal(*estimates)
    assert first.worth == second.worth


def test_totals_are_worth_the_more_the_more_sites_and_the_less_noise() -> None:
    def worth(num_sites: int, std: float) -> float:
        total = total_of(THETA, 20 * num_sites, 2)
        return believed(np.array([total]), std, num_sites).worth

    assert worth(50, 10.0) > worth(10, 10.0)
    assert worth(50, 10.0) > worth(50, 100.0)
    assert worth(50, 10.0) > 1 > worth(3, 100.0)
    # Without noise a total of M sites is as good as M sites' trials.
    assert worth(50, 0.0) == pytest.approx(50, rel=0.1)


def test_sharing_ends_where_totals_tell_hardly_more_than_own_trials() -> None:
    def found(num_trials: int, std: float) -> BlocksBelief:
        return believed(np.array([total_of(THETA, num_trials, 2)]), std)

    assert found(1000, 10.0).pays
    # Worth more than own trials, but not by as many as come until the next total.
    near = found(1000, 45.0)
    assert 1 < near.worth < 1.4
    assert not near.pays
    # Less than a trial of a site, in four directions: nothing can be said yet.
    early = found(30, 8.0)
    assert early.worth < 1.4
    assert early.pays
    # But for so much noise, or so few sites, that totals can never be worth it.
    assert not found(30, 45.0).pays
    few = believed(np.array([total_of(THETA, 6, 2)]), 8.0, num_sites=10)
    assert not few.pays


@pytest.mark.parametrize("size", [1e200, 1e308])
def test_totals_that_overflow_are_refused(size: float) -> None:
    with pytest.raises(np.linalg.LinAlgError):
        believed(np.full((2, D + 1, D + 1), size), 1.0)


@pytest.mark.parametrize("seed", range(20))
def test_any_numbers_of_a_server_are_believed_or_refused(seed: int) -> None:
    rng = np.random.default_rng(seed)
    half = rng.normal(size=(D + 1, D + 1)) * 10.0 ** rng.integers(-300, 14)
    half *= rng.random(half.shape) < 0.7
    try:
        found = believed(np.array([half + half.T]), 10.0 ** rng.integers(-8, 12))
        actions = np.eye(D)
        assert np.isfinite(found.belief.upper_bounds(actions)).all()
        assert found.worth >= 0
        assert np.isfinite(found.expected(actions)).all()
    except np.linalg.LinAlgError:
        pass


def test_expected_rewards_are_in_the_range() -> None:
    found = believed(np.array([total_of(10 * THETA, 4000, 3)]), 0.0)
    high, low, good, middle = found.expected(np.eye(D))
    assert (high, low, good) == (1.0, 0.0, 1.0)
    assert middle == pytest.approx(0.5, abs=0.05)


def test_one_trial_moves_a_misfit_by_what_its_noise_covers() -> None:
    # e and y are in the range: e - y is in [-2 B, 2 B], whatever the trial.
    releases = replace(RELEASES, reward_range=(-3.0, 5.0))
    misfit = Misfit(replace(SETTINGS, releases=releases), mu=0.4)
    expected, rewards = np.array([-3.0, 5.0]), np.array([-3.0, 5.0])
    differences = expected[:, None] - rewards[None]
    most = differences.max() - differences.min()
    assert misfit.std == pytest.approx(most / 0.4)


def test_a_site_leaves_where_the_totals_promise_far_more_than_it_gets() -> None:
    misfit = Misfit(SETTINGS, mu=0.4)
    assert misfit.std == pytest.approx(5.0)
    assert not misfit.leaves(11.0, 16)
    assert misfit.leaves(11.5, 16)
    # With many trials a small difference a trial is not enough.
    assert not misfit.leaves(29.0, 200)
    assert misfit.leaves(31.0, 200)
    assert not misfit.leaves(-100.0, 16)


def test_few_sites_leave_by_the_noise_alone() -> None:
    misfit, rng = Misfit(SETTINGS, mu=0.4), np.random.default_rng(0)
    left = [misfit.leaves(5.0 * draw, 16) for draw in rng.normal(size=20_000)]
    assert np.mean(left) == pytest.approx(0.0122, abs=0.002)


def test_spare_arms_have_blocks_of_their_own_too() -> None:
    encoder = FeatureEncoder(
        {"age": Number(0, 9), "dose": Number(0, 9)}, blocks=("a", "b"), spare=("c",)
    )
    releases = replace(RELEASES, dimension=encoder.dimension)
    settings = replace(SETTINGS, releases=releases, encoder=encoder)
    totals = np.array([total_of(np.zeros(encoder.dimension), 300, 2)])
    about = Confidence.of(settings, 50), totals, np.ones(1), 50
    found, expected = BlocksBelief(*about), BlocksBelief(*about, num_arms=3)
    np.testing.assert_array_equal(
        found.belief.ellipsoid.estimate, expected.belief.ellipsoid.estimate
    )


def test_a_prior_changes_choices_and_not_when_sharing_ends() -> None:
    totals = np.array([total_of(THETA, 400, 1)]) + noise_of(D + 1, 30.0, 3)
    about = Confidence.of(SETTINGS, 50), totals, np.array([30.0]), 50
    alone = BlocksBelief(*about)
    led = BlocksBelief(*about, prior=Prior(total_of(THETA, 50, 9), 50))
    assert led.worth == alone.worth
    assert led.belief.ellipsoid.log_det > alone.belief.ellipsoid.log_det

"""An agent's own search by expected improvement, on a Matern kernel."""

import math
from typing import Any

import numpy as np
import pytest
from optuna.distributions import FloatDistribution, IntDistribution
from scipy.integrate import quad
from scipy.optimize import approx_fprime
from scipy.stats import norm
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.lab.baselines.transfer import expected_improvement
from flwr_fbo.models.failures import Trials
from flwr_fbo.models.matern_gp import MaternPosterior, fit, negative_log_posterior
from flwr_fbo.tuning import FedVoteSettings, SearchSpace
from flwr_fbo.tuning.fed_vote.agent import FedVoteAgent
from flwr_fbo.tuning.search.expected_improvement import (
    Search,
    log_unit_improvement,
    search_all,
    standardised,
    suggest,
)

PLANE = SearchSpace({"a": FloatDistribution(0, 1), "b": FloatDistribution(0, 1)})
MIXED = SearchSpace({"a": FloatDistribution(0, 1), "n": IntDistribution(1, 4)})
# Of lengthscales, noise and variance.
LOGS = np.log([0.4, 0.9, 1e-3, 1.7])


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(3)


@pytest.fixture
def model(data: tuple[FloatArray, FloatArray]) -> MaternPosterior:
    return posterior(data, LOGS)


def posterior(data: tuple[FloatArray, FloatArray], logs: FloatArray) -> MaternPosterior:
    return MaternPosterior(data[0][None], data[1][None], logs[None])


@pytest.fixture
def data(rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    x = rng.random((14, 2))
    y = np.sin(5.0 * x[:, 0]) + x[:, 1]
    return x, (y - y.mean()) / y.std()


def negative(
    logs: FloatArray, x: FloatArray, y: FloatArray
) -> tuple[float, FloatArray]:
    """Return what a fit minimises, and its gradient, of one agent."""
    squares = np.square(x.T[:, :, None] - x.T[:, None, :])
    value, gradient = negative_log_posterior(logs[None], squares[None], y[None])
    return float(value[0]), gradient[0]


def fitted(
    x: FloatArray, y: FloatArray, previous: FloatArray | None = None
) -> FloatArray:
    """Return the hyperparameters of one agent."""
    start = np.full(x.shape[1] + 2, np.nan) if previous is None else previous
    fits: FloatArray = fit(x[None], y[None], start[None])[0]
    return fits


def predicted(model: MaternPosterior, x: FloatArray) -> tuple[FloatArray, ...]:
    """Return what `MaternPosterior.predict` gives for one agent."""
    return tuple(array[0] for array in model.predict(x[None]))


def improvement(model: MaternPosterior, x: FloatArray) -> FloatArray:
    """Return expected improvement at points of shape (k, 2) for one agent."""
    mean, deviation, *_ = predicted(model, x)
    best = float(model.best[0])
    return np.asarray(expected_improvement(mean, deviation, best))


def suggested(
    model: MaternPosterior, space: SearchSpace, rng: np.random.Generator, num: int
) -> FloatArray:
    """Return the suggestion to one agent, from ``num`` candidates."""
    nothing = Trials(np.zeros((1, space.dim)), np.zeros(1), np.zeros(1, bool))
    one = Search(nothing, None, False, space, rng, num, 2)
    return np.asarray(suggest(model, [one])[0])


def regressor(logs: FloatArray) -> GaussianProcessRegressor:
    """Return scikit-learn's model with these hyperparameters."""
    *lengths, noise, variance = np.exp(logs)
    kernel = ConstantKernel(variance) * Matern(lengths, nu=2.5) + WhiteKernel(noise)
    return GaussianProcessRegressor(kernel, alpha=0.0, optimizer=None)


# The model


def test_the_posterior_is_scikit_learns(
    data: tuple[FloatArray, FloatArray], rng: np.random.Generator
) -> None:
    theirs = regressor(LOGS).fit(*data)
    points = rng.random((9, 2))
    mean, deviation, *_ = predicted(posterior(data, LOGS), points)
    expected, noisy = theirs.predict(points, return_std=True)
    np.testing.assert_allclose(mean, expected, rtol=1e-8, atol=1e-10)
    # Theirs is of a noisy observation.
    np.testing.assert_allclose(deviation**2 + 1e-3, noisy**2, rtol=1e-6)


def test_what_is_minimised_is_scikit_learns_likelihood_and_the_prior(
    data: tuple[FloatArray, FloatArray],
) -> None:
    x, y = data
    centres = np.array([-0.2, -0.2, -10.0, 0.0])
    deviations = np.sqrt([0.12, 0.12, 2.0, 1.0])

    def expected(logs: FloatArray) -> float:
        likelihood = float(regressor(logs).fit(x, y).log_marginal_likelihood_value_)
        return -likelihood - float(norm.logpdf(logs, centres, deviations).sum())

    others = LOGS + np.array([0.3, -0.5, 2.0, 0.4])
    ours = [negative(logs, x, y)[0] for logs in (LOGS, others)]
    difference = expected(others) - expected(LOGS)
    assert ours[1] - ours[0] == pytest.approx(difference, rel=1e-8)


def test_the_gradients_are_exact(
    data: tuple[FloatArray, FloatArray],
    model: MaternPosterior,
    rng: np.random.Generator,
) -> None:
    x, y = data
    _, gradient = negative(LOGS, x, y)
    numeric = approx_fprime(LOGS, lambda logs: negative(logs, x, y)[0], 1e-6)
    np.testing.assert_allclose(gradient, numeric, rtol=1e-4, atol=1e-4)
    for point in rng.random((4, 2)):
        gradients = predicted(model, point[None])[2:]
        for kind in (0, 1):

            def value(at: FloatArray, kind: int = kind) -> float:
                return float(predicted(model, at[None])[kind][0])

            numeric = approx_fprime(point, value, 1e-7)
            np.testing.assert_allclose(gradients[kind][0], numeric, rtol=1e-3)


def test_no_covariance_has_no_posterior() -> None:
    """Two equal points without noise; the other agent of the block is not touched."""
    squares, y = np.zeros((2, 1, 3, 3)), np.ones((2, 3))
    logs = np.array([[0.0, -99.0, 0.0], [0.0, -3.0, 0.0]])
    values, _ = negative_log_posterior(logs, squares, y)
    assert np.isnan(values).tolist() == [True, False]


@pytest.mark.parametrize(("num", "spread"), [(1, 0.0), (2, 1.0), (40, 0.0)])
def test_a_fit_survives_repeated_points_and_constant_values(
    num: int, spread: float, rng: np.random.Generator
) -> None:
    x = np.repeat(rng.random((num, 3)), 2, axis=0)
    y = spread * rng.standard_normal(2 * num)
    model = posterior((x, y), fitted(x, y, fitted(x, y)))
    mean, deviation, *_ = predicted(model, rng.random((50, 3)))
    assert np.all(np.isfinite(mean))
    assert np.all(deviation > 0.0)


def test_a_fit_sees_which_axis_matters(rng: np.random.Generator) -> None:
    x = rng.random((30, 3))
    lengths = fitted(x, np.sin(7.0 * x[:, 1]))[:3]
    assert lengths[1] < min(lengths[0], lengths[2]) - 1.0


# Expected improvement


def test_the_logarithm_of_improvement() -> None:
    z = np.array([-3.0, -1.0001, -1.0, -0.9999, 0.0, 2.0, 9.999, 10.001, 40.0])
    values, slopes = log_unit_improvement(z)
    exact = np.log(expected_improvement(z, np.ones(9), 0.0))
    np.testing.assert_allclose(values, exact, rtol=1e-9)
    steps = [log_unit_improvement(z + step)[0] for step in (1e-5, -1e-5)]
    np.testing.assert_allclose(slopes, (steps[0] - steps[1]) / 2e-5, rtol=1e-6)


@pytest.mark.parametrize("z", [-5.0, -9_999.0, -10_001.0, -1e8])
def test_improvement_does_not_vanish_far_out(z: float) -> None:
    """h(z) = pdf(z) times the integral of u exp(-u^2 / 2 + z u) over u > 0."""
    values, slopes = log_unit_improvement(np.array([z]))
    # In v = -z u, which is of size 1.
    integral = quad(lambda v: v * math.exp(-0.5 * (v / z) ** 2 - v), 0.0, 60.0)[0]
    share = values[0] + 0.5 * z * z + 0.5 * math.log(2.0 * math.pi)
    tolerance = 1e-6 + 1e-15 * z * z  # of a difference of such numbers
    assert share == pytest.approx(math.log(integral / z**2), abs=tolerance)
    cdf = quad(lambda v: math.exp(-0.5 * (v / z) ** 2 - v), 0.0, 60.0)[0] / -z
    assert slopes[0] == pytest.approx(cdf / (integral / z**2), rel=1e-6)


def test_single_precision_knows_the_order_from_far_to_large() -> None:
    z = np.concatenate([-np.logspace(7, -3, 200), np.logspace(-3, 7, 200)])
    expected, _ = log_unit_improvement(z)
    with np.errstate(all="raise"):
        values, slopes = log_unit_improvement(z.astype(np.float32))
    assert values.dtype == slopes.dtype == np.float32
    np.testing.assert_allclose(values, expected, rtol=1e-3, atol=1e-3)
    assert np.all(np.diff(values) >= 0.0)


def test_a_suggestion_is_the_best_of_the_square(
    model: MaternPosterior, rng: np.random.Generator
) -> None:
    axis = np.linspace(0.0, 1.0, 201)
    grid = np.array(np.meshgrid(axis, axis)).reshape(2, -1).T
    x = suggested(model, PLANE, rng, 1000)
    assert improvement(model, x[None])[0] >= 0.99 * improvement(model, grid).max()


def test_a_suggestion_from_one_candidate_has_climbed_to_a_top(
    data: tuple[FloatArray, FloatArray],
) -> None:
    """No place near it is better: the ascent goes where improvement grows."""
    at_top = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        model = posterior(data, LOGS + rng.normal(0.0, 0.3, 4))
        x = suggested(model, PLANE, rng, 1)
        near = np.clip(x + 0.1 * rng.uniform(-1.0, 1.0, (400, 2)), 0.0, 1.0)
        at_top += (
            improvement(model, x[None])[0] >= 0.99 * improvement(model, near).max()
        )
    assert at_top >= 30  # it may end early where improvement is far below the best


def test_the_best_so_far_is_without_its_noise(
    data: tuple[FloatArray, FloatArray],
) -> None:
    model = posterior(data, np.log([0.4, 0.9, 0.1, 1.7]))
    assert model.best[0] == pytest.approx(predicted(model, data[0])[0].max(), rel=1e-9)
    assert model.best[0] < data[1].max() - 0.01


def test_a_suggestion_keeps_to_discrete_values(
    model: MaternPosterior, rng: np.random.Generator
) -> None:
    x = suggested(model, MIXED, rng, 200)
    np.testing.assert_allclose(x[None], MIXED.snap_discrete(x[None]), rtol=1e-9)


# Agents as a block


def searches(dim: int, sizes: list[int]) -> list[Search]:
    """Return agents with so many trials each, some of them with an earlier fit."""
    space = SearchSpace({f"x{i}": FloatDistribution(0, 1) for i in range(dim)})
    found = []
    for i, size in enumerate(sizes):
        rng = np.random.default_rng([dim, i])
        x = rng.random((size, dim))
        y = np.cos(x @ rng.uniform(1.0, 9.0, dim)) * 10.0 ** rng.integers(-3, 4)
        logs = rng.normal([-0.2] * dim + [-6.0, 0.0], 0.3) if i % 3 else None
        due = logs is None or i % 2 == 0
        failed = rng.random(size) < 0.1 * (i % 4)
        found.append(Search(Trials(x, y, failed), logs, due, space, rng, 300, 2))
    return found


@pytest.mark.parametrize("dim", [1, 7])
def test_an_agent_finds_the_same_whoever_else_is_in_the_block(dim: int) -> None:
    """To the last bit."""
    sizes = [8, 1, 8, 8, 33, 8, 33, 8, 8, 2, 33, 8]
    together = search_all(searches(dim, sizes))
    for one, found in zip(searches(dim, sizes), together, strict=True):
        (alone,) = search_all([one])
        np.testing.assert_array_equal(found[0], alone[0])
        np.testing.assert_array_equal(found[1], alone[1])


def test_a_block_is_cut_to_fit_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = search_all(searches(2, [20] * 7))
    module = "flwr_fbo.tuning.search.expected_improvement._BLOCK_BYTES"
    monkeypatch.setattr(module, 40_000)
    for one, other in zip(whole, search_all(searches(2, [20] * 7)), strict=True):
        np.testing.assert_array_equal(one[0], other[0])


# The agent


def play(num: int, **more: Any) -> FedVoteAgent:
    """Return an agent on its own that has searched a bowl ``num`` times.

    Its values are ``shift`` + ``scale`` times the bowl's.
    """
    shift, scale = more.pop("shift", 0.0), more.pop("scale", 1.0)
    settings = FedVoteSettings(num_initial=5, **more)
    who = FedVoteAgent(PLANE, "maximize", settings, 0, 11, feature_seed=7)
    for iteration in range(num):
        for x in who.ask(iteration):
            who.tell(iteration, x, shift + scale * bowl(x))
    return who


def bowl(x: FloatArray) -> float:
    return -float(np.sum((x - [0.31, 0.77]) ** 2))


def test_it_finds_the_top_of_a_bowl_in_twenty_evaluations() -> None:
    found = play(16)
    assert len(found.values) == 20
    at_random = np.random.default_rng(11).random((20, 2))
    assert max(found.values) > -1e-4 > max(bowl(x) for x in at_random)


def test_it_fits_again_after_as_many_observations_as_asked_for() -> None:
    who, fitted = play(1, refit_every=5), []
    for iteration in range(1, 12):
        for x in who.ask(iteration):
            who.tell(iteration, x, bowl(x))
        assert who._log_hyperparameters is not None
        fitted.append(tuple(who._log_hyperparameters))
    assert [fitted.count(one) for one in dict.fromkeys(fitted)] == [5, 5, 1]


def test_a_long_history_is_fitted_again_when_it_has_grown_by_a_tenth() -> None:
    who, fitted = play(0), []
    for x in np.random.default_rng(0).random((125, who.space.dim)):
        who.tell(1, who.space.snap(x), bowl(x))
        if len(who.values) >= 98:
            who.suggest(len(who.values))
            fitted.append(int(who.state_dict()["num_fitted"]))
    assert fitted == [98, 99, *[100] * 10, *[110] * 11, *[121] * 5]


@pytest.mark.parametrize(("shift", "scale"), [(500.0, 1.0), (-3.0, 1e50)])
def test_the_scale_of_values_does_not_matter(shift: float, scale: float) -> None:
    plain, other = play(9), play(9, shift=shift, scale=scale)
    np.testing.assert_allclose(other.points, plain.points, atol=1e-3)


def test_equal_values_are_nothing_to_learn_from() -> None:
    for value in (0.1, 0.25, -1e100, 0.0):
        np.testing.assert_array_equal(standardised(np.full(7, value)), np.zeros(7))
    tiny = standardised(np.array([1.0, 2.0, 3.0]) * 1e-200)
    np.testing.assert_allclose(tiny, standardised(np.array([1.0, 2.0, 3.0])))


@pytest.mark.parametrize("values", [[math.nan] * 9, [0.1] * 9, [math.nan, 0.5]])
def test_it_searches_without_anything_to_learn_from(values: list[float]) -> None:
    who = play(1)
    who.iterations, who.points, who.values = [], who.points[:0], []
    for x, value in zip(np.random.default_rng(0).random((9, 2)), values, strict=False):
        who.tell(0, x, value)
    x = who.suggest(1)
    assert x.shape == (2,)
    assert np.all((x >= 0.0) & (x <= 1.0))


def test_it_goes_on_where_it_was_cut_off() -> None:
    whole = play(12)
    again = play(0)
    again.load_state_dict(play(9).state_dict())
    for iteration in range(9, 12):
        for x in again.ask(iteration):
            again.tell(iteration, x, bowl(x))
    np.testing.assert_array_equal(again.points, whole.points)

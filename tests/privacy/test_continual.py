"""Continual release: the factorisations, their calibration, and their noise."""

import math
from dataclasses import replace
from functools import cache
from typing import Any, get_args

import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.privacy.continual import ContinualRelease
from flwr_fbo.privacy.continual_settings import (
    ContinualSettings,
    replace_one_sensitivity,
)
from flwr_fbo.privacy.factorisation import Mechanism, factorisation
from flwr_fbo.privacy.gaussian import gaussian_delta, gaussian_mu
from flwr_fbo.privacy.noise import OsEntropy, SeededEntropy
from flwr_fbo.privacy.spectrum import agent_bounds, paper_bounds, sum_bounds
from tests.support.reference import reference
from tests.support.small_release import SMALL, random_trials

MECHANISMS = get_args(Mechanism)
PUBLISHED = {
    "tree": "binary tree plain",
    "tree-honaker": "binary tree Honaker (TFP efficient)",
    "toeplitz": "sqrt Toeplitz column-normalised",
}
WORST = ContinualSettings(num_releases=10**5, dimension=10, epsilon=1.0, delta=0.1)


@cache
def _decoder(mechanism: Mechanism, n: int) -> FloatArray:
    """Return B, dense."""
    weights, dense = factorisation(mechanism, n), np.zeros((n, n))
    for k in range(1, n + 1):
        dense[k - 1, :k] = weights.row(k)
    return dense


def _strategy(mechanism: Mechanism, n: int) -> FloatArray:
    """Return the C of what is released: A = B C."""
    return np.asarray(np.linalg.solve(_decoder(mechanism, n), np.tri(n)))


# --- Factorisations


@pytest.mark.parametrize("n", [16, 1024])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_errors_are_those_of_the_reference(mechanism: Mechanism, n: int) -> None:
    rows = reference("continual_release_error.json")["rows"]
    known = {row["strategy"]: row for row in rows if row["n"] == n}
    weights, expected = factorisation(mechanism, n), known[PUBLISHED[mechanism]]
    assert weights.max_error() == pytest.approx(expected["max"], rel=1e-9)
    rms_error = weights.sensitivity * np.sqrt(weights.variances().mean())
    assert rms_error == pytest.approx(expected["rmse"], rel=1e-9)
    if mechanism == "toeplitz":
        best = known["dense opt-max (p=32 norm)"]["max"]
        assert weights.max_error() <= 1.04 * best


@pytest.mark.parametrize(
    ("mechanism", "exact", "sampled"),
    [
        ("tree", "plain_theory_popcount", "plain_empirical"),
        ("tree-honaker", "efficient_theory_sum_2^j/(2^(j+1)-1)", "efficient_empirical"),
    ],
)
def test_tree_variances_are_those_of_the_reference(
    mechanism: Mechanism, exact: str, sampled: str
) -> None:
    known = reference("tree_aggregation_variance.json")["variance"]
    variances = factorisation(mechanism, 64).variances()
    np.testing.assert_allclose(variances, known[exact], rtol=1e-12)
    # 480,000 samples: five deviations of a sampled variance.
    rtol = 5 * math.sqrt(2 / known["n_samples"])
    np.testing.assert_allclose(variances, known[sampled], rtol=rtol)


@pytest.mark.parametrize("n", [1, 7, 64])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_what_is_released_is_protected_as_said(mechanism: Mechanism, n: int) -> None:
    weights, strategy = factorisation(mechanism, n), _strategy(mechanism, n)
    rows = _decoder(mechanism, n)
    np.testing.assert_allclose((rows**2).sum(axis=1), weights.variances(), rtol=1e-9)
    norms = np.linalg.norm(strategy, axis=0)
    if mechanism == "tree-honaker":
        # Of the noisy tree, which says a little more than the releases made of it.
        assert np.all(norms <= weights.column_norms() + 1e-9)
        assert norms.max() >= 0.9 * weights.sensitivity
    else:
        np.testing.assert_allclose(norms, weights.column_norms(), rtol=1e-9)
    if mechanism != "toeplitz":
        assert weights.sensitivity == math.sqrt(1 + math.floor(math.log2(n)))


def test_nodes_of_the_tree() -> None:
    """Six records are four and two; five are four and one."""
    tree = factorisation("tree", 6)
    assert tree.row(6).tolist() == [0, 0, 0, 1, 0, 1]
    assert tree.row(5).tolist() == [0, 0, 0, 1, 1]


def test_a_row_is_the_same_whatever_was_asked_for_before() -> None:
    """An agent that goes on after a crash begins in the middle."""
    n = 60
    in_turn = factorisation("toeplitz", n)
    rows = {k: in_turn.row(k) for k in range(1, n + 1)}
    jumping = factorisation("toeplitz", n)
    for k in np.random.default_rng(0).permutation(np.arange(1, n + 1)):
        np.testing.assert_array_equal(jumping.row(int(k)), rows[k])
        np.testing.assert_array_equal(factorisation("toeplitz", n).row(int(k)), rows[k])


@pytest.mark.parametrize(
    ("mechanism", "n", "words"),
    [
        ("dense", 4, "mechanism='dense'"),
        ("tree", 0, "num_releases=0"),
        ("tree-honaker", 2**17 + 1, "num_releases=131073"),
        ("tree", 2**24 + 1, "num_releases=16777217"),
    ],
)
def test_bad_factorisations_are_named(mechanism: Any, n: Any, words: str) -> None:
    with pytest.raises(ValueError, match="is not allowed") as error:
        factorisation(mechanism, n)
    assert words in str(error.value)


# --- Calibration


@hypothesis.settings(max_examples=15)
@given(st.floats(0.05, 20.0), st.floats(1e-8, 0.5))
def test_mu_is_the_largest_for_a_budget(epsilon: float, delta: float) -> None:
    """Delta by its definition, the integral of max(0, p - e^epsilon q)."""
    mu = gaussian_mu(epsilon, delta)

    def excess(x: float) -> float:
        return float(norm.pdf(x - mu) - math.exp(epsilon) * norm.pdf(x))

    start = epsilon / mu + mu / 2  # where p / q = e^epsilon
    integral = quad(excess, start, start + 12, epsabs=0, epsrel=1e-10)[0]
    assert gaussian_delta(epsilon, mu) <= delta
    assert integral == pytest.approx(delta, rel=1e-5)


def test_mu_where_numbers_nearly_cancel() -> None:
    """Balle & Wang's sigma at (1, 1e-5), and both ends of the range."""
    assert 1 / gaussian_mu(1.0, 1e-5) == pytest.approx(3.730632, abs=1e-6)
    for epsilon, delta in [(1e-3, 1e-15), (1e-3, 0.9), (1e3, 1e-15), (1e3, 0.9)]:
        mu = gaussian_mu(epsilon, delta)
        assert gaussian_delta(epsilon, mu) <= delta
        assert gaussian_delta(epsilon, mu * (1 + 1e-5)) > delta


@pytest.mark.parametrize(("largest", "highest"), [(1.0, 1.0), (3.0, 0.5)])
def test_the_sensitivity_is_that_of_the_worst_pair(
    largest: float, highest: float
) -> None:
    settings = replace(SMALL, max_action_norm=largest, reward_range=(-highest, highest))
    bound = replace_one_sensitivity(largest, highest)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((400, 2))
    x *= largest / np.linalg.norm(x, axis=1, keepdims=True)
    y = highest * rng.choice([-1.0, 1.0], 400)
    matrices = settings.outer_products(x, y)
    moved = np.linalg.norm(matrices[::2] - matrices[1::2], axis=(1, 2))
    assert moved.max() <= bound * (1 + 1e-8)
    # Reached where x'x' = B^2 and y = -y'.
    cosine = (highest / largest) ** 2
    one, other = [largest, 0.0], [largest * cosine, largest * math.sqrt(1 - cosine**2)]
    first, second = settings.outer_products([one, other], [highest, -highest])
    assert np.linalg.norm(first - second) == pytest.approx(bound, rel=1e-8)
    assert bound < settings.sensitivity < bound * (1 + 1e-6)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_all_releases_together_keep_to_the_budget(mechanism: Mechanism) -> None:
    """From the covariance of the releases alone, for each trial that is replaced."""
    n = 13
    settings = replace(SMALL, num_releases=n, mechanism=mechanism)
    rows = settings.noise_std * _decoder(mechanism, n)
    whitened = np.linalg.solve(rows, np.tri(n) * settings.sensitivity)
    mus = np.linalg.norm(whitened, axis=0)
    assert mus.max() <= settings.mu * (1 + 1e-9)
    if mechanism != "tree-honaker":
        assert mus.max() == pytest.approx(settings.mu)
    assert gaussian_delta(1.0, settings.mu) == pytest.approx(0.1, rel=1e-6)
    assert gaussian_delta(1.0, settings.mu) <= 0.1


def test_the_noise_of_the_paper() -> None:
    """sigma_N^2 = 16 m (L^2 + 1)^2 log(2/delta)^2 / epsilon^2 off the diagonal."""
    paper = replace(SMALL, num_releases=16, mechanism="tree", calibration="paper")
    off_diagonal = 16 * 5 * 4 * math.log(20) ** 2
    np.testing.assert_allclose(paper.noise_std**2, 2 * off_diagonal)
    longer = replace(paper, num_releases=17, max_action_norm=2.0, epsilon=0.5)
    off_diagonal = 16 * 6 * 25 * math.log(20) ** 2 / 0.25
    np.testing.assert_allclose(longer.noise_std**2, 2 * off_diagonal)
    # More than its budget needs.
    assert paper.mu < 0.1 * replace(paper, calibration="exact").mu


# --- Bounds


def test_bounds_in_the_worst_case_of_the_paper() -> None:
    """Lambda = 41,680 an agent."""
    paper = replace(WORST, mechanism="tree", calibration="paper")
    published = paper_bounds(paper, 0.01, 100)
    assert published.rho_min == pytest.approx(41_680, abs=1)
    assert published.shift == 2 * published.rho_min
    assert published.rho_max == 3 * published.rho_min
    # Proposition 4: m = 18, L = 1, and 2 n M / alpha = 2e9.
    kappa = math.sqrt(18 * 2 * (math.sqrt(10) + 2 * math.log(2e9)) / math.sqrt(2))
    assert published.kappa == pytest.approx(kappa, rel=1e-12)
    assert kappa == pytest.approx(34.22, abs=0.01)
    assert published.cross_norm == pytest.approx(kappa * math.sqrt(published.rho_min))


@pytest.mark.slow
def test_our_bounds_in_the_worst_case_of_the_paper() -> None:
    """200 times less an agent, and 2,000 times on the server's sum."""
    assert agent_bounds(WORST, 0.01, 100).rho_min <= 41_680 / 200
    assert sum_bounds(WORST, 0.01, 100).rho_min <= 100 * 41_680 / 2000


def test_bounds_for_agents_are_a_union_over_them() -> None:
    assert agent_bounds(SMALL, 0.1, 10) == agent_bounds(SMALL, 0.01)
    assert sum_bounds(SMALL, 0.1, 1) == agent_bounds(SMALL, 0.1)


@pytest.mark.parametrize(
    ("mechanism", "d", "n", "tight"),
    [
        *((mechanism, 5, 8, 0.55) for mechanism in MECHANISMS),
        ("toeplitz", 80, 2, 0.85),  # the larger d, the less there is to the tail
    ],
)
def test_the_bounds_hold_and_are_not_loose(
    mechanism: Mechanism, d: int, n: int, tight: float
) -> None:
    """In 100 runs of three agents through the mechanism itself, at alpha = 0.2."""
    num_agents, num_runs, alpha = 3, 100, 0.2
    settings = replace(SMALL, mechanism=mechanism, dimension=d, num_releases=n)
    alone, summed = np.empty((num_runs, 2)), np.empty((num_runs, 2))
    for run in range(num_runs):
        agents = range(num_agents)
        noise = np.array([_noise_of(settings, run, agent) for agent in agents])
        alone[run] = _largest(noise)
        summed[run] = _largest(noise.sum(axis=0))
    for norms, bounds in (
        (alone, agent_bounds(settings, alpha, num_agents)),
        (summed, sum_bounds(settings, alpha, num_agents)),
    ):
        cross_norm = bounds.kappa * math.sqrt(bounds.rho_min)
        failed = (norms[:, 0] > bounds.rho_min) | (norms[:, 1] > cross_norm)
        assert failed.mean() <= alpha
        block, cross = np.quantile(norms, 1 - alpha, axis=0)
        assert block >= tight * bounds.rho_min
        assert cross >= 0.75 * cross_norm


def _noise_of(settings: ContinualSettings, *owner: int) -> FloatArray:
    """Return the noise of all releases, shape (n, d + 1, d + 1)."""
    size = settings.dimension + 1
    mechanism = ContinualRelease(settings, SeededEntropy(1, *owner))
    times = range(1, settings.max_releases + 1)
    return np.array([mechanism.release(k, np.zeros((size, size))) for k in times])


def _largest(noise: FloatArray) -> tuple[float, float]:
    """Return the largest norms of the d x d block and of the cross block."""
    block = np.linalg.norm(noise[..., :-1, :-1], ord=2, axis=(-2, -1))
    cross = np.linalg.norm(noise[..., :-1, -1], axis=-1)
    return float(block.max()), float(cross.max())


@pytest.mark.parametrize(
    ("change", "alpha", "num_agents", "words"),
    [
        ({}, 0.0, 1, "alpha=0.0"),
        ({}, 0.1, 0, "num_agents=0"),
        ({"epsilon": math.inf}, 0.1, 1, "epsilon=inf"),
        ({"calibration": "exact"}, 0.1, 1, "calibration='exact'"),
    ],
)
def test_bad_bounds_are_named(
    change: dict[str, Any], alpha: float, num_agents: int, words: str
) -> None:
    paper = replace(SMALL, mechanism="tree", calibration="paper")
    settings = replace(paper, **change)
    with pytest.raises(ValueError, match="is not allowed") as error:
        paper_bounds(settings, alpha, num_agents)
    assert words in str(error.value)


# --- Releases


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_without_noise_the_sums_are_exact(mechanism: Mechanism) -> None:
    settings = replace(SMALL, mechanism=mechanism, epsilon=math.inf, dimension=4)
    mechanism_itself = ContinualRelease(settings, None)
    x, y = random_trials(600, 4)
    total, z = np.zeros((5, 5)), np.column_stack([x, y])
    for k in range(1, 7):
        window = slice(100 * (k - 1), 100 * k)
        total = total + settings.gram(x[window], y[window])
        exact = z[: 100 * k].T @ z[: 100 * k]
        released = mechanism_itself.release(k, total)
        np.testing.assert_allclose(released, exact, rtol=0, atol=1e-10)
    assert not mechanism_itself.private
    assert settings.mu == math.inf


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_noise_has_its_law(mechanism: Mechanism) -> None:
    """Between releases sigma^2 B B'; isotropic in the Frobenius norm within one."""
    settings = replace(SMALL, mechanism=mechanism, dimension=39)
    noise = np.array([_noise_of(settings, run) for run in range(20)])
    np.testing.assert_array_equal(noise, np.swapaxes(noise, -1, -2))
    rows, columns = np.triu_indices(40, 1)
    off = noise[..., rows, columns] * math.sqrt(2)
    diagonal = np.einsum("rkii->rki", noise)
    decoder = settings.noise_std * _decoder(mechanism, settings.max_releases)
    expected = decoder @ decoder.T
    largest = expected.diagonal().max()
    for entries, atol in ((off, 0.03), (diagonal, 0.15)):
        samples = np.swapaxes(entries, 0, 1).reshape(settings.max_releases, -1)
        np.testing.assert_allclose(
            samples @ samples.T / samples.shape[1], expected, atol=atol * largest
        )
    np.testing.assert_allclose(
        settings.release_std() ** 2, expected.diagonal(), rtol=1e-9
    )


def test_noise_is_added_without_a_trace_of_the_sum() -> None:
    """Exact on a public grid: two sums with the same noise differ by their difference.

    In floating point without it, the low bits of the two would tell them apart.
    """
    one = SMALL.gram(*random_trials(50))
    other = SMALL.gram(*random_trials(50, seed=1))
    released = [
        ContinualRelease(SMALL, SeededEntropy(0)).release(1, s) for s in (one, other)
    ]
    np.testing.assert_array_equal(released[0] - released[1], one - other)
    steps = released[0] / SMALL.grid
    np.testing.assert_array_equal(steps, np.rint(steps))
    assert SMALL.noise_std > 1e6 * SMALL.grid


def test_sums_of_trials_do_not_depend_on_their_order() -> None:
    x, y = random_trials(3000)
    order = np.random.default_rng(2).permutation(3000)
    total = SMALL.gram(x, y)
    np.testing.assert_array_equal(SMALL.gram(x[order], y[order]), total)
    one_by_one = np.zeros((3, 3))
    for product in SMALL.outer_products(x, y):
        one_by_one += product
    np.testing.assert_array_equal(one_by_one, total)
    z = np.column_stack([x, y])
    np.testing.assert_allclose(total, z.T @ z, atol=3000 * SMALL.grid)


def test_real_noise_is_never_the_same_and_seeded_noise_is_its_owners() -> None:
    zero = np.zeros((3, 3))

    def first(entropy: Any) -> FloatArray:
        mechanism = ContinualRelease(SMALL, entropy)
        assert mechanism.private == entropy.private
        return mechanism.release(1, zero)

    assert not np.any(first(OsEntropy()) == first(OsEntropy()))
    assert not np.any(first(SeededEntropy(0, 1)) == first(SeededEntropy(0, 2)))
    np.testing.assert_array_equal(
        first(SeededEntropy(0, 1)), first(SeededEntropy(0, 1))
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dimension": 1001}, "dimension=1001"),
        ({"epsilon": 0.0}, "epsilon=0.0"),
        ({"epsilon": math.nan}, "epsilon=nan"),
        ({"delta": 0.0}, "delta=0.0"),
        ({"delta": 1.0, "epsilon": math.inf}, "delta=1.0"),
        ({"reward_range": (0, math.inf)}, "reward_range=(0, inf)"),
        ({"reward_range": (1.0, 0.0)}, "reward_range=(1.0, 0.0)"),
        ({"reward_range": 1.0}, "reward_range=1.0"),
        ({"calibration": "less"}, "calibration='less'"),
        ({"calibration": "paper"}, "mechanism='toeplitz'"),
        (
            {"calibration": "paper", "mechanism": "tree", "reward_range": (-2.0, 2.0)},
            "reward_range=(-2.0, 2.0)",
        ),
    ],
)
def test_bad_settings_are_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match="is not allowed") as error:
        replace(SMALL, **change)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("actions", "rewards", "words"),
    [
        ([[0.0, 0.0], [0.8, 0.7]], [0.0, 0.0], "actions[1]=[0.8, 0.7]"),
        ([[math.nan, 0.0]], [0.0], "actions[0]=[nan, 0.0]"),
        ([[0.0, 0.0]], [1.1], "rewards[0]=1.1"),
        ([[0.0, 0.0]], [math.nan], "rewards[0]=nan"),
        ([[0.0]], [0.0], "actions=(1, 1)"),
        ([[0.0, 0.0]], [[0.0]], "rewards=(1, 1)"),
    ],
)
def test_trials_out_of_bounds_are_refused(
    actions: Any, rewards: Any, words: str
) -> None:
    with pytest.raises(ValueError, match="is not allowed") as error:
        SMALL.gram(actions, rewards)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("running_sum", "words"),
    [
        (np.zeros((2, 2)), "shape (3, 3)"),
        (np.full((3, 3), math.inf), "finite"),
        (np.tri(3), "symmetric"),
        (np.full((3, 3), 1e-12), "gram"),
        (np.full((3, 3), 1e9), "2**53"),
    ],
)
def test_what_is_no_sum_of_trials_is_refused(
    running_sum: FloatArray, words: str
) -> None:
    mechanism = ContinualRelease(SMALL, SeededEntropy(0))
    with pytest.raises(ValueError, match="running_sum=") as error:
        mechanism.release(1, running_sum)
    assert words in str(error.value)
    assert mechanism.num_released == 0


def test_noise_without_entropy_is_refused() -> None:
    with pytest.raises(ValueError, match="entropy"):
        ContinualRelease(SMALL, None)


def test_rewards_are_centred_in_their_range() -> None:
    """Their noise is that of half of the range, whatever its middle is."""
    centred = replace(SMALL, reward_range=(-0.5, 0.5))
    settings = replace(SMALL, reward_range=(0, 1))
    assert settings.noise_std == centred.noise_std < replace(SMALL).noise_std
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, SMALL.dimension))
    x /= np.linalg.norm(x, axis=1).max()
    y = rng.random(40)
    expected = centred.outer_products(x, y - 0.5)
    np.testing.assert_array_equal(settings.outer_products(x, y), expected)
    np.testing.assert_array_equal(settings.gram(x, y), expected.sum(axis=0))
    with pytest.raises(ValueError, match=r"numbers from 0.0 to 1.0"):
        settings.gram(x, -y)
    # What exceeds a bound by rounding is moved to it; other rewards stay as they are.
    given = np.array([1 + 1e-8, -1e-8, 0.1])
    assert settings.without_excess(given).tolist() == [1.0, 0.0, 0.1]


def test_rewards_may_be_at_both_ends_of_any_range() -> None:
    rng, x = np.random.default_rng(0), np.zeros((2, SMALL.dimension))
    for _ in range(300):
        low = rng.uniform(-1, 1) * 10 ** rng.uniform(-3, 5)
        ends = np.array([low, low + 10 ** rng.uniform(-5, 0)])
        settings = replace(SMALL, reward_range=tuple(ends.tolist()))
        assert settings.without_excess(ends).tolist() == ends.tolist()
        squares = settings.outer_products(x, ends)[:, -1, -1]
        assert np.abs(squares - settings.max_reward**2).max() <= settings.grid
        outside = ends + settings.max_reward * np.array([-1.0, 1.0])
        with pytest.raises(ValueError, match="rewards"):
            settings.outer_products(x, outside)

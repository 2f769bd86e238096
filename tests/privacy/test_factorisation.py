"""Factorisations of running sums: their rows, variances, horizons and windows."""

import math
from typing import Any, get_args

import numpy as np
import pytest
from scipy.stats import norm

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.privacy.continual import ContinualRelease
from flwr_fbo.privacy.continual_settings import ContinualSettings
from flwr_fbo.privacy.factorisation import (
    Mechanism,
    Stationary,
    Toeplitz,
    factorisation,
    stationary_series,
)
from flwr_fbo.privacy.noise import SeededEntropy
from flwr_fbo.privacy.noise_bounds import sum_bounds
from tests.support.continual import _decoder
from tests.support.reference import reference
from tests.support.small_release import random_trials

N = 200
WINDOWS = (1, 2, 13, 150)
ALL: dict[str, Stationary] = {
    "open": Stationary(None, N),
    **{f"window {w}": Stationary(w, N) for w in WINDOWS},
}


def workload(weights: Stationary) -> FloatArray:
    """Return A: row k is one on the records that are in release k."""
    window = weights.window or N
    return np.tri(N) - np.tri(N, k=-window)


def decoder(weights: Stationary) -> FloatArray:
    """Return B, dense."""
    dense = np.zeros((N, N))
    for k in range(1, N + 1):
        dense[k - 1, :k] = weights.row(k)
    return dense


@pytest.mark.parametrize("name", ALL)
def test_what_is_released_is_a_gaussian_mechanism_of_bounded_columns(name: str) -> None:
    """C = B^-1 A, solved, and not as the series have it."""
    weights = ALL[name]
    strategy = np.linalg.solve(decoder(weights), workload(weights))
    norms = np.linalg.norm(strategy, axis=0)
    np.testing.assert_allclose(norms, weights.column_norms(), rtol=1e-9)
    assert norms.max() <= weights.sensitivity * (1 + 1e-12)
    # Not much more noise than needed: a column of 200 releases, or 2 % more.
    if weights.window is not None and weights.window <= 13:
        assert weights.sensitivity <= 1.02 * norms.max()


@pytest.mark.parametrize("name", ALL)
def test_variances_are_those_of_the_rows(name: str) -> None:
    weights = ALL[name]
    expected = np.square(decoder(weights)).sum(axis=1)
    np.testing.assert_allclose(weights.variances(), expected, rtol=1e-9)
    assert weights.variance(7) == pytest.approx(expected[6], rel=1e-9)
    assert np.all(np.diff(expected) >= -1e-12)  # what `largest_std` counts on
    assert expected.max() <= weights.largest_variance * (1 + 1e-12)


@pytest.mark.slow
def test_the_figures_of_the_open_horizon_are_sums_of_its_series() -> None:
    weights = Stationary()
    assert weights.num_releases == 2**20
    norm_of_c = weights.column_norms()[0]
    assert norm_of_c <= weights.sensitivity <= 1.00001 * norm_of_c
    variance = weights.variances()[-1]
    assert variance <= weights.largest_variance <= 1.0001 * variance


@pytest.mark.parametrize(
    ("k", "ratio"),
    [(1, 2.2406), (100, 1.5754), (10**4, 1.4955)],
)
def test_its_variance_beside_that_of_a_known_horizon(k: int, ratio: float) -> None:
    """Of the square root of k releases, which Henzinger et al. (2023) have."""
    i = np.arange(1, k)
    root = np.cumprod(np.concatenate([[1.0], (2 * i - 1) / (2 * i)]))
    known = np.sum(root**2) ** 2
    weights = Stationary()
    own = weights.sensitivity**2 * weights.variance(k)
    assert own / known == pytest.approx(ratio, rel=2e-3)


@pytest.mark.parametrize("window", WINDOWS)
def test_a_windows_series_add_up_to_a_lebesgue_constant(window: int) -> None:
    series, _ = stationary_series(window, 2**18)
    total = Stationary(window).largest_variance
    assert np.sum(series**2) == pytest.approx(total, rel=1e-5)
    if window % 2:  # Fejer's formula
        m = np.arange(1, window // 2 + 1)
        known = 1 / window + 2 / np.pi * np.sum(np.tan(np.pi * m / window) / m)
        assert total == pytest.approx(known, rel=1e-12)


def test_a_windows_noise_does_not_grow() -> None:
    """For ever less than that of running sums of a hundred releases."""
    weights = Stationary(12)
    assert weights.max_error() == pytest.approx(1.9966, rel=1e-4)
    assert weights.max_error() < Toeplitz(100).max_error()


# --- Releases


def releases(**changes: Any) -> ContinualSettings:
    usual = {"num_releases": None, "dimension": 2, "epsilon": 8.0, "delta": 1e-3}
    return ContinualSettings(**{**usual, **changes})


@pytest.mark.parametrize(
    "changes", [{}, {"sliding_window": 2}, {"num_releases": 6, "sliding_window": 2}]
)
def test_noise_of_releases_is_that_of_the_weights(changes: dict[str, Any]) -> None:
    """Over 150 agents: deviations on the diagonal, and correlations over time."""
    settings = releases(**changes)
    sums = np.zeros(settings.sum_shape)
    noise = np.array(
        [
            [np.diagonal(mechanism.release(k, sums)) for k in range(1, 7)]
            for mechanism in (
                ContinualRelease(settings, SeededEntropy(3, i)) for i in range(150)
            )
        ]
    )
    noise = np.swapaxes(noise, 0, 1).reshape(6, -1)
    dense = np.zeros((6, 6))
    for k in range(1, 7):
        dense[k - 1, :k] = settings.factorisation.row(k)
    draws = np.linalg.solve(dense * settings.noise_std, noise)
    covariance = draws @ draws.T / noise.shape[1]
    atol = 5 * np.sqrt(2 / noise.shape[1])
    np.testing.assert_allclose(covariance, np.eye(6), atol=atol)


@pytest.mark.parametrize("changes", [{}, {"sliding_window": 3}])
def test_mu_is_what_columns_of_many_releases_have(changes: dict[str, Any]) -> None:
    settings = releases(**changes)
    dense = np.zeros((64, 64))
    for k in range(1, 65):
        dense[k - 1, :k] = settings.factorisation.row(k)
    window = settings.sliding_window or 64
    strategy = np.linalg.solve(dense, np.tri(64) - np.tri(64, k=-window))
    longest = np.linalg.norm(strategy, axis=0).max()
    spent = longest * settings.sensitivity / settings.noise_std
    assert 0.8 * settings.mu < spent <= settings.mu


def test_a_release_of_any_number_can_be_made_and_is_the_recorded_one() -> None:
    settings = releases()
    mechanism = ContinualRelease(settings, SeededEntropy(1))
    total = np.zeros(settings.sum_shape)
    first = {}
    for k in range(1, 40):
        total = total + settings.gram(*random_trials(3, seed=k))
        first[k] = mechanism.release(k, total)
    np.testing.assert_array_equal(mechanism.release(3, 0 * total), first[3])


def test_all_shares_of_alpha_add_up_to_it() -> None:
    settings = releases()
    shares = [1 / settings.union(k) for k in range(1, 10**5)]
    assert sum(shares) == pytest.approx(1, abs=1e-5)
    assert sum(shares) < 1
    assert releases(num_releases=7).union(3) == 7


def test_bounds_are_of_the_noise_up_to_a_synchronisation() -> None:
    """The operator norm of a scalar's noise has a law that is known."""
    settings = releases(dimension=1)
    for k in (1, 5, 30):
        bounds = sum_bounds(settings, 0.1, 4, k)
        std = 2 * settings.noise_std * np.sqrt(settings.factorisation.variance(k))
        beyond = 2 * norm.sf(bounds.rho_min / std)
        assert beyond <= 0.1 / (2 * settings.union(k))
    assert sum_bounds(settings, 0.1, 4, 30).shift > sum_bounds(settings, 0.1, 4).shift


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"mechanism": "tree"}, "mechanism='tree'"),
        ({"num_releases": 6, "sliding_window": 6}, "sliding_window=6"),
        ({"num_releases": 6, "sliding_window": 2, "mechanism": "tree"}, "mechanism"),
        ({"sliding_window": 2.0}, "sliding_window=2.0"),
        ({"calibration": "paper"}, "mechanism='toeplitz'"),
    ],
)
def test_what_does_not_go_together_is_named(
    changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(ValueError, match=field):
        releases(**changes)


MECHANISMS = get_args(Mechanism)


PUBLISHED = {
    "tree": "binary tree plain",
    "tree-honaker": "binary tree Honaker (TFP efficient)",
    "toeplitz": "sqrt Toeplitz column-normalised",
}


def _strategy(mechanism: Mechanism, n: int) -> FloatArray:
    """Return the C of what is released: A = B C."""
    return np.asarray(np.linalg.solve(_decoder(mechanism, n), np.tri(n)))


@pytest.mark.parametrize("n", [16, 1024])
@pytest.mark.parametrize("mechanism", PUBLISHED)
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
    if mechanism in ("tree", "tree-honaker"):
        assert weights.sensitivity == math.sqrt(1 + math.floor(math.log2(n)))


def test_nodes_of_the_tree() -> None:
    """Six records are four and two; five are four and one."""
    tree = factorisation("tree", 6)
    assert tree.row(6).tolist() == [0, 0, 0, 1, 0, 1]
    assert tree.row(5).tolist() == [0, 0, 0, 1, 1]


@pytest.mark.parametrize("window", [None, 1, 3, 6])
@pytest.mark.parametrize("n", [None, 7])
def test_each_block_has_noise_of_its_own(n: int | None, window: int | None) -> None:
    """C is the identity, and B the workload: by definition, also without a horizon."""
    weights = factorisation("blocks", n, window)
    rows = np.zeros((7, 7))
    for k in range(1, 8):
        rows[k - 1, :k] = weights.row(k)
    np.testing.assert_array_equal(rows, np.tri(7) - np.tri(7, k=-(window or 7)))
    assert weights.sensitivity == 1.0
    np.testing.assert_array_equal(weights.column_norms()[:7], np.ones(7))
    counts = np.minimum(np.arange(1, 8), window or 7)
    np.testing.assert_array_equal(weights.variances()[:7], counts)
    assert [weights.variance(k) for k in range(1, 8)] == counts.tolist()
    assert weights.num_releases == (n or 2**20)
    assert weights.largest_variance == weights.variances()[-1]


def test_a_window_of_blocks_is_shorter_than_their_number() -> None:
    with pytest.raises(ValueError, match=r"^sliding_window=7 is not allowed"):
        factorisation("blocks", 7, 7)


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
        ("blocks", 2**20 + 1, "num_releases=1048577"),
    ],
)
def test_bad_factorisations_are_named(mechanism: Any, n: Any, words: str) -> None:
    with pytest.raises(ValueError, match="is not allowed") as error:
        factorisation(mechanism, n)
    assert words in str(error.value)

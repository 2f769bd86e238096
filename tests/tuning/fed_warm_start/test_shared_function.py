"""What noisy sums say of a function that sites share."""

from typing import Any

import numpy as np
import pytest
from scipy.stats import multivariate_normal
from scipy.stats.qmc import Sobol

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.tuning.fed_warm_start import shared_function as module
from flwr_fbo.tuning.fed_warm_start.shared_function import (
    MOST_NULL,
    SharedFunction,
    matern,
    rank_vector,
    shared_function,
)

REFERENCE = Sobol(2, rng=np.random.default_rng(1)).random(256)
POOL = Sobol(2, rng=np.random.default_rng(2)).random(64)


def drawn(rng: np.random.Generator, length: FloatArray) -> FloatArray:
    covariance = matern(POOL, POOL, length) + 1e-8 * np.eye(len(POOL))
    return np.asarray(np.linalg.cholesky(covariance) @ rng.standard_normal(len(POOL)))


def released(
    seed: int, agreement: float, z: float, sizes: tuple[int, ...], silent: bool = False
) -> tuple[SharedFunction, FloatArray]:
    """Return what a study of Gaussian functions releases, and what is shared."""
    rng = np.random.default_rng(seed)
    length = 0.6 * np.exp(0.5 * rng.standard_normal(2))
    shared = drawn(rng, length)

    def message() -> FloatArray:
        own = drawn(rng, length)
        both = np.sqrt(agreement) * shared + np.sqrt(1 - agreement) * own
        return np.zeros(len(POOL)) if silent else rank_vector(both)

    means = [
        (sum(message() for _ in range(n)) + z * rng.standard_normal(len(POOL))) / n
        for n in sizes
    ]
    about = np.array(means), z / np.array(sizes), np.array(sizes)
    return shared_function(
        POOL, *about, REFERENCE, rng=np.random.default_rng(5)
    ), shared


def test_a_message_has_mean_0_and_norm_1_whatever_the_scale() -> None:
    beliefs = np.random.default_rng(1).standard_normal(40)
    vector = rank_vector(beliefs)
    assert np.linalg.norm(vector) == pytest.approx(1.0, abs=1e-12)
    assert vector.mean() == pytest.approx(0.0, abs=1e-15)
    np.testing.assert_array_equal(vector, rank_vector(7.0 + 1e-3 * beliefs))
    assert np.argmax(vector) == np.argmax(beliefs)


def test_a_flat_belief_sends_zeros_and_rounding_makes_no_ranks() -> None:
    rounding = 1e-12 * np.random.default_rng(1).standard_normal(40)
    assert not rank_vector(rounding).any()
    step = np.where(np.arange(40) < 20, 0.0, 1.0) + rounding
    assert len(np.unique(rank_vector(step))) == 2


@pytest.mark.slow
@pytest.mark.parametrize(("z", "sizes"), [(1.445, (9,)), (0.48, (4, 8))])
def test_the_gate_opens_where_something_is_shared(
    z: float, sizes: tuple[int, ...]
) -> None:
    def followed(**more: Any) -> float:
        found = [released(s, z=z, sizes=sizes, **more)[0] for s in range(15)]
        return float(np.mean([one.null_probability <= MOST_NULL for one in found]))

    assert followed(agreement=0.0) <= 0.1
    assert followed(agreement=0.0, silent=True) == 0.0
    assert followed(agreement=0.9) >= 0.7


def test_smooth_sums_of_unrelated_sites_are_not_taken_for_agreement() -> None:
    """Against noise alone as "nothing is shared", many of them would be."""
    length, m = np.full(2, 0.6), len(POOL)
    eigenvalues, vectors, _ = module._centred_kernel(POOL, length)
    noise = np.array([[m * (0.48 / 4) ** 2]])
    against_noise, against_own = 0, 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        total = np.sum([rank_vector(drawn(rng, length)) for _ in range(4)], axis=0)
        mean = (total + 0.48 * rng.standard_normal(m))[None] / 4
        u = np.sqrt(m) * (mean - mean.mean())
        shared, own, *_ = module._evidence(
            u @ vectors, eigenvalues, noise, np.array([4])
        )
        against_noise += shared - module._log_density(u, noise) > np.log(4.0)
        against_own += shared - own > np.log(4.0)
    assert against_noise >= 9
    assert against_own <= 2


def test_what_is_shared_is_found_and_more_cohorts_say_more() -> None:
    def likeness(sizes: tuple[int, ...]) -> list[float]:
        pairs = [released(s, 0.8, 1.445, sizes) for s in range(4)]
        return [float(np.corrcoef(h(POOL), g)[0, 1]) for h, g in pairs]

    one, two = likeness((9,)), likeness((9, 20))
    assert np.median(one) > 0.7
    assert np.mean(two) > np.mean(one)


def test_the_evidence_is_that_of_all_releases_together() -> None:
    """The formulas by direction equal the density of the stacked vectors."""
    rng = np.random.default_rng(3)
    eigenvalues, vectors, _ = module._centred_kernel(POOL[:6], np.array([0.4, 0.8]))
    kernel = (vectors * eigenvalues) @ vectors.T
    sizes, noise = np.array([3, 7]), np.array([[0.5], [0.2]])
    u = rng.standard_normal((2, 6))
    found, alone, weights, taken = module._evidence(
        u @ vectors, eigenvalues, noise, sizes
    )
    densities, means, reductions = [], [], []
    for r2 in [0.0, *module._AGREEMENT]:
        blocks = [
            (1 - r2) / n * kernel + (v[0] + module._LEFT_OVER) * np.eye(6)
            for n, v in zip(sizes, noise, strict=True)
        ]
        covariance = np.kron(np.ones((2, 2)), r2 * kernel)
        covariance[:6, :6] += blocks[0]
        covariance[6:, 6:] += blocks[1]
        stacked = u.ravel()
        density = multivariate_normal(np.zeros(12), covariance).logpdf(stacked)
        densities.append(density + 6 * np.log(2 * np.pi))
        cross = np.sqrt(r2) * np.hstack([kernel, kernel])
        means.append(cross @ np.linalg.solve(covariance, stacked))
        reductions.append(cross @ np.linalg.solve(covariance, cross.T))
    assert alone == pytest.approx(densities[0])
    share = np.exp(densities[1:])
    assert found == pytest.approx(np.log(share.mean()))
    mean = share @ np.array(means[1:]) / share.sum()
    np.testing.assert_allclose(kernel @ vectors @ weights, mean, atol=1e-9)
    reduction = np.einsum("r,rij->ij", share, reductions[1:]) / share.sum()
    root = kernel @ vectors * np.sqrt(taken)
    np.testing.assert_allclose(root @ root.T, reduction, atol=1e-9)


@pytest.mark.gate
def test_what_is_surely_larger_is_known() -> None:
    """In draws of Gaussian functions it is right as often as it says."""
    said, right = [], []
    for seed in range(24):
        h, shared = released(seed, 0.9, 0.5, (9,))
        best = int(np.argmax(h(POOL)))
        said += h.probability_above(POOL[best], POOL[::8]).tolist()
        right += (shared[best] > shared[::8]).tolist()
    sure = np.array(said) >= 0.95
    assert sure.mean() > 0.3
    assert np.mean(np.array(right)[sure]) > 0.95
    assert np.mean(right) == pytest.approx(np.mean(said), abs=0.1)
    h, _ = released(0, 0.9, 0.5, (9,))
    assert h.probability_above(POOL[3], POOL[3:4]) == pytest.approx([0.5], abs=1e-12)
    both = [h.probability_above(POOL[i], POOL[j : j + 1]) for i, j in ((3, 9), (9, 3))]
    assert np.sum(both) == pytest.approx(1.0)


def test_releases_count_by_their_precision() -> None:
    """A cohort of little weight changes little, whatever it says."""
    rng = np.random.default_rng(1)
    own = np.sum([rank_vector(drawn(rng, np.full(2, 0.5))) for _ in range(9)], axis=0)
    wild = 100.0 * rng.standard_normal(64)

    def values(means: list[FloatArray], stds: list[float], sizes: list[int]) -> Any:
        about = np.array(means), np.array(stds), np.array(sizes)
        return shared_function(POOL, *about, REFERENCE, rng=np.random.default_rng(5))(
            POOL
        )

    first = values([own / 9], [0.05], [9])
    both = values([own / 9, wild], [0.05, 1e3], [9, 1])
    np.testing.assert_allclose(first, both, atol=2e-2)

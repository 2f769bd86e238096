"""Tests of the ellipsoid's factor."""

import numpy as np
import pytest

from flwr_fbo.models.ellipsoid import Ellipsoid


def _observed(d: int, n: int, ridge: float = 1.0) -> tuple[Ellipsoid, np.ndarray]:
    """Return an ellipsoid after n observations, and its V as a sum."""
    x = np.random.default_rng(d).normal(size=(n, d))
    ellipsoid = Ellipsoid(ridge * np.eye(d), np.zeros(d))
    for row in x:
        ellipsoid.observe(row, 1.0)
    return ellipsoid, x.T @ x + ridge * np.eye(d)


@pytest.mark.parametrize("d", [1, 16, 17, 40])
def test_the_factor_is_that_of_the_sum_of_all_observations(d: int) -> None:
    ellipsoid, matrix = _observed(d, n=60)
    assert ellipsoid.factor == pytest.approx(np.linalg.cholesky(matrix), abs=1e-12)
    assert ellipsoid.num_observed == 60


def test_a_batch_has_the_factors_of_its_models() -> None:
    single = [Ellipsoid(np.eye(20), np.zeros(20)) for _ in range(3)]
    batch = Ellipsoid(np.eye(20), np.zeros(20)).repeated(3)
    for x in np.random.default_rng(0).normal(size=(30, 3, 20)):
        batch.observe(x, np.ones(3))
        for ellipsoid, own in zip(single, x, strict=True):
            ellipsoid.observe(own, 1.0)
    factors = np.array([ellipsoid.factor for ellipsoid in single])
    assert batch.factor == pytest.approx(factors, abs=1e-12)


def test_a_direction_that_is_hardly_seen_keeps_its_digits() -> None:
    """V's least eigenvalue is 1e-11 of its greatest: the factor of a sum loses it."""
    rng = np.random.default_rng(0)
    rotation = np.linalg.qr(rng.normal(size=(30, 30)))[0]
    seen = rng.normal(size=(500, 30)) * (np.arange(30) < 29) @ rotation
    ellipsoid = Ellipsoid(1e-8 * np.eye(30), np.zeros(30))
    for x in seen:
        ellipsoid.observe(x, 1.0)
    least = np.linalg.svd(ellipsoid.factor, compute_uv=False)[-1]
    assert least == pytest.approx(1e-4, rel=1e-9)
    summed = np.linalg.cholesky(seen.T @ seen + 1e-8 * np.eye(30))
    least = np.linalg.svd(summed, compute_uv=False)[-1]
    assert least != pytest.approx(1e-4, rel=1e-9)


@pytest.mark.parametrize("shape", [(7,), (3, 7)])
def test_what_was_whitened_is_solved_for_by_unwhitening(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(*shape, 7))
    matrix = np.swapaxes(x, -1, -2) @ x + np.eye(7)
    ellipsoid, right = Ellipsoid(matrix, np.zeros(shape)), rng.normal(size=(*shape, 2))
    solved = ellipsoid.unwhitened(ellipsoid.whitened(right))
    assert solved == pytest.approx(np.linalg.solve(matrix, right), rel=1e-9)

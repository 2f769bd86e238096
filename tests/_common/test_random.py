"""Points of the unit ball are uniform: by radius, by direction, by coordinate."""

import numpy as np
import pytest
from scipy.stats import kstest

from flwr_fbo._common.random import uniform_in_ball

N = 20_000


@pytest.mark.parametrize("d", [1, 2, 20])
def test_points_are_uniform_in_the_ball(d: int) -> None:
    rng = np.random.default_rng(d)
    points = uniform_in_ball(rng, np.empty((N, d)), np.empty(N))
    radii = np.linalg.norm(points, axis=1)
    assert np.all(radii <= 1)
    # A ball of radius r has the share r^d of the volume.
    assert kstest(radii**d, "uniform").pvalue > 1e-4
    # Of a coordinate: mean 0, and variance 1 / (d + 2), without correlation.
    covariance = points.T @ points / N
    np.testing.assert_allclose(points.mean(axis=0), 0, atol=5 / np.sqrt(N * (d + 2)))
    np.testing.assert_allclose(covariance, np.eye(d) / (d + 2), atol=5 / np.sqrt(N))
    # Radius and direction do not depend on each other.
    inner = radii < np.median(radii)
    upper = points[:, 0] > 0
    assert abs(np.mean(upper[inner]) - 0.5) < 5 * 0.5 / np.sqrt(N / 2)
    if d > 1:  # a direction's first coordinate, squared
        direction = (points[:, 0] / radii) ** 2
        assert abs(direction.mean() - 1 / d) < 5 / np.sqrt(N)


def test_points_fill_what_is_given() -> None:
    out = np.empty((2, 3, 4))
    made = uniform_in_ball(np.random.default_rng(0), out, np.empty((2, 3)))
    assert made is out
    assert np.all(np.linalg.norm(out, axis=-1) <= 1)

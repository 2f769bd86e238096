"""A Gaussian process that is led by a function, and follows what it observes."""

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.tuning.fed_warm_start.led_gp import LedPosterior


def test_observations_outweigh_the_leading_function() -> None:
    """h is believed where nothing was seen, and less where it was contradicted."""
    rng = np.random.default_rng(1)
    grid = np.linspace(0.0, 1.0, 41)[:, None]

    def h(x: FloatArray) -> FloatArray:
        return np.asarray(np.cos(3.0 * x[:, 0]))

    def best(x: FloatArray, y: FloatArray) -> float:
        y = (y - y.mean()) / y.std()
        mean, _ = LedPosterior(x, y, h(x), rng).predict(grid, h(grid))
        return float(grid[np.argmax(mean), 0])

    agreeing = np.array([[0.5], [0.7]])
    assert best(agreeing, h(agreeing)) < 0.1
    x = np.array([[0.5], [0.0], [1.0], [0.25], [0.8]])
    assert best(x, -h(x)) > 0.7

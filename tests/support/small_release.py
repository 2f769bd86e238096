"""A small continual release, and trials to sum."""

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.privacy.continual_settings import ContinualSettings

SMALL = ContinualSettings(num_releases=6, dimension=2, epsilon=1.0, delta=0.1)


def random_trials(
    count: int, d: int = 2, seed: int = 0
) -> tuple[FloatArray, FloatArray]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, d))
    x *= rng.random((count, 1)) / np.linalg.norm(x, axis=1, keepdims=True)
    return x, rng.uniform(-1, 1, count)

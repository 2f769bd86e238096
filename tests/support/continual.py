"""Continual releases as dense matrices."""

from functools import cache

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.privacy.continual import ContinualRelease
from flwr_fbo.privacy.continual_settings import ContinualSettings
from flwr_fbo.privacy.factorisation import Mechanism, factorisation
from flwr_fbo.privacy.noise import SeededEntropy


@cache
def _decoder(mechanism: Mechanism, n: int) -> FloatArray:
    """Return B, dense."""
    weights, dense = factorisation(mechanism, n), np.zeros((n, n))
    for k in range(1, n + 1):
        dense[k - 1, :k] = weights.row(k)
    return dense


def noise_of(settings: ContinualSettings, *owner: int) -> FloatArray:
    """Return the noise of all releases, shape (n, d + 1, d + 1)."""
    size = settings.dimension + 1
    mechanism = ContinualRelease(settings, SeededEntropy(1, *owner))
    times = range(1, settings.max_releases + 1)
    return np.array([mechanism.release(k, np.zeros((size, size))) for k in times])
